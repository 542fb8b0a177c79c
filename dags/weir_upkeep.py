"""Weir's upkeep and its requests: Airflow's DAGs folder needs a file that imports them."""

from weir_airflow.upkeep.upkeep import dag, hourly_dag, requests_dag

__all__ = ["dag", "hourly_dag", "requests_dag"]
