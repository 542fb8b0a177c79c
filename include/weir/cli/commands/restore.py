"""`weir restore`, `weir replay`, `weir seal`, `weir stop`, `weir start`: bring state back, and go on.

Invariant: with --dry-run, or without --apply, nothing changes, and the report is the same.
"""

from __future__ import annotations

from time import sleep
from typing import Annotated

import typer
from rich.console import Console

from weir.cli.airflow_api import airflow_to_clear, deliver_pending
from weir.cli.documents import AsJson, DataflowName, DryRun, RunName, print_document
from weir.cli.plan_report import amount, cost_cells
from weir.cli.tables import key, number, print_cells, print_line
from weir.coordination.read_leases import user_name
from weir.environment import opened_services
from weir.snapshots.replay import ReplayPlan, replay_plan
from weir.snapshots.replay import replay as replay_runs
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.snapshots.savepoint import SavepointRequest, create
from weir.snapshots.seal import SealPlan, seal_plan, seal_run
from weir.snapshots.stop import start as start_dataflow
from weir.snapshots.stop import stop as stop_dataflow
from weir.views.checkpoints import restore_fields
from weir.views.documents import plain
from weir.wording import first_few

SHOWN = 5
"""The largest number of tasks or runs that are named of a kind."""


def restore(
    dataflow: Annotated[str, typer.Argument(help="The dataflow of the checkpoint or savepoint.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|SAVEPOINT", help="A number, a savepoint's name, or its folder.", show_default=False
        ),
    ],
    fork: Annotated[
        str | None,
        typer.Option(
            "--as", help="Fork: a new dataflow of this name starts from it; the old one continues.", show_default=False
        ),
    ] = None,
    allow: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state", help="Let the next epoch ignore states that no stage declares any more."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Restore a dataflow from a checkpoint or savepoint; epochs that read other state run again, in order."""
    with opened_services(may_be_new=True) as services:
        done = restore_snapshot(services, RestoreRequest(dataflow, source, fork, allow, dry_run))
        said = deliver_pending(services, done.pending_clears, [done.dataflow]) if done.pending_clears else ""
    if as_json:
        print_document(**restore_fields(done, looked_at=services.now() if dry_run else None))
    else:
        for line in done.lines(is_dry=dry_run, is_fork=fork is not None):
            print_line(line)
    if said:
        print_line(said, Console(stderr=as_json))


_RUNS = (key("run"), number("tasks"), number("rows"), number("bytes"), number("seconds"))


def replay(
    dataflow: Annotated[str, typer.Argument(help="The dataflow.", show_default=False)],
    first: Annotated[
        str | None, typer.Option("--from", help="The first epoch, or the day of it.  [default: its first epoch]")
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="The last epoch, or the day of it.  [default: its newest epoch]")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Discard their results, and compute them again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compute epochs again from their sources, in order, with the dataflow and code that are deployed then.

    It shows the cost first. Published versions stay until their run closes again. Where it was interrupted, the same
    command goes on.
    """
    with opened_services() as services:
        plan = replay_plan(services, dataflow, first, last)
        if as_json:
            print_document(**plain(plan))
        else:
            _print_replay(plan)
        if not apply:
            count = len(plan.runs)
            print_line(
                f"Nothing is changed. With --apply, the results of {count} run(s) are discarded, and all is computed.",
                Console(stderr=as_json),
            )
            return
        with airflow_to_clear() as airflow:
            cleared = replay_runs(services, plan, airflow, lambda run: print_line(f"{run} is free", _ERR))
    print_line(
        f"{cleared} task instance(s) of {len(plan.runs)} run(s) are cleared in Airflow, which runs them in order; "
        f"`weir runs {dataflow}` shows how far they are.",
        Console(stderr=as_json),
    )


def seal(
    run: RunName,
    apply: Annotated[bool, typer.Option("--apply", help="Seal it, and have later runs go on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Close an epoch without what has failed for good: later ones go on from the epoch before it.

    It publishes nothing then. It shows first what that comes to. Once a person clears a task of it, the seal is lifted,
    and later epochs that have gone on without it run again.
    """
    with opened_services() as services:
        plan = seal_plan(services, run)
        if as_json:
            print_document(**plain(plan))
        else:
            _print_seal(plan)
        if not apply:
            print_line("Nothing is changed. With --apply, it is sealed.", Console(stderr=as_json))
            return
        with airflow_to_clear() as airflow:
            for line in seal_run(services, plan, airflow, user_name()):
                print_line(line, Console(stderr=as_json))


def _print_seal(plan: SealPlan) -> None:
    if plan.impossible:
        print_line(f"{plan.run} cannot be sealed: {plan.impossible}.")
        return
    goes_on = f"from {plan.before}, as if {plan.run} had changed nothing"
    if plan.sealed_why:
        print_line(f"{plan.run} is sealed already ({plan.sealed_why}): later epochs go on {goes_on}.")
    else:
        print_line(f"Later epochs go on {goes_on}.")
    told = (
        ("has failed", plan.failed),
        ("running, and fenced then", plan.running),
        ("publishes nothing of the epoch", plan.sinks),
        ("keeps what it was to read, for when the run is mended", plan.kept),
        ("runs again, as it has read the run", plan.reruns),
        ("goes on", plan.followers),
    )
    for what, names in told:
        if names:
            print_line(f"{what}: {first_few(names, SHOWN)}")


def stop(
    dataflow: DataflowName,
    savepoint: Annotated[bool, typer.Option("--savepoint", help="Create a savepoint of its last checkpoint.")] = False,
) -> None:
    """Stop a dataflow after the epochs that have begun: wait until they are closed, and pause its DAG.

    No task of a later epoch begins until `weir start`. Where it was interrupted, type it again.
    """
    with opened_services() as services:
        with airflow_to_clear() as airflow:
            stopped = stop_dataflow(services, dataflow, airflow, lambda line: print_line(line, _ERR), sleep)
        print_line(f"{dataflow} has stopped after epoch {stopped.epoch}; its DAG {stopped.dag_id} is paused.")
        if savepoint and stopped.keeps_state:
            print_line(str(create(services, SavepointRequest(dataflow))))
    print_line(f"Next: change what you want, then `weir start {dataflow}`.")


def start(
    dataflow: DataflowName,
    source: Annotated[
        str | None,
        typer.Option("--from", help="A checkpoint or savepoint, as for `weir restore`.", show_default=False),
    ] = None,
) -> None:
    """Have a dataflow that was stopped go on, from its last checkpoint or from an earlier snapshot.

    With --from, it is as after `weir restore`: later epochs run again. Whether its states fit what is declared by then,
    the first task that begins checks before it runs anything.
    """
    with opened_services() as services, airflow_to_clear() as airflow:
        if source is not None:
            done = restore_snapshot(services, RestoreRequest(dataflow, source))
            for line in done.lines(is_dry=False, is_fork=False):
                print_line(line)
        dag_id = start_dataflow(services, dataflow, airflow)
    print_line(f"{dataflow} goes on; its DAG {dag_id} is unpaused.")


_ERR = Console(stderr=True)


def _print_replay(plan: ReplayPlan) -> None:
    print_cells(_RUNS, ((each.run, str(each.cost.regions), *cost_cells(each.cost)) for each in plan.runs))
    begins = f"with the state at the end of {plan.before}" if plan.before else "without state"
    print_line(
        f"{len(plan.runs)} run(s), in order; the first one begins {begins}. When they ran last: {amount(plan.cost)}."
    )
    if plan.impossible:
        print_line(f"It cannot begin: {plan.impossible}")
