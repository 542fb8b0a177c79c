"""The command line and the local stack. Invariant: the rest of Weir knows nothing of either."""
