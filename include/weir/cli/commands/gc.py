"""`weir gc`: deletes unused files from the store.

Invariant: with --dry-run nothing changes, and it lists exactly the files that would be deleted now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from weir.cli.airflow_api import airflow_if_reached
from weir.cli.documents import AsJson, DryRun, OnlyDataflow, print_document
from weir.cli.tables import key, number, print_cells, print_line, print_some
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Kept, SweepReport
from weir.units import format_size, time_from_text
from weir.views.documents import plain

SHOWN = 20
"""The number of lines that are shown; --json has all."""


def gc(
    dataflow: OnlyDataflow = None,
    dry_run: DryRun = False,
    full: Annotated[bool, typer.Option("--full", help="Sweep every folder, not only those of recent runs.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            help='Age at which files of attempts that never committed, and unfinished writes, are deleted, like "1 '
            'day". Whole results that the ledger does not know are only reported. What it does not name at all may be '
            "of a restore that is under way, and stays for orphan_age at least.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete results that are no longer needed and files of dead attempts; report what is retained, and why."""
    floor = _floor(older_than)
    with opened_services() as services, airflow_if_reached("for deleted runs") as asked:
        report = sweep(services, dataflow, is_full=full, is_dry=dry_run, older_than=floor, clearer=asked.airflow)
    report.notes += [] if asked.airflow else [asked.why_not]
    if as_json:
        print_document(**_document(report))
    else:
        _print_report(report)


def _floor(text: str | None) -> timedelta | None:
    if text is None:
        return None
    found = time_from_text("--older-than", text)
    if found is None:
        raise Misconfigured.of("cli.floor_is_forever")
    return found


def _document(report: SweepReport) -> dict[str, Any]:
    released = [
        {"run": each.run, **plain(each.partition), "attempt": each.attempt, "bytes": each.bytes}
        | {"keeper": decision.keeper.value, "reason": decision.reason}
        for decision in report.to_release
        for each in (decision.stored,)
    ]
    expired = [{"run": each.path, "bytes": each.bytes, "reason": each.reason} for each in report.expired]
    return {**plain(report), "deleted_bytes": report.deleted_bytes, "to_release": released, "expired": expired}


def _print_report(report: SweepReport) -> None:
    sums = list(_sums(report))
    if sums:
        print_cells((key("what"), key("why"), number("number"), number("bytes")), sums)
    else:
        print_line("Nothing is stored that could be deleted.")
    for run in report.expired:
        print_line(f"{'Would expire' if report.is_dry else 'Expired'}: {run.path}: {run.reason}")
    _print_list("Finished results with missing files (`weir verify` checks them)", report.missing)
    _print_list("Unknown to the ledger, and not deleted", report.unknown)
    for note in report.notes:
        print_line(note)


def _sums(report: SweepReport) -> Iterator[tuple[str, ...]]:
    would = "would be deleted" if report.is_dry else "deleted"
    for what, sums in (
        (would, report.deleted_by_kind()),
        ("would be released", report.to_release_by_reason()),
        ("kept", report.kept_by_reason()),
    ):
        yield from ((what, why, f"{count:,}", format_size(size)) for why, count, size in sums)


def _print_list(title: str, things: Sequence[Kept]) -> None:
    if things:
        print_line(f"{title}:")
        print_some([f"{each.path}: {each.reason}" for each in things], SHOWN, "  ")
