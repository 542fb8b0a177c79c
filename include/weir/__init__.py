"""Fine-grained recovery and incremental checkpoints for pipelines that Airflow schedules and Spark computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.reading.opening import open_results as open  # noqa: A004  `weir.open` reads as what it does
    from weir.trials.trying import run_stage

__all__ = ["open", "run_stage"]


def __getattr__(name: str) -> Any:
    """Import a function when it is used: DAG files import this package, and stay light."""
    if name == "open":
        from weir.reading.opening import open_results  # noqa: PLC0415

        return open_results
    if name == "run_stage":
        from weir.trials.trying import run_stage  # noqa: PLC0415

        return run_stage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
