"""`weir code`: the versions of code that have computed results, what differs between them, and which count as equal.

Invariant: only `same` changes anything, and `--json` has everything that a table leaves out.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.default_command import with_default
from weir.cli.tables import cell, key, number, print_rows, value
from weir.code.generation_rules import short
from weir.environment import opened_services

if TYPE_CHECKING:
    from weir.recovery.versions import EqualVersions, VersionOfTask

VERSION = 1
_VERSIONS = "versions"
_ARCHIVE = 16
"""The number of characters by which a table names an archive."""

code_app = typer.Typer(
    cls=with_default(_VERSIONS), help="Show the versions of code that have computed results, and what differs."
)


@code_app.command(_VERSIONS)
def versions(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """List the versions of code by epoch and region, the default: archive, generation, subtasks, since when.

    The number of subtasks is that of those whose current results this version has computed.
    """
    from weir.recovery.versions import declared_equal, versions_of_tasks  # noqa: PLC0415  SQLAlchemy is slow to import

    with opened_services() as services, services.ledger.transaction() as session:
        found, same = versions_of_tasks(session, dataflow), declared_equal(session, dataflow)
    if as_json:
        print(json.dumps({"version": VERSION, "versions": _plain(found), "equal": _plain(same)}))
        return
    if not found:
        _print("No version is recorded: no region has begun yet. `weir runs` lists the runs")
        return
    print_rows(_COLUMNS, map(_cells, found))
    for each in same:
        _print(_declared(each))


@code_app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A version or an archive, or how it begins.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
) -> None:
    """Show the sources that differ between two versions or archives, as a unified diff."""
    from weir.recovery.versions import difference  # noqa: PLC0415

    with opened_services() as services:
        lines = difference(services, old, new)
    if not lines:
        Console(stderr=True).print("Their sources are equal.")
    for line in lines:
        _print(line)


@code_app.command()
def same(
    stage: Annotated[str, typer.Argument(help="A stage.", show_default=False)],
    old: Annotated[str, typer.Argument(help="A version of its code, or how it begins.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
    dataflow: Annotated[str | None, typer.Option(help="The stage's dataflow, if several have such a stage.")] = None,
) -> None:
    """Declare two versions equal for a stage: results of the one count as made by the other, too."""
    from weir.coordination.read_leases import user_name  # noqa: PLC0415
    from weir.recovery.versions import declare_equal  # noqa: PLC0415

    with opened_services() as services:
        declared, results = declare_equal(services, stage, old, new, user_name(), dataflow)
    _print(f"{_declared(declared)}. {results} result(s) count as made by both now")


_COLUMNS = (
    *(key("epoch"), key("dataflow"), key("region"), value("version"), value("archive")),
    *(number("generation"), number("subtasks"), value("since")),
)


def _cells(each: VersionOfTask) -> tuple[str, ...]:
    return (
        each.epoch,
        each.dataflow,
        each.region,
        short(each.version),
        "" if each.archive is None else each.archive[:_ARCHIVE],
        "" if each.generation is None else str(each.generation),
        str(each.subtasks),
        cell(each.since),
    )


def _declared(each: EqualVersions) -> str:
    return (
        f"{short(each.one)} and {short(each.other)} are equal for stage {each.stage} of {each.dataflow}, as "
        f"{each.declared_by} declared on {each.declared_at:%Y-%m-%d %H:%M:%S} UTC"
    )


def _plain(found: list[VersionOfTask] | list[EqualVersions]) -> list[dict[str, Any]]:
    """Return JSON values; times are in UTC, ISO 8601."""
    return [
        {name: each.isoformat() if hasattr(each, "isoformat") else each for name, each in asdict(one).items()}
        for one in found
    ]


def _print(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
