"""Weir in Airflow: dataflows become DAGs, attempts become task instances, repairs become clears.

Airflow imports this package while it discovers providers, before its own modules are complete: the names below are
imported when they are used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir_airflow.assets import on_dataset
    from weir_airflow.dag import dataflow_dag, dataflow_group, stage_task
    from weir_airflow.tasks.maintenance_operators import WeirRestoreOperator, WeirSavepointOperator, WeirVerifyOperator

__all__ = [
    "WeirRestoreOperator",
    "WeirSavepointOperator",
    "WeirVerifyOperator",
    "dataflow_dag",
    "dataflow_group",
    "on_dataset",
    "stage_task",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Operator"):
        from weir_airflow.tasks import maintenance_operators  # noqa: PLC0415  see above

        return getattr(maintenance_operators, name)
    from weir_airflow import assets, dag  # noqa: PLC0415  see above

    return getattr(assets if name == "on_dataset" else dag, name)
