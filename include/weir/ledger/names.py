"""Answers names that the ledger does not know: the closest known ones, else the newest, and the command that lists all.

Invariant: an error names at most `SHOWN` others, however many the ledger knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.errors import Misconfigured
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.failed_begins import failed_begins_named, region_of_begin
from weir.wording import closest, did_you_mean, first_few, meant

SHOWN = 3
"""The largest number of known dataflows and runs in an error."""

MOST_PARTS = 10
"""The largest number of known tasks or stages of a run in an error."""

NO_RUN = (
    "no run has begun yet. Unpause or trigger the DAG of a dataflow in Airflow; `weir doctor` says what is in its way"
)

_LEAST_PART = 4
"""A shorter part of a name is in too many names."""


def require_dataflow(session: Session, name: str) -> None:
    """Raise Misconfigured if the ledger does not know the dataflow."""
    known = list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))
    if name not in known:
        raise Misconfigured.of("ledger.dataflow_unknown", name=name, said=_said(closest(name, known, SHOWN), known))


def unknown_run(
    session: Session, name: str, dataflow: str | None = None, *, or_dataflow: bool = False
) -> Misconfigured:
    """Return the error about a run of this name, of `dataflow` or of any; `or_dataflow`: a dataflow's name would do."""
    failed = failed_begins_named(session, name)
    if failed:
        task = region_of_begin(failed[-1]).name
        return Misconfigured.of("ledger.run_not_begun", name=name, task=task)
    query = select(RunRow.id, RunRow.run_id, RunRow.epoch).order_by(RunRow.epoch, RunRow.id)
    if dataflow is not None:
        query = query.where(RunRow.dataflow == dataflow)
    rows = [(str(run), run_id, str(epoch)) for run, run_id, epoch in session.execute(query)]
    named = {run: f"{run} ({run_id})" for run, run_id, _ in rows}
    part = as_epoch(name)
    like = [
        named[run]
        for run, run_id, epoch in rows
        if run.startswith(part) or epoch.startswith(part) or (len(name) >= _LEAST_PART and name in run_id)
    ]
    known = named | {run_id: named[run] for run, run_id, _ in rows}
    if dataflow is not None:
        known |= {epoch: named[run] for run, _, epoch in rows}
    flows = sorted({run.partition("@")[0] for run in named}) if or_dataflow else []
    close = [known.get(each, each) for each in closest(name, [*flows, *known], SHOWN)]
    found = list(dict.fromkeys(like[-SHOWN:] or close))
    where = f"the ledger knows no run{' or dataflow' * or_dataflow}" if dataflow is None else f"{dataflow} has no run"
    return Misconfigured.of("ledger.run_unknown", where=where, name=name, said=_said(found, list(named.values())))


def unknown_task(run: str, task: str, name: str, known: Sequence[str]) -> Misconfigured:
    """Return the error about a task that a run does not have; `name` is it without its subtask."""
    return Misconfigured.of("ledger.task_unknown", run=run, task=task, similar=similar(name, known))


def unknown_stage(dataflow: str | None, stage: str, known: Sequence[str]) -> Misconfigured:
    """Return the error about a stage that no run of a dataflow, or of any, has written, as it has the known ones."""
    where = dataflow or "any dataflow"
    said = similar(stage, known, "writes")
    return Misconfigured.of("ledger.stage_unknown", dataflow=where, stage=stage, similar=said)


def similar(name: str, known: Sequence[str], verb: str = "has") -> str:
    """Return the end of an error about a name that is not among the known ones: similar ones, else the first few."""
    return did_you_mean(name, known, f"it {verb} {first_few(known, MOST_PARTS) or 'none'}", form="{}", most=SHOWN)


def _said(close: Sequence[str], known: Sequence[str]) -> str:
    if not known:
        return NO_RUN
    if close:
        return f"{meant(close, '{}')} `weir runs` lists all"
    more = f" and {len(known) - SHOWN} more, which `weir runs` lists" if len(known) > SHOWN else ""
    return f"it knows {', '.join(known[-SHOWN:])}{more}"


def as_epoch(name: str) -> str:
    """Write a day or a time as an epoch is written: ladder@2013-01-02 as ladder@20130102."""
    dataflow, at, epoch = name.rpartition("@")
    return f"{dataflow}{at}{as_digits(epoch)}" if re.match(r"\d{4}", epoch) else name


def as_digits(time: str) -> str:
    """Write a day or a time as epochs are written: 2013-01-02 as 20130102."""
    return re.sub(r"[-: ]", "", time)
