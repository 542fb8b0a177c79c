"""The checks of `weir doctor` that need Airflow."""
