"""The ledger, rebuilt from what the store holds."""
