"""DESIGN 9's invariants, checked from the ledger's tables and the store's files alone."""
