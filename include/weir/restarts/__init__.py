"""Restart strategies, failure limits and budgets, which decide whether and when a failed task runs again; no I/O."""
