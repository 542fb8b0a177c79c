"""The tasks that compact state, beside those of the regions. Invariant: their names are never those of regions."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from weir.dataflow.state import StateKind
from weir.topology.ids import LogicalRegion
from weir.topology.regions import Topology

RETRIES: Final = 2
RETRY_DELAY: Final = timedelta(seconds=30)
"""How often and when Airflow tries again. The next epoch makes up for what is not compacted: it is not worth more."""

_PREFIX: Final = "weir_compact-"


def compaction_task(region: str) -> str:
    """The name of the task that compacts what a region keeps."""
    return f"{_PREFIX}{region}"


def region_compacted(task: str) -> str | None:
    """The region whose state a task compacts; None for any other task."""
    return task.removeprefix(_PREFIX) if task.startswith(_PREFIX) else None


def compacted_regions(topology: Topology) -> tuple[LogicalRegion, ...]:
    """The regions with keyed state that is written in runs of changes."""
    return tuple(
        region
        for region in topology.regions
        if any(
            state.kind is StateKind.KEYED and not state.is_full
            for stage in topology.stages_of(region.name)
            for state in stage.states
        )
    )
