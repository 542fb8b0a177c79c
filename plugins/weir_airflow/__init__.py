"""Weir in Airflow: dataflows become DAGs, attempts become task instances, repairs become clears."""

from weir_airflow.dag import dataflow_dag, dataflow_group, stage_task

__all__ = ["dataflow_dag", "dataflow_group", "stage_task"]
