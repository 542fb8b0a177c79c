"""Weir's own DAGs, for Airflow's DAGs folder: upkeep, and the weekly test that checkpoints can be restored."""

from weir_airflow.upkeep.restore_check import dag as restore_check
from weir_airflow.upkeep.upkeep import dag as upkeep
from weir_airflow.upkeep.upkeep import hourly_dag

__all__ = ["hourly_dag", "restore_check", "upkeep"]
