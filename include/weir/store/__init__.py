"""The store of results on any file system: reading, writing, listing and verifying its files."""
