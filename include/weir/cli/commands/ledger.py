"""`weir runs`, `weir run adopt`, `weir ledger ...`: what the ledger knows, and mends.

Invariant: without an environment that says otherwise, they are about the local stack's ledger and store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from weir.environment import opened_services, settings
from weir.errors import Misconfigured
from weir.settings import url_without_password

if TYPE_CHECKING:
    from weir.rebuild.rebuild import Rebuilt, RebuiltRun


run_app = typer.Typer(help="Change a run.", no_args_is_help=True)
ledger_app = typer.Typer(help="Look after the ledger itself.", no_args_is_help=True)
RunName = Annotated[str, typer.Argument(help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)]
OptionalDataflow = Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)]


@run_app.command()
def adopt(run: RunName) -> None:
    """Free a run of the dataflow it is pinned to: it follows the present DAG file when it is cleared."""
    from weir.recovery.adopt import adopt as adopt_run  # noqa: PLC0415  SQLAlchemy is slow to import

    with opened_services() as services:
        _say(str(adopt_run(services, run)))


@ledger_app.command()
def rebuild(
    dataflow: OptionalDataflow = None,
    everything: Annotated[bool, typer.Option("--all", help="All dataflows in the store.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Build the ledger again from what the store holds; whatever runs is fenced and begins anew."""
    from weir.rebuild.rebuild import UNKNOWN  # noqa: PLC0415
    from weir.rebuild.rebuild import rebuild as rebuild_ledger  # noqa: PLC0415

    if (dataflow is None) is not everything:
        raise Misconfigured("say which ledger to build again: `weir ledger rebuild DATAFLOW`, or `--all`")
    with opened_services(may_be_new=True) as services:
        built = rebuild_ledger(services, dataflow)
    if not built:
        _say("The store holds no dataflow: there is nothing to build a ledger from.")
    for each in built:
        _tell_rebuilt(each)
    _say(UNKNOWN)


@ledger_app.command()
def upgrade() -> None:
    """Bring the ledger's tables to the form that this Weir needs; every command and task does that by itself too."""
    with opened_services():
        _say(f"The ledger {url_without_password(settings().ledger)} is as this Weir needs it.")


def runs(dataflow: OptionalDataflow = None) -> None:
    """List the runs: how much of each is valid, and what is published."""
    from weir.recovery.history import run_overviews  # noqa: PLC0415

    with opened_services() as services, services.ledger.transaction() as session:
        found = run_overviews(session, dataflow)
    table = Table("dataflow", "epoch", "run id", "regions", "published")
    for each in found:
        state = f"{each.valid} valid, {each.stale} stale, {each.missing} missing"
        versions = ", ".join(f"{sink} v{version}" for sink, version in each.published.items())
        table.add_row(
            each.dataflow, each.epoch, each.run_id, state if each.is_pinned else "to be pinned anew", versions or "-"
        )
    Console().print(table)


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
