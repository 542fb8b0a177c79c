"""Keyed states in tables of PostgreSQL, with the rows of each retained checkpoint."""
