"""The documents that Weir writes into the store, their codec and their paths."""
