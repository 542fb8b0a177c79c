"""`weir restore`: restores the state of a dataflow from a checkpoint or a savepoint.

Invariant: with --dry-run nothing changes, and the report is the same.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from weir.cli.airflow_api import deliver_pending
from weir.cli.documents import AsJson, DryRun, print_document
from weir.cli.tables import print_line
from weir.environment import opened_services
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.views.checkpoints import restore_fields


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
