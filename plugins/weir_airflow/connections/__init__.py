"""Weir's settings and Airflow's connections."""
