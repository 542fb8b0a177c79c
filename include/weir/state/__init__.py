"""State over runs: which checkpoints are kept, and which files they share."""
