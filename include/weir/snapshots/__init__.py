"""Savepoints, restores and forks."""
