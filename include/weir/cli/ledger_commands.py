"""`weir runs`, `weir failovers`, `weir why`, `weir run adopt`, `weir ledger ...`: what the ledger knows, and mends.

Invariant: without an environment that says otherwise, they are about the local stack's ledger and store.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from weir.cli.airflow_environment import ledger_url, store_url
from weir.cli.project import state_folder
from weir.errors import Misconfigured
from weir.recovery.plan import Plan, StepKind
from weir.settings import Settings, read_settings, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from weir.coordinator.rebuild import Rebuilt, RebuiltRun
    from weir.coordinator.services import Services
    from weir.ledger.models import AttemptRow, FailoverRow, OwedClearRow

run_app = typer.Typer(help="Change a run.", no_args_is_help=True)
ledger_app = typer.Typer(help="Look after the ledger itself.", no_args_is_help=True)

RunName = Annotated[str, typer.Argument(help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)]
OptionalDataflow = Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)]


@run_app.command()
def adopt(run: RunName) -> None:
    """Free a run of the dataflow it is pinned to: it follows the present DAG file when it is cleared."""
    from weir.coordinator.adopt import adopt as adopt_run  # noqa: PLC0415  SQLAlchemy is slow to import

    with _services() as services:
        _say(str(adopt_run(services, run)))


@ledger_app.command()
def rebuild(
    dataflow: OptionalDataflow = None,
    everything: Annotated[bool, typer.Option("--all", help="All dataflows in the store.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Build the ledger again from what the store holds; whatever runs is fenced and begins anew."""
    from weir.coordinator.rebuild import UNKNOWN  # noqa: PLC0415
    from weir.coordinator.rebuild import rebuild as rebuild_ledger  # noqa: PLC0415

    if (dataflow is None) is not everything:
        raise Misconfigured("say which ledger to build again: `weir ledger rebuild DATAFLOW`, or `--all`")
    with _services(may_be_new=True) as services:
        built = rebuild_ledger(services, dataflow)
    if not built:
        _say("The store holds no dataflow: there is nothing to build a ledger from.")
    for each in built:
        _tell_rebuilt(each)
    _say(UNKNOWN)


@ledger_app.command()
def upgrade() -> None:
    """Bring the ledger's tables to the form that this Weir needs; every command and task does that by itself too."""
    with _services():
        _say(f"The ledger {shown_url(_settings().ledger)} is as this Weir needs it.")


def runs(dataflow: OptionalDataflow = None) -> None:
    """List the runs: how much of each is valid, and what is published."""
    from weir.ledger.overview import run_overviews  # noqa: PLC0415

    with _services() as services, services.ledger.transaction() as session:
        found = run_overviews(session, dataflow)
    table = Table("dataflow", "epoch", "run id", "regions", "published")
    for each in found:
        state = f"{each.valid} valid, {each.stale} stale, {each.missing} missing"
        versions = ", ".join(f"{sink} v{version}" for sink, version in each.published.items())
        table.add_row(
            each.dataflow, each.epoch, each.run_id, state if each.is_pinned else "to be pinned anew", versions or "-"
        )
    Console().print(table)


def failovers(
    dataflow: OptionalDataflow = None,
    epoch: Annotated[str | None, typer.Argument(help="Only this epoch.", show_default=False)] = None,
) -> None:
    """Tell of every decision to run something again: what was lost, what ran again, what was spared."""
    from weir.ledger.failovers import failovers_of  # noqa: PLC0415

    with _services() as services, services.ledger.transaction() as session:
        found = failovers_of(session, dataflow, epoch)
    if not found:
        _say("No failover is recorded.")
    for each in found:
        _tell_failover(each)


def why(
    task: Annotated[str, typer.Argument(help="A task id, or TASK[SUBTASK].", show_default=False)],
    run: Annotated[str, typer.Option("--run", help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
) -> None:
    """Tell why a task ran as often as it did: its attempts, and the clears that were decided for it."""
    from weir.ledger.overview import task_history  # noqa: PLC0415

    with _services() as services, services.ledger.transaction() as session:
        found = task_history(session, run, task)
    for each in found:
        _say(str(each.region))
        for attempt in each.attempts:
            _tell_attempt(attempt)
        for clear in each.clears:
            _tell_clear(clear)


def _settings(environ: Mapping[str, str] | None = None) -> Settings:
    found = dict(os.environ if environ is None else environ)
    if not {"WEIR_STORE", "WEIR_LEDGER"} & found.keys():
        folder = state_folder()
        found |= {"WEIR_STORE": store_url(folder), "WEIR_LEDGER": ledger_url(folder)}
    return read_settings(found)


@contextmanager
def _services(*, may_be_new: bool = False) -> Iterator[Services]:
    """The ledger and the store. Looking must not create a ledger: `may_be_new` says that one may begin empty."""
    from weir.coordinator.services import Services  # noqa: PLC0415
    from weir.ledger.ledger import Ledger  # noqa: PLC0415
    from weir.store.store import Store  # noqa: PLC0415

    found = _settings()
    path = found.ledger.removeprefix("sqlite:///")
    if not may_be_new and path != found.ledger and not Path(path).exists():
        raise Misconfigured(
            f"there is no ledger {path} yet: start the local stack (./weir up, ./weir demo), or set WEIR_LEDGER and "
            "WEIR_STORE to those of your workers; `weir ledger rebuild --all` builds a lost one again"
        )
    ledger = Ledger.open(found.ledger)
    try:
        yield Services(ledger, Store.open(found.store, found.store_options))
    finally:
        ledger.close()


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def _tell_rebuilt(built: Rebuilt) -> None:
    _say(f"Dataflow {built.dataflow}, lineage {built.lineage}: {len(built.runs)} run(s)")
    for run in built.runs:
        _tell_rebuilt_run(run)
    for note in built.notes:
        _say(f"  {note}")


def _tell_rebuilt_run(run: RebuiltRun) -> None:
    missing = f"; without a valid result: {', '.join(str(each) for each in run.missing)}" if run.missing else ""
    _say(f"  {run.run} ({run.run_id}): {run.valid} region(s) valid, {run.published} published version(s){missing}")
    for note in run.notes:
        _say(f"    {note}")


def _tell_failover(row: FailoverRow) -> None:
    steps: dict[StepKind, list[str]] = {}
    for step in Plan.from_json(row.plan).steps:
        steps.setdefault(step.kind, []).append(str(step.region))
    _say(f"{_at(row.decided_at)}  {row.run}, {row.region}[{row.subtask}], attempt {row.attempt}")
    _say(f"  cause: {row.cause or 'none recorded'}")
    for kind in (kind for kind in StepKind if kind in steps):
        names = f"{len(steps[kind])} region(s)" if kind is StepKind.SPARED else ", ".join(steps[kind])
        _say(f"  {kind}: {names}")


def _tell_attempt(row: AttemptRow) -> None:
    took = "" if row.ended_at is None else f" after {(row.ended_at - row.began_at).total_seconds():.1f} s"
    _say(f"  {_at(row.began_at)}  try {row.try_number} ({row.origin}): {row.state}{took}, attempt {row.id}")
    if row.failure or row.error:
        _say(f"    {row.failure or 'failure'}: {row.error or 'nothing was said'}")


def _tell_clear(row: OwedClearRow) -> None:
    outcome = row.outcome or "still owed"
    _say(f"  {_at(row.created_at)}  clear of try {row.expected_try}: {outcome}")
    _say(f"    {row.reason}")


def _at(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
