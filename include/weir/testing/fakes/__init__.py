"""Fakes of Airflow, Spark and the store, for tests of Weir and of pipelines."""
