"""The history of a simulation: the ledger's tables, runs, checkpoints, restores and publications."""
