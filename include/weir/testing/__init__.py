"""Public fakes: a store with injected errors, an Airflow without Airflow, an engine without Spark."""
