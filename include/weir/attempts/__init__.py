"""One try of a region from begin to commit, and the close of a run, in the order in which a task takes the steps."""
