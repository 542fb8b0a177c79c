"""Public fakes: a store that fails when told to, an Airflow without Airflow, an engine without Spark."""
