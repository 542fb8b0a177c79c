"""`weir gc`: deletes unused files from the store.

Invariant: with --dry-run nothing changes, and it lists exactly the files that would be deleted now.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weir.cli.tables import key, number, print_line, print_rows
from weir.environment import opened_services
from weir.errors import Misconfigured, WeirError
from weir.units import format_size, time_from_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from weir.coordination.airflow import Clearer
    from weir.retention.sweep_report import Kept, SweepReport


SHOWN = 20
"""The number of lines that are shown; --json has all."""


def gc(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")] = False,  # noqa: FBT002  Typer's
    full: Annotated[bool, typer.Option("--full", help="Sweep every folder, not only those of recent runs.")] = False,  # noqa: FBT002  Typer's
    older_than: Annotated[
        str | None,
        typer.Option(
            help='Age at which files of attempts that never committed, and unfinished writes, are deleted, like "1 '
            'day". Whole results that the ledger does not know are only reported.',
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Delete results that are no longer needed and files of dead attempts; report what is retained, and why."""
    from weir.retention.sweep import sweep  # noqa: PLC0415  SQLAlchemy is slow to import

    floor = _floor(older_than)
    with opened_services() as services, _airflow() as (clearer, note):
        report = sweep(services, dataflow, is_full=full, is_dry=dry_run, older_than=floor, clearer=clearer)
    report.notes += [note] if note else []
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        _print_report(report)


@contextmanager
def _airflow() -> Iterator[tuple[Clearer | None, str]]:
    """Yield Airflow, to find deleted DagRuns, or None and a note that says why it cannot be asked."""
    from weir.cli.airflow_api import airflow_api  # noqa: PLC0415
    from weir.coordination.clearing import EndpointClearer  # noqa: PLC0415
    from weir.environment import API_VARIABLE  # noqa: PLC0415

    try:
        api = airflow_api(os.environ)
    except WeirError as error:
        yield None, f"Airflow was not asked for deleted runs: {error}"
        return
    if api is None:
        yield None, f"Airflow was not asked for deleted runs ({API_VARIABLE}=http://LOGIN:PASSWORD@HOST:PORT)."
        return
    try:
        yield EndpointClearer(api), ""
    finally:
        api.close()


def _floor(text: str | None) -> timedelta | None:
    if text is None:
        return None
    found = time_from_text("--older-than", text)
    if found is None:
        raise Misconfigured('--older-than is "forever": no file gets that old; expected a time like "1 day"')
    return found


def _print_report(report: SweepReport) -> None:
    console = Console()
    sums = list(_sums(report))
    if sums:
        print_rows((key("what"), key("why"), number("number"), number("bytes")), sums, console)
    else:
        console.print("Nothing is stored that could be deleted.")
    for run in report.expired:
        console.print(f"{'Would expire' if report.is_dry else 'Expired'}: {run.path}: {run.reason}", highlight=False)
    _print_list("Finished results with missing files (`weir verify` checks them)", report.missing)
    _print_list("Unknown to the ledger, and not deleted", report.unknown)
    for note in report.notes:
        print_line(note, console)


def _sums(report: SweepReport) -> Iterator[tuple[str, ...]]:
    would = "would be deleted" if report.is_dry else "deleted"
    for what, sums in (
        (would, report.deleted_by_kind()),
        ("would be released", report.to_release_by_reason()),
        ("kept", report.kept_by_reason()),
    ):
        yield from ((what, why, str(count), format_size(size)) for why, count, size in sums)


def _print_list(title: str, found: Iterable[Kept]) -> None:
    each = list(found)
    if not each:
        return
    lines = [f"  {one.path}: {one.reason}" for one in each[:SHOWN]]
    more = [f"  and {len(each) - SHOWN} more, which --json lists"] if len(each) > SHOWN else []
    print_line("\n".join([f"{title}:", *lines, *more]))
