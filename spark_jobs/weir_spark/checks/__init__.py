"""Checks of rows: suites, restored partitions, digests of stored results, and pages about checks."""
