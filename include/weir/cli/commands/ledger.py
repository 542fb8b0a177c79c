"""`weir ledger rebuild|upgrade`: maintains the ledger.

Invariant: they use ledger and store of the environment, else those of the local stack.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.documents import OnlyDataflow
from weir.cli.tables import print_line
from weir.environment import opened_services, settings
from weir.errors import Misconfigured
from weir.rebuild.rebuild import UNKNOWN, Rebuilt, RebuiltRun
from weir.rebuild.rebuild import rebuild as rebuild_ledger
from weir.settings import url_without_password

ledger_app = typer.Typer(help="Maintain the ledger.", no_args_is_help=True)


@ledger_app.command()
def rebuild(
    dataflow: OnlyDataflow = None,
    everything: Annotated[bool, typer.Option("--all", help="All dataflows in the store.")] = False,
) -> None:
    """Rebuild the ledger from the store; running attempts are fenced and start again."""
    if (dataflow is None) is not everything:
        raise Misconfigured.of("cli.no_dataflow_to_rebuild")
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
