"""Defines registered attempts, and the check that an attempt may still commit.

Invariant 2: only the newest attempt of a region, in the current lineage of its dataflow, may commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.coordination.values import Attempt, SparkWork
from weir.errors import Conflict, Fenced
from weir.execution.run_state import AttemptState, CurrentResult, RunState
from weir.formats.manifest import Manifest
from weir.ledger.attempts import Origin, attempts_of
from weir.ledger.database.tables import AttemptRow, DataflowRow
from weir.ledger.results import NewResult
from weir.ledger.runs import Run
from weir.topology.regions import PartitionId, RegionId, Topology


@dataclass(frozen=True, slots=True)
class Registered:
    """An attempt in the ledger, and the Spark work of the attempts that it fences."""

    attempt: Attempt
    run: Run
    topology: Topology
    origin: Origin
    interrupt: tuple[SparkWork, ...]
    code_note: str = ""
    """What a person should know of the code that it runs."""
    is_committed: bool = False
    """Whether it has committed before, which Airflow has lost: it is to be adopted, or registered anew."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """All inputs under lease: the run at the instant of the lease, and the manifests to read."""

    state: RunState
    manifests: Mapping[PartitionId, Manifest]


_LINEAGE = select(DataflowRow.__table__.c.lineage).where(DataflowRow.__table__.c.name == bindparam("dataflow"))


def require_newest(session: Session, run: Run, region: RegionId, attempt: str) -> AttemptRow:
    """Return the attempt's row if it may still commit. Raises Fenced, or Conflict if the lineage has changed."""
    return newest_of(session, run, region, attempt, attempts_of(session, run.id, region))


def newest_of(session: Session, run: Run, region: RegionId, attempt: str, tries: Sequence[AttemptRow]) -> AttemptRow:
    """Return the newest of a region's attempts, which must be `attempt`. Raises Fenced or Conflict, as above."""
    newest = next(reversed(tries), None)
    if newest is None:
        raise Fenced.of("coordination.attempt_not_in_ledger", attempt=attempt, region=region)
    lineage = session.connection().execute(_LINEAGE, {"dataflow": run.dataflow.name}).scalar_one()
    if newest.id != attempt or newest.state != AttemptState.RUNNING.value:
        raise Fenced.of(
            "coordination.attempt_not_newest",
            attempt=attempt,
            region=region,
            newest_id=newest.id,
            state=newest.state,
        )
    if newest.lineage != lineage:
        raise Conflict.of(
            "coordination.lineage_changed",
            attempt=attempt,
            region=region,
            lineage=newest.lineage,
            dataflow=run.dataflow.name,
            current=lineage,
        )
    return newest


def summary_of(
    results: Sequence[CurrentResult | NewResult], manifests: Mapping[PartitionId, Manifest]
) -> dict[str, Any]:
    """Summarise a region's results for Airflow's UI: rows and bytes, in total and by partition."""
    return {
        "rows": sum(result.rows for result in results),
        "bytes": sum(result.bytes for result in results),
        "results": {
            str(result.partition): {
                "rows": result.rows,
                "bytes": result.bytes,
                "files": len(manifests[result.partition].files) if result.partition in manifests else None,
                "digest": result.digest,
            }
            for result in results
        },
    }
