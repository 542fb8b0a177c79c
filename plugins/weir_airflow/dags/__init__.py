"""Declaring a dataflow as an Airflow DAG."""
