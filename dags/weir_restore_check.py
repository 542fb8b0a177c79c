"""The weekly test that checkpoints can be restored: Airflow's DAGs folder needs a file that imports it."""

from weir_airflow.upkeep.restore_check import dag

__all__ = ["dag"]
