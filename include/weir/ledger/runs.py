"""Runs: one owner an epoch, pinned to the dataflow of its first begin.

Invariant: what a run was pinned to never changes but by `forget_pin`, whatever the DAG file says later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.dataflow import Dataflow
from weir.errors import Misconfigured, Retryable
from weir.ledger.models import DataflowRow, RunRow

SHOWN = 20
"""How many known runs an error names."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run that owns an epoch of a dataflow. `interval` is in UTC, its end exclusive."""

    id: str
    dataflow: Dataflow
    epoch: str
    interval: tuple[datetime, datetime]
    dag_id: str
    run_id: str
    task_prefix: str
    parameters: Mapping[str, Any]
    predecessor: str | None
    lineage: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """A DagRun that begins, perhaps for the first time."""

    dataflow: Dataflow
    interval: tuple[datetime, datetime]
    dag_id: str
    run_id: str
    task_prefix: str
    parameters: Mapping[str, Any]
    store_id: str


def epoch_of(start: datetime) -> str:
    """The epoch's key: the start of its interval in UTC."""
    return start.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def dataflow_of(run: str) -> str:
    """The name of the dataflow of the run with this id."""
    return run.partition("@")[0]


def ensure_dataflow(session: Session, name: str, store_id: str) -> DataflowRow:
    """The row of dataflow `name`, made at its first begin. Raises Retryable if the results live in another store."""
    row = session.get(DataflowRow, name)
    if row is None:
        row = DataflowRow(name=name, lineage=1, store_id=store_id)
        session.add(row)
        session.flush()
    if row.store_id != store_id:
        raise Retryable(
            f"the results of dataflow {name} are in the store with id {row.store_id}, but the store that is mounted "
            f"now has id {store_id}: mount the right one, or correct WEIR_STORE. Nothing was marked lost"
        )
    return row


def own_epoch(session: Session, new: NewRun, now: datetime, on_pin: Callable[[RunRow], None]) -> Run:
    """The run of this epoch, created and pinned by whoever comes first; `on_pin` is told of one that is pinned now.

    Raises Misconfigured if another DagRun owns the epoch.
    """
    dataflow = ensure_dataflow(session, new.dataflow.name, new.store_id)
    epoch = epoch_of(new.interval[0])
    row = session.scalar(select(RunRow).where(RunRow.dataflow == dataflow.name, RunRow.epoch == epoch))
    if row is None:
        row = _create(session, new, epoch, now)
        dataflow.first_epoch = min(dataflow.first_epoch or epoch, epoch)
    if row.pinned is None:  # new, or freed by `weir run adopt`: whoever begins first owns it
        row.dag_id, row.run_id = new.dag_id, new.run_id
    if (row.dag_id, row.run_id) != (new.dag_id, new.run_id):
        raise Misconfigured(
            f"epoch {epoch} of dataflow {dataflow.name} belongs to run {row.run_id} of DAG {row.dag_id}: "
            f"run {new.run_id} of DAG {new.dag_id} has the same data interval and would write the same results. "
            f"Clear {row.run_id} to compute the epoch again, and delete {new.run_id}. If {row.run_id} was deleted, "
            f"`weir run adopt {row.id}` frees the epoch for the run that begins next"
        )
    if row.pinned is None:
        row.pinned, row.parameters = new.dataflow.to_json(), dict(new.parameters)
        row.task_prefix = new.task_prefix
        session.flush()
        on_pin(row)
    return _run(row, dataflow.lineage)


def _create(session: Session, new: NewRun, epoch: str, now: datetime) -> RunRow:
    predecessor = session.scalar(
        select(RunRow.epoch)
        .where(RunRow.dataflow == new.dataflow.name, RunRow.epoch < epoch)
        .order_by(RunRow.epoch.desc())
        .limit(1)
    )
    row = RunRow(
        id=f"{new.dataflow.name}@{epoch}",
        dataflow=new.dataflow.name,
        epoch=epoch,
        interval_start=new.interval[0],
        interval_end=new.interval[1],
        dag_id=new.dag_id,
        run_id=new.run_id,
        task_prefix=new.task_prefix,
        pinned=None,
        parameters={},
        predecessor=predecessor,
        created_at=now,
    )
    session.add(row)
    return row


def run_by_id(session: Session, run: str) -> Run:
    """The run with this id, which must exist and be pinned."""
    row = session.get_one(RunRow, run)
    return _run(row, session.get_one(DataflowRow, row.dataflow).lineage)


def runs_of(session: Session, dataflow: str | None = None) -> list[RunRow]:
    """All runs, of one dataflow or of all, by dataflow and epoch."""
    query = select(RunRow).order_by(RunRow.dataflow, RunRow.epoch)
    return list(session.scalars(query if dataflow is None else query.where(RunRow.dataflow == dataflow)))


def named_run(session: Session, name: str) -> RunRow:
    """The run that a person means by DATAFLOW@EPOCH or by Airflow's run id. Raises Misconfigured with what is known."""
    known = runs_of(session)
    matching = [row for row in known if name in (row.id, row.run_id)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise Misconfigured(
            f"{name} is a run of several dataflows: type one of {', '.join(row.id for row in matching)} instead"
        )
    listed = ", ".join(f"{row.id} ({row.run_id})" for row in known[-SHOWN:]) or "none at all"
    more = f", and {len(known) - SHOWN} more, which `weir runs` lists" if len(known) > SHOWN else ""
    raise Misconfigured(f"the ledger knows no run {name}; it knows {listed}{more}")


def forget_pin(session: Session, run: str) -> None:
    """Let the next begin pin `run` to what the DAG file says then."""
    session.get_one(RunRow, run).pinned = None


def _run(row: RunRow, lineage: int) -> Run:
    if row.pinned is None:
        raise Misconfigured(f"run {row.id} is to be pinned anew: clear its tasks in Airflow, so that they begin again")
    return Run(
        row.id,
        Dataflow.from_json(row.pinned),
        row.epoch,
        (row.interval_start, row.interval_end),
        row.dag_id,
        row.run_id,
        row.task_prefix,
        row.parameters,
        row.predecessor,
        lineage,
    )
