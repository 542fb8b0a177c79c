"""Where results live: files on any file system, whether they are there, and whether they are right."""
