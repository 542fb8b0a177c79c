"""`weir code`: the versions of code that have computed results, what differs between them, and which count as equal.

Invariant: only `same` changes anything.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from weir.cli.default_command import with_default
from weir.cli.documents import AsJson, Listing, OnlyDataflow
from weir.cli.tables import key, number, print_line, value
from weir.code.generation_rules import short
from weir.coordination.read_leases import user_name
from weir.environment import opened_services
from weir.recovery.versions import EqualVersions, declare_equal
from weir.views.code import declared_equal, difference, versions_of_tasks

_VERSIONS = "versions"
_ARCHIVE = 16
"""The number of characters by which a table names an archive."""

code_app = typer.Typer(
    cls=with_default(_VERSIONS), help="Show the versions of code that have computed results, and what differs."
)


@code_app.command(_VERSIONS)
def versions(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """List the versions of code by epoch and region, the default: archive, generation, subtasks, since when.

    The number of subtasks is that of those whose current results this version has computed.
    """
    with opened_services() as services, services.ledger.transaction() as session:
        found, same = versions_of_tasks(session, dataflow), declared_equal(session, dataflow)
    _CODE.show(found, as_json=as_json, equal=same)
    for each in () if as_json or not found else same:
        print_line(_declared(each))


_CODE = Listing(
    "versions",
    (
        *(key("epoch"), key("dataflow"), key("region"), value("version", lambda row: short(row.version))),
        value("archive", lambda row: row.archive and row.archive[:_ARCHIVE]),
        *(number("generation", form=""), number("subtasks"), value("since")),
    ),
    "No version is recorded: no region has begun yet. `weir runs` lists the runs",
)


@code_app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A version or an archive, or how it begins.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
) -> None:
    """Show the sources that differ between two versions or archives, as a unified diff."""
    with opened_services() as services:
        lines = difference(services, old, new)
    if not lines:
        Console(stderr=True).print("Their sources are equal.")
    for line in lines:
        print_line(line)


@code_app.command()
def same(
    stage: Annotated[str, typer.Argument(help="A stage.", show_default=False)],
    old: Annotated[str, typer.Argument(help="A version of its code, or how it begins.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
    dataflow: Annotated[str | None, typer.Option(help="The stage's dataflow, if several have such a stage.")] = None,
) -> None:
    """Declare two versions equal for a stage: results of the one count as made by the other, too."""
    with opened_services() as services:
        declared, results = declare_equal(services, stage, old, new, user_name(), dataflow)
    print_line(f"{_declared(declared)}. {results} result(s) count as made by both now")


def _declared(each: EqualVersions) -> str:
    return (
        f"{short(each.one)} and {short(each.other)} are equal for stage {each.stage} of {each.dataflow}, as "
        f"{each.declared_by} declared on {each.declared_at:%Y-%m-%d %H:%M:%S} UTC"
    )
