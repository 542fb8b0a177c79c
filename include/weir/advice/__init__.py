"""Advice: how a dataflow would cost less, from what its runs have cost."""
