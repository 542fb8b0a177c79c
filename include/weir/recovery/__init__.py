"""Which tasks run again: the decision, its plan, and telling Airflow."""
