"""The invariants of `docs/guarantees.md`, checked from the ledger's tables and the store's files alone."""
