"""What a simulation has shown so far: the ledger's tables, runs, checkpoints, restores and publications."""
