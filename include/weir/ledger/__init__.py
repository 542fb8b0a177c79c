"""Stores runs, attempts, results, reads and pending clears in a database of its own, never in Airflow's tables."""
