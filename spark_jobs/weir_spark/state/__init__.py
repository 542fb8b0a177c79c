"""Keyed and operator state in Spark."""
