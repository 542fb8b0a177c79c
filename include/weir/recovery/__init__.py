"""Decides which tasks run again, records the plan, and delivers its clears to Airflow."""
