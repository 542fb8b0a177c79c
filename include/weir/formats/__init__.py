"""Every document that Weir writes into the store, and the one codec that reads and writes them."""
