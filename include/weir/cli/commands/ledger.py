"""`weir runs`, `weir run adopt`, `weir ledger ...`: list and change runs, and maintain the ledger.

Invariant: they use ledger and store of the environment, else those of the local stack.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.airflow_api import airflow_if_reached
from weir.cli.options import OnlyDataflow, RunName
from weir.cli.tables import at, key, print_line, print_rows, text
from weir.environment import opened_services, settings
from weir.errors import Message, Misconfigured
from weir.ledger.names import NO_RUN
from weir.rebuild.rebuild import UNKNOWN, Rebuilt, RebuiltRun
from weir.rebuild.rebuild import rebuild as rebuild_ledger
from weir.recovery.adopt import adopt as adopt_run
from weir.settings import url_without_password
from weir.views.dataflows import standings_of_runs
from weir.views.runs import LostCommits, RunOverview, lost_commits, run_overviews
from weir.wording import first_few

NEWEST = 30
"""The default number of runs of a dataflow that are listed: the state of each is read."""

FAILED = 5
"""The largest number of tasks that have failed in a row of `weir runs`."""

SHOWN = 3
"""The largest number of tasks that failed to begin in a row of `weir runs`."""

run_app = typer.Typer(help="Change a run.", no_args_is_help=True)
ledger_app = typer.Typer(help="Maintain the ledger.", no_args_is_help=True)


@run_app.command()
def adopt(
    run: RunName,
    discard: Annotated[bool, typer.Option("--discard", help="Also what runs, or cannot be computed again.")] = False,
) -> None:
    """Unpin a run from its dataflow: when it is cleared, it follows the present DAG file.

    Its results are discarded. Refused are a run of which a task is running, and one that goes on from a state
    which was released.
    """
    with opened_services() as services, airflow_if_reached() as asked:
        print_line(str(adopt_run(services, run, discards=discard, interrupts=discard, asked=asked)))


@ledger_app.command()
def rebuild(
    dataflow: OnlyDataflow = None,
    everything: Annotated[bool, typer.Option("--all", help="All dataflows in the store.")] = False,
) -> None:
    """Rebuild the ledger from the store; running attempts are fenced and start again."""
    if (dataflow is None) is not everything:
        raise Misconfigured(Message("cli.no_dataflow_to_rebuild"))
    with opened_services(may_be_new=True) as services:
        built = rebuild_ledger(services, dataflow)
    if not built:
        print_line("The store has no dataflow to rebuild the ledger from.")
    for each in built:
        _print_rebuilt(each)
    print_line(UNKNOWN)


@ledger_app.command()
def upgrade() -> None:
    """Migrate the ledger's tables to this version of Weir; every command and task does so, too."""
    with opened_services():
        print_line(f"The ledger {url_without_password(settings().ledger)} has the newest tables.")


def runs(
    dataflow: OnlyDataflow = None,
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest runs of each dataflow; 0: all.")] = NEWEST,
) -> None:
    """List the newest runs with their valid, stale and missing regions, and published versions.

    Below them is said of each open run why it is not published and what to do, and of which dataflows the ledger had
    lost commits.
    """
    with opened_services() as services:
        with services.ledger.transaction() as session:
            (found, older), lost = run_overviews(session, dataflow, limit or None), lost_commits(session, dataflow)
        stand = (
            standings_of_runs(services, [each.run for each in found if each.run], dataflow, airflow_if_reached)
            if found
            else []
        )
    if not found:
        print_line(f"The ledger is empty: {NO_RUN}.")
        return
    print_rows(_RUNS, found)
    if older:
        print_line(f"{older:,} older run(s) are not listed: --limit 0 lists all.")
    told = {each.run for each in stand}
    for line in (*(each.beside(told) for each in stand), *map(_lost, lost)):
        print_line(line)


def _lost(lost: LostCommits) -> str:
    if lost.caught_up_at is None:
        return f"{lost.dataflow}: the ledger has lost commits, and the next task, or upkeep, has it catch up"
    return f"{lost.dataflow}: the ledger had lost commits, and caught up with the store at {at(lost.caught_up_at)}"


def _regions(run: RunOverview) -> str:
    counts = run.regions
    if counts is None:
        state = run.pin.value
    else:
        failed = f"; failed: {first_few(counts.failed, FAILED)}" if counts.failed else ""
        state = f"{counts.valid} valid, {counts.stale} stale, {counts.missing} missing{failed}"
    return f"{state}{_came_again(run)}{_not_begun(run)}"


def _published(run: RunOverview) -> str:
    return ", ".join(f"{sink} v{version}" for sink, version in run.published.items()) or "-"


_RUNS = (
    key("epoch"),
    key("dataflow"),
    key("run id", "run_id"),
    text("regions", _regions),
    text("published", _published),
)


def _came_again(run: RunOverview) -> str:
    if not run.deleted_tries:
        return ""
    return (
        f"; came again: its DagRun was deleted, or Airflow lost it, with {run.deleted_tries} tries that count no more"
    )


def _not_begun(run: RunOverview) -> str:
    failed = run.not_begun
    if not failed:
        return ""
    named = first_few(failed, SHOWN)
    return f"; failed to begin: {named} (`weir why {failed[0].name} --run {run.name}`)"


def _print_rebuilt(built: Rebuilt) -> None:
    print_line(f"Dataflow {built.dataflow}, lineage {built.lineage}: {len(built.runs)} run(s)")
    for run in built.runs:
        _print_rebuilt_run(run)
    for note in built.notes:
        print_line(f"  {note}")


def _print_rebuilt_run(run: RebuiltRun) -> None:
    missing = f"; without a valid result: {', '.join(str(each) for each in run.missing)}" if run.missing else ""
    print_line(
        f"  {run.run} ({run.run_id}): {run.valid} region(s) valid, {run.published} published version(s){missing}"
    )
    for note in run.notes:
        print_line(f"    {note}")
