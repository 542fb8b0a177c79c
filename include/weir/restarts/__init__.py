"""Whether and when a failed task runs again: restart strategies, limits and budgets; no I/O."""
