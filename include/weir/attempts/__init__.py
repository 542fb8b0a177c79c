"""One attempt of a region from begin to commit, and the close of a run."""
