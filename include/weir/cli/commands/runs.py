"""`weir dataflows`, `weir runs`, `weir run show|adopt`: all dataflows, their runs, and one run.

Invariant: only `weir run adopt` changes anything.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.airflow_api import airflow_if_reached
from weir.cli.documents import AsJson, Listing, OnlyDataflow, RunName, print_document
from weir.cli.plan_report import amount
from weir.cli.tables import at, key, number, print_line, print_rows, size, text
from weir.environment import opened_services
from weir.ledger.names import NO_RUN
from weir.recovery.adopt import adopt as adopt_run
from weir.recovery.questions import Question
from weir.views.dataflows import DataflowOverview, dataflow_details, dataflow_overviews, standings_of_runs, upkeep_of
from weir.views.graphs import RegionNode
from weir.views.runs import LostCommits, RunOverview, lost_commits, run_details, run_overviews
from weir.wording import first_few

NEWEST = 30
"""The default number of runs of a dataflow that are listed: the state of each is read."""

FAILED = 5
"""The largest number of tasks that have failed in a row of `weir runs`."""

SHOWN = 3
"""The largest number of tasks that failed to begin in a row of `weir runs`."""

run_app = typer.Typer(help="Show or change a run.", no_args_is_help=True)

Look = Annotated[bool, typer.Option("--look", help="Look for each result in the store, as `weir plan` does.")]


def dataflows(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """Show all dataflows: their newest run, what is open, what is at rest, and who is behind.

    Of one dataflow, --json also has its runs, and its regions with their exchanges.
    """
    with opened_services() as services:
        if dataflow is not None:
            details = dataflow_details(services, dataflow, airflow_if_reached, with_kept=True)
            if as_json:
                print_document(dataflow=details)
                return
            found = [details.overview]
        else:
            found = dataflow_overviews(services, airflow_if_reached)
        upkeep = upkeep_of(services)
    if as_json:
        print_document(dataflows=found, upkeep=upkeep)
        return
    _DATAFLOWS.show(found, as_json=False)
    for each in found:
        for standing in each.open:
            print_line(str(standing))
    if upkeep is None or upkeep.is_late:
        since = "was never done" if upkeep is None else f"was last done at {at(upkeep.done_at)}"
        print_line(f"Upkeep {since}: is the DAG weir_upkeep unpaused?")


@run_app.command()
def show(run: RunName, look: Look = False, as_json: AsJson = False) -> None:
    """Show a run: in one sentence how it stands, its regions, what would run again, and its failovers."""
    with opened_services() as services:
        found = run_details(services, Question(run, looks=look), airflow_if_reached)
    if as_json:
        print_document(run=found)
        return
    print_line(f"{found.run} ({found.run_id} of {found.dag_id}): {found.sentence}")
    if found.graph is not None:
        print_rows(_REGIONS, found.graph.regions)
    for each in found.failovers:
        print_line(
            f"{at(each.decided_at)}  failover {each.id} ({each.kind.value}): {each.cause}; recomputed "
            f"{amount(each.recomputed)}, spared {each.spared}"
        )


def _newest(each: DataflowOverview) -> str:
    if each.newest is None:
        return ""
    return f"{each.newest.epoch}: {_versions(each.newest) or 'nothing published'}"


def _open(each: DataflowOverview) -> str:
    stands = [standing.stand.value.replace("_", " ") for standing in each.open]
    return ", ".join(f"{stands.count(stand)} {stand}" for stand in dict.fromkeys(stands)) or "none"


_DATAFLOWS = Listing(
    "dataflows",
    (
        key("dataflow"),
        text("newest run", _newest),
        text("open runs", _open),
        number("pending clears", "pending_clears"),
        size("at rest", "bytes_at_rest"),
        text(
            "newest checkpoint", lambda each: each.checkpoint and f"{each.checkpoint.number} of {each.checkpoint.epoch}"
        ),
        number("checks not met", "violated"),
        text("behind", lambda each: ", ".join(each.behind)),
    ),
    f"The ledger is empty: {NO_RUN}.",
)


def _stands(region: RegionNode) -> str:
    statuses = [each.status.value for each in region.subtasks]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


_REGIONS = (
    key("region", "name"),
    text("stages", lambda each: ", ".join(stage.name for stage in each.stages)),
    text("subtasks", _stands),
    number("rows"),
    size("bytes"),
)


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


def runs(
    dataflow: OnlyDataflow = None,
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest runs of each dataflow; 0: all.")] = NEWEST,
    as_json: AsJson = False,
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
    if as_json:
        print_document(runs=found, older=older, standings=stand, lost_commits=lost)
        return
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
    late = f"; late files: {run.late_files} (`weir run show {run.name}`)" if run.late_files else ""
    return f"{state}{late}{_came_again(run)}{_not_begun(run)}"


def _versions(run: RunOverview) -> str:
    return ", ".join(f"{sink} v{version}" for sink, version in run.published.items())


_RUNS = (
    key("epoch"),
    key("dataflow"),
    key("run id", "run_id"),
    text("regions", _regions),
    text("published", lambda run: _versions(run) or "-"),
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
