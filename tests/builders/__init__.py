"""Builders for tests: ledgers, jobs of regions, stored partitions, chains of states."""
