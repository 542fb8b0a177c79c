"""Weir's own DAGs: they delete what nobody needs any more, and read what is stored, a part each day."""

from weir_airflow.upkeep.restore_check import dag as restore_check
from weir_airflow.upkeep.upkeep import dag, hourly_dag, requests_dag

__all__ = ["dag", "hourly_dag", "requests_dag", "restore_check"]
