"""`weir restore`: a dataflow goes on from a checkpoint or a savepoint.

Invariant: with --dry-run nothing changes, and what it says is what would be done.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weir.environment import open_store, opened_services
from weir.units import format_size

if TYPE_CHECKING:
    from weir.snapshots.restore import Restored


SHOWN = 20


def restore(
    dataflow: Annotated[str, typer.Argument(help="Whose checkpoint or savepoint it is.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|SAVEPOINT", help="A number, a savepoint's name, or its folder.", show_default=False
        ),
    ],
    fork: Annotated[
        str | None,
        typer.Option("--as", help="Let this new dataflow begin with it; the old one goes on.", show_default=False),
    ] = None,
    allow: Annotated[  # noqa: FBT002  Typer's
        bool, typer.Option("--allow-non-restored-state", help="The next epoch may do without states that it has.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,  # noqa: FBT002  Typer's
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Let a dataflow go on from a checkpoint or savepoint: epochs that had read other state run again, in order."""
    from weir.snapshots.restore import Wish  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.snapshots.restore import restore as restore_snapshot  # noqa: PLC0415

    with opened_services(may_be_new=True) as services:
        done = restore_snapshot(services, Wish(dataflow, source, fork, allow, dry_run), open_store)
    if as_json:
        print(json.dumps({"version": 1, "is_dry": dry_run, **asdict(done)}, default=str))
    else:
        _tell(done, is_dry=dry_run, is_fork=fork is not None)


def _tell(done: Restored, *, is_dry: bool, is_fork: bool) -> None:
    restored = [each for each in done.partitions if each.is_restored]
    same = len(done.partitions) - len(restored)
    verb = "Would restore" if is_dry else "Restored"
    _say(f"{verb} {done.source} into {done.dataflow}, lineage {done.lineage}: {len(restored)} partition(s)")
    _say_some([f"{each.partition}" for each in restored])
    if same:
        _say(f"  {same} partition(s) are as they were then, and stay")
    if done.is_repinned:
        _say(f"  the run of epoch {done.epoch} is pinned to what it was then: its other results count no more")
    if done.copied_bytes:
        _say(f"  copied: {format_size(done.copied_bytes)}")
    if restored:
        _say("  its rows are checked when they are first read: the next epoch computes nothing before that")
    if done.fenced:
        _say(f"  fenced, to begin anew: {', '.join(done.fenced)}")
    if done.dropped:
        _say(f"  {done.dropped} owed clear(s) of epoch {done.epoch} dropped")
    _tell_what_follows(done, is_dry=is_dry, is_fork=is_fork)


def _tell_what_follows(done: Restored, *, is_dry: bool, is_fork: bool) -> None:
    if is_fork:
        _say(
            f"Next: a DAG of dataflow {done.dataflow}, whose first run is the one behind epoch {done.epoch}. It writes "
            "all of its state once; until then nothing of that is deleted for the origin."
        )
    elif done.stale:
        will = "would run again" if is_dry else "run again"
        _say(f"Read other state, and {will}:")
        _say_some(done.stale)
        _say(f"  then, one epoch after the other as far as its state comes out otherwise: {', '.join(done.later)}")
    elif done.later:
        _say(f"Nothing behind epoch {done.epoch} has read other state: nothing runs again")
    else:
        _say(f"The next epoch behind {done.epoch} goes on from it")


def _say_some(lines: list[str] | tuple[str, ...]) -> None:
    for line in lines[:SHOWN]:
        _say(f"  {line}")
    if len(lines) > SHOWN:
        _say(f"  and {len(lines) - SHOWN} more, which --json lists")


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
