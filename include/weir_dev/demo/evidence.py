"""The demo's evidence besides Airflow: the ledger, the published reports, and an independent computation of them.

Invariant: nothing here writes.
"""

from __future__ import annotations

import importlib
import io
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from weir.errors import Misconfigured
from weir.ledger.attempts import newest_attempts
from weir.ledger.clears import open_clears
from weir.ledger.runs import epoch_of, run_by_id, runs_of
from weir.recovery.failovers import failovers_of
from weir.recovery.rules.plan import StepKind
from weir.store.catalogue import published
from weir.topology.regions import RegionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from sqlalchemy.orm import Session

    from weir.formats.pointer import Pointer
    from weir.ledger.database.tables import AttemptRow
    from weir.ledger.ledger import Ledger
    from weir.ledger.runs import Run
    from weir.store.store import Store
    from weir_dev.airflow_api import TaskInstance


Row = dict[str, Any]

REFERENCE = ("pipelines.flight_delays_reference", "expected_report")
"""By name: nothing in `weir` depends on a pipeline."""


@dataclass(frozen=True, slots=True)
class Report:
    """A published version: its number, the digests of its partitions, and its rows."""

    version: int
    digests: tuple[str, ...]
    rows: list[Row]


def epoch_key(day: date) -> str:
    """The epoch of a day in UTC."""
    return epoch_of(datetime.combine(day, time(), UTC))


def run_of(session: Session, dataflow: str, day: date) -> Run:
    """Return the run of a day. Raises Misconfigured if the ledger knows none."""
    return run_by_id(session, _run_id(session, dataflow, day))


def pending_clears(ledger: Ledger, dataflow: str) -> list[str]:
    """Return the task instances that Weir has still to clear in Airflow: a run with one has not ended."""
    with ledger.transaction() as session:
        return [f"{row.task_id}[{row.map_index}] of {row.run_id}" for row in open_clears(session, dataflow)]


def what_the_ledger_says(
    ledger: Ledger, dataflow: str, day: date, instances: Sequence[TaskInstance]
) -> dict[TaskInstance, str]:
    """Why each task instance of a day ran again or did not: its later attempts, and the plans of failovers."""
    with ledger.transaction() as session:
        attempts = newest_attempts(session, _run_id(session, dataflow, day))
        later = {str(region): [_attempt(row) for row in rows[1:]] for region, rows in attempts.items()}
        steps = {
            step["region"]: step
            for failover in failovers_of(session, dataflow, epoch_key(day))
            for step in failover.plan["steps"]
        }
    regions = {one: str(RegionId(one.task_id, max(0, one.map_index))) for one in instances}
    return {one: _reason(steps.get(region), later.get(region, [])) for one, region in regions.items()}


def published_rows(store: Store, dataflow: str, sink: str, day: date) -> list[Row]:
    """Read all rows of the version that is published for a day. Raises Misconfigured if none is."""
    return _sorted(rows_of(store, _pointer(store, dataflow, sink, day)))


def published_report(store: Store, dataflow: str, sink: str, day: date) -> Report:
    """Read the version that is published for a day. Raises Misconfigured if none is."""
    pointer = _pointer(store, dataflow, sink, day)
    return Report(pointer.version, tuple(each.digest for each in pointer.partitions), _sorted(rows_of(store, pointer)))


def rows_of(store: Store, pointer: Pointer) -> list[Row]:
    """All rows of a published version, without Weir's own columns."""
    rows: list[Row] = []
    for partition in pointer.partitions:
        for file in partition.files:
            table = pq.read_table(io.BytesIO(store.read(f"{partition.folder}/{file}")))
            wanted = [name for name in table.column_names if not name.startswith("_weir")]
            rows += table.select(wanted).to_pylist()
    return rows


def rows_in_lake(folder: Path, day: date) -> list[Row]:
    """Read a day of the report as any reader of its files finds it."""
    rows: list[Row] = pq.read_table(folder / f"date={day}").to_pylist()
    return _sorted(rows)


def rows_in_table(database: Mapping[str, Any], day: date) -> list[Row]:
    """Read a day of the report from its table; `database` are psycopg2's parameters."""
    import psycopg2  # noqa: PLC0415  only a stack with PostgreSQL needs it

    with closing(psycopg2.connect(**database)) as connection, connection.cursor() as cursor:
        cursor.execute("select * from delays where _epoch = %s", (epoch_key(day),))
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return _sorted([{name: value for name, value in row.items() if name != "_epoch"} for row in rows])


def expected_rows(day: date) -> list[Row]:
    """The report of a day as plain pandas computes it."""
    module, function = REFERENCE
    rows: list[Row] = getattr(importlib.import_module(module), function)(day)
    return _sorted(rows)


def difference_of_reports(found: Report, before: Report) -> str | None:
    """Return the first thing in which a report differs from the one before the loss; None if they are the same."""
    if found.version != before.version:
        return f"version {found.version} is published, expected version {before.version} as before the loss"
    if found.digests != before.digests:
        return f"its digests are {', '.join(found.digests)}, expected {', '.join(before.digests)}"
    return first_difference(found.rows, before.rows)


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


def _pointer(store: Store, dataflow: str, sink: str, day: date) -> Pointer:
    pointer = published(store, dataflow, sink, epoch_key(day))
    if pointer is None:
        raise Misconfigured.of("dev.nothing_published", sink=sink, dataflow=dataflow, day=day)
    return pointer


def _run_id(session: Session, dataflow: str, day: date) -> str:
    for row in runs_of(session, dataflow):
        if row.epoch == epoch_key(day):
            return row.id
    raise Misconfigured.of("dev.no_run", dataflow=dataflow, day=day)


def _reason(step: dict[str, Any] | None, later: list[str]) -> str:
    if step is None:
        return "; ".join(later) or "nothing asked for it"
    if step["kind"] == StepKind.IF_CHANGED.value and not later:
        return f"only {step['reason']}, and it did not"
    return str(step["reason"])


def _attempt(row: AttemptRow) -> str:
    return f"try {row.try_number}: {row.origin}, {row.failure or row.state}"


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (str(row.get("kind")), str(row.get("name")), str(row)))
