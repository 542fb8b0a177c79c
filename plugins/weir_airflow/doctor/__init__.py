"""Airflow's part of `weir doctor`."""
