"""What the demo reads besides Airflow: the ledger, the published reports, and an independent computation of them.

Invariant: nothing here writes.
"""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from weir.errors import Misconfigured
from weir.ledger.attempts import Origin, newest_attempts
from weir.ledger.failovers import failovers_of
from weir.ledger.runs import epoch_of, run_by_id, runs_of
from weir.ledger.snapshot import run_state
from weir.recovery.plan import StepKind
from weir.store.published import published
from weir.topology.regions import RegionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from sqlalchemy.orm import Session

    from weir.cli.airflow_api import TaskInstance
    from weir.ledger.ledger import Ledger
    from weir.store.store import Store

Row = dict[str, Any]

REFERENCE = ("pipelines.flight_delays_reference", "expected_report")
"""By name: nothing in `weir` depends on a pipeline."""


@dataclass(frozen=True, slots=True)
class LostPartition:
    """A result partition to destroy: its folder in the store, its size, and who reads it."""

    name: str
    folder: str
    rows: int
    bytes: int
    consumers: tuple[str, ...]


def epoch_key(day: date) -> str:
    """The epoch of a day in UTC."""
    return epoch_of(datetime.combine(day, time(), UTC))


def find_partition(ledger: Ledger, dataflow: str, day: date, stage: str, subtask: int, key: str) -> LostPartition:
    """The current result of `stage[subtask]` in the layout that is keyed by `key`. Raises Misconfigured if none is."""
    with ledger.transaction() as session:
        run = run_by_id(session, _run_id(session, dataflow, day))
        state = run_state(session, run)
    for partition, result in state.results.items():
        keys = state.topology.layout(partition.layout).keys
        if (partition.stage, partition.subtask) == (stage, subtask) and keys == (key,):
            consumers = tuple(str(region) for region in state.topology.consumers(partition))
            name = f"{stage}[{subtask}] by {key}"
            return LostPartition(name, result.folder, result.rows, result.bytes, consumers)
    raise Misconfigured(f"the ledger has no result of {stage}[{subtask}] by {key} for {day}: has that day been run?")


def why_they_ran_again(
    ledger: Ledger, dataflow: str, day: date, instances: Sequence[TaskInstance]
) -> dict[TaskInstance, str]:
    """The reasons that the ledger recorded: the plans of failovers, and the origins of attempts."""
    with ledger.transaction() as session:
        attempts = newest_attempts(session, _run_id(session, dataflow, day))
        planned = {
            step["region"]: step["reason"]
            for failover in failovers_of(session, dataflow, epoch_key(day))
            for step in failover.plan["steps"]
            if step["kind"] == StepKind.RERUN.value
        }
        origins = {str(region): [row.origin for row in rows] for region, rows in attempts.items()}
    return {one: _reason(one, planned, origins) for one in instances}


def published_rows(store: Store, dataflow: str, sink: str, day: date) -> list[Row]:
    """All rows of the version that is published for a day. Raises Misconfigured if none is."""
    pointer = published(store, dataflow, sink, epoch_key(day))
    if pointer is None:
        raise Misconfigured(f"nothing is published in {sink} of {dataflow} for {day}")
    rows: list[Row] = []
    for partition in pointer.partitions:
        for file in partition.files:
            table = pq.read_table(io.BytesIO(store.read(f"{partition.folder}/{file}")))
            wanted = [name for name in table.column_names if not name.startswith("_weir")]
            rows += table.select(wanted).to_pylist()
    return _sorted(rows)


def expected_rows(day: date) -> list[Row]:
    """The report of a day as plain pandas computes it."""
    module, function = REFERENCE
    rows: list[Row] = getattr(importlib.import_module(module), function)(day)
    return _sorted(rows)


def first_difference(found: Sequence[Row], expected: Sequence[Row]) -> str | None:
    """The first row in which two reports differ; None if they are equal, row by row."""
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        columns = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        if columns or one.keys() != other.keys():
            shown = ", ".join(f"{name}: {one.get(name)!r}, expected {other.get(name)!r}" for name in columns[:3])
            return f"row {number}: {shown or 'other columns'}"
    if len(found) != len(expected):
        return f"{len(found)} rows, expected {len(expected)}"
    return None


def _run_id(session: Session, dataflow: str, day: date) -> str:
    for row in runs_of(session, dataflow):
        if row.epoch == epoch_key(day):
            return row.id
    raise Misconfigured(f"the ledger knows no run of {dataflow} for {day}")


def _reason(one: TaskInstance, planned: dict[str, str], origins: dict[str, list[str]]) -> str:
    region = str(RegionId(one.task_id, max(0, one.map_index)))
    if region in planned:
        return planned[region]
    if Origin.CLEARED_BY_PERSON.value in origins.get(region, []):
        return "cleared by a person; its second try found the loss, its third the healed input"
    return one.note or ", ".join(origins.get(region, [])) or "not in the ledger"


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (str(row.get("kind")), str(row.get("name")), str(row)))
