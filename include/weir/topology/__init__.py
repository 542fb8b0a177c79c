"""Regions, result partitions, layouts and key groups, derived from a dataflow."""
