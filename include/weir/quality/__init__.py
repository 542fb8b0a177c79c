"""Data quality: suites, what a check has found, and what follows from it."""
