"""`weir restore`: restores the state of a dataflow from a checkpoint or a savepoint.

Invariant: with --dry-run nothing changes, and the report is the same.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from weir.cli.airflow_api import deliver_pending
from weir.cli.documents import print_document
from weir.cli.options import AsJson, DryRun
from weir.cli.tables import of_partition, print_line, print_some
from weir.environment import open_store, opened_services
from weir.snapshots.restore import Restored, RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.units import format_size
from weir.views.documents import plain

SHOWN = 20


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
        done = restore_snapshot(services, RestoreRequest(dataflow, source, fork, allow, dry_run), open_store)
        said = deliver_pending(services, done.pending_clears, [done.dataflow]) if done.pending_clears else ""
    if as_json:
        print_document(is_dry=dry_run, **plain(done))
    else:
        _print_report(done, is_dry=dry_run, is_fork=fork is not None)
    if said:
        print_line(said, Console(stderr=as_json))


def _print_report(done: Restored, *, is_dry: bool, is_fork: bool) -> None:
    restored = [each for each in done.partitions if each.is_restored]
    same = len(done.partitions) - len(restored)
    verb = "Would restore" if is_dry else "Restored"
    print_line(f"{verb} {done.source} into {done.dataflow}, lineage {done.lineage}: {len(restored)} partition(s)")
    print_some([f"{of_partition(each)} ({each.layout})" for each in restored], SHOWN, "  ")
    if same:
        print_line(f"  {same} partition(s) are unchanged since then, and stay")
    if done.is_repinned:
        print_line(f"  the run of epoch {done.epoch} is pinned to its dataflow of then: its other results become stale")
    if done.copied_bytes:
        print_line(f"  copied: {format_size(done.copied_bytes)}")
    if restored:
        print_line("  its rows are checked when they are first read, before the next epoch computes anything")
    if done.fenced:
        print_line(f"  fenced, to start again: {', '.join(done.fenced)}")
    if done.dropped_clears:
        print_line(f"  {done.dropped_clears} pending clear(s) of epoch {done.epoch} dropped")
    _print_what_follows(done, is_dry=is_dry, is_fork=is_fork)


def _print_what_follows(done: Restored, *, is_dry: bool, is_fork: bool) -> None:
    if is_fork:
        print_line(
            f"Next: a DAG of dataflow {done.dataflow}, whose first run is the one after epoch {done.epoch}. It writes "
            "all of its state once; until then these files of the original dataflow are not deleted."
        )
    elif done.stale:
        will = "would run again" if is_dry else "run again"
        print_line(f"Read other state, and {will}:")
        print_some([str(each) for each in done.stale], SHOWN, "  ")
        print_line(f"  then, one epoch after the other while the state differs: {', '.join(done.later_runs)}")
    elif done.later_runs:
        print_line(f"No run after epoch {done.epoch} has read other state: nothing runs again")
    else:
        print_line(f"The next epoch after {done.epoch} continues from it")
