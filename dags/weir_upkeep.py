"""Weir's upkeep: Airflow's DAGs folder needs a file that imports it."""

from weir_airflow.upkeep.upkeep import dag, hourly_dag

__all__ = ["dag", "hourly_dag"]
