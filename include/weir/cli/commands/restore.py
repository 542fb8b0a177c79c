"""`weir restore`: restores the state of a dataflow from a checkpoint or a savepoint.

Invariant: with --dry-run nothing changes, and the report is the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weir.cli.tables import print_line
from weir.environment import open_store, opened_services
from weir.units import format_size

if TYPE_CHECKING:
    from weir.snapshots.restore import Restored


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
    allow: Annotated[  # noqa: FBT002  Typer's
        bool,
        typer.Option(
            "--allow-non-restored-state", help="Let the next epoch ignore states that no stage declares any more."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")] = False,  # noqa: FBT002  Typer's
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Restore a dataflow from a checkpoint or savepoint; epochs that read other state run again, in order."""
    from weir.cli.airflow_api import deliver_pending  # noqa: PLC0415  HTTPX is slow to import
    from weir.snapshots.restore import RestoreRequest  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.snapshots.restore import restore as restore_snapshot  # noqa: PLC0415

    with opened_services(may_be_new=True) as services:
        done = restore_snapshot(services, RestoreRequest(dataflow, source, fork, allow, dry_run), open_store)
        said = deliver_pending(services, done.owed, [done.dataflow]) if done.owed else ""
    if as_json:
        print(json.dumps({"version": 1, "is_dry": dry_run, **done.to_json()}))
    else:
        _print_report(done, is_dry=dry_run, is_fork=fork is not None)
    if said:
        print_line(said, Console(stderr=as_json))


def _print_report(done: Restored, *, is_dry: bool, is_fork: bool) -> None:
    restored = [each for each in done.partitions if each.is_restored]
    same = len(done.partitions) - len(restored)
    verb = "Would restore" if is_dry else "Restored"
    print_line(f"{verb} {done.source} into {done.dataflow}, lineage {done.lineage}: {len(restored)} partition(s)")
    _print_some([f"{each.partition}" for each in restored])
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
    if done.dropped:
        print_line(f"  {done.dropped} pending clear(s) of epoch {done.epoch} dropped")
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
        _print_some([str(each) for each in done.stale])
        print_line(f"  then, one epoch after the other while the state differs: {', '.join(done.later)}")
    elif done.later:
        print_line(f"No run after epoch {done.epoch} has read other state: nothing runs again")
    else:
        print_line(f"The next epoch after {done.epoch} continues from it")


def _print_some(lines: list[str] | tuple[str, ...]) -> None:
    for line in lines[:SHOWN]:
        print_line(f"  {line}")
    if len(lines) > SHOWN:
        print_line(f"  and {len(lines) - SHOWN} more, which --json lists")
