"""Checks of rows: suites, restored partitions, and pages about them."""
