"""Rows of keyed state for other programs, over HTTP."""
