"""`weir verify`: reads every byte of stored results again.

Invariants: a bad result is recorded, so that no task reads it; it is recomputed only with --repair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any

import typer

from weir.cli.airflow_api import deliver_pending
from weir.cli.commands.verify_expectations import verify_expectations
from weir.cli.documents import AsJson, OnlyRunOrDataflow, print_document
from weir.cli.progress import byte_progress
from weir.cli.tables import OF_RUN, key, of_partition, print_line, print_rows, print_some, size, text, value
from weir.coordination.read_leases import leased_reading, reader
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.formats.programs import ResultToCheck
from weir.integrity.content import contents_to_check, with_contents
from weir.integrity.repair import repair_runs
from weir.integrity.states import state_copies, state_inconsistencies
from weir.integrity.verification import VerifyReport, verify_runs
from weir.integrity.verify import VerifiedResult
from weir.ledger.runs import dataflow_of
from weir.recovery.repair import Repair
from weir.views.documents import plain

EXIT_BAD = 1


def verify(
    name: OnlyRunOrDataflow = None,
    content: Annotated[bool, typer.Option("--content", help="Recompute the digests of all rows with Spark.")] = False,
    remote: Annotated[
        str | None,
        typer.Option(
            help="For --content and --expectations: a Spark Connect server, sc://host:port.", show_default=False
        ),
    ] = None,
    expectations: Annotated[
        bool, typer.Option("--expectations", help="Check rows against the suites of their stages with Spark.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="N|newest", help="For --expectations: test the restore of this checkpoint.", show_default=False
        ),
    ] = None,
    savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|URL", help="For --expectations: test the restore of this savepoint.", show_default=False
        ),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Recompute bad results that are needed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read results again and check sizes, digests of bytes, page checksums, manifests and published versions.

    Exit code 1 means that something is bad.
    """
    if expectations or checkpoint is not None or savepoint is not None:
        if content or repair or not expectations:
            raise Misconfigured.of("cli.verify_options_clash")
        is_right = verify_expectations(name, checkpoint, savepoint, remote, as_json=as_json)
        if not is_right:
            raise typer.Exit(EXIT_BAD)
        return
    if remote is not None and not content:
        raise Misconfigured.of("cli.remote_in_vain")
    with opened_services() as services:
        report = verify_runs(services, name, "weir verify", byte_progress)
        if content:
            report = _with_contents(services, report, remote)
        repairs = repair_runs(services, report.bad, report.misfits) if repair else ()
        said = _settled(services, repairs) if any(each.owed for each in repairs) else ""
    print_report(report, repairs, said, as_json=as_json)
    if not report.is_right:
        raise typer.Exit(EXIT_BAD)


def _with_contents(services: Services, report: VerifyReport, remote: str | None) -> VerifyReport:
    from weir.cli.programs import recomputed  # noqa: PLC0415  pyarrow is slow to import

    there: set[int] = set()
    with ExitStack() as leases:
        for dataflow in sorted({dataflow_of(each.run) for each in report.verified}):
            numbers = [each.result for each in report.verified if dataflow_of(each.run) == dataflow]
            lease = leases.enter_context(leased_reading(services, dataflow, numbers, reader("weir verify --content")))
            there |= lease.results
        found = [each for each in report.verified if each.result in there]
        results = contents_to_check(services, found)
        copies = state_copies(services, report.runs, found, results)
        asked = (*results, *(each.asked for each in copies))
        sizes = _sizes(report, asked)
        answers = []
        with byte_progress(f"digesting the rows of {len(asked)} result(s)", sum(sizes.values())) as watch:
            for answer in recomputed(asked, remote, os.environ) if asked else ():
                answers.append(answer)
                watch(sizes[answer.number])
        verified = with_contents(services, report.verified, results, answers)
        misfits = state_inconsistencies(services, copies, answers)
        return replace(report, verified=verified, misfits=(*report.misfits, *misfits))


def _sizes(report: VerifyReport, asked: Iterable[ResultToCheck]) -> dict[int, int]:
    """Return the bytes to read for each result: those of keyed state are in all of its files."""
    results = {each.result: each.bytes for each in report.verified}
    return {
        each.number: results[each.number] if each.state is None else sum(file.bytes for file in each.state.files)
        for each in asked
    }


def _settled(services: Services, repairs: Sequence[Repair]) -> str:
    """Deliver the clears if Airflow can be reached; return what was done and what is left."""
    dataflows = sorted({dataflow_of(each.run) for each in repairs})
    return deliver_pending(services, sum(each.owed for each in repairs), dataflows)


SHOWN = 40
"""The number of lines that are shown; --json has all."""


def print_report(report: VerifyReport, repairs: Sequence[Repair], settled: str, *, as_json: bool) -> None:
    """Print the outcomes, the repairs, and the next commands."""
    if as_json:
        print_document(**_document(report, repairs))
        return
    print_line(str(report))
    if report.bad:
        print_rows(_COLUMNS, report.bad[:SHOWN])
    print_some([str(each) for each in report.misfits], SHOWN)
    for repair in repairs:
        print_line(str(repair))
    if settled:
        print_line(settled)
    if report.bad and not repairs:
        runs = sorted({each.run for each in report.bad if each.is_current and each.loss is not None})
        advice = [f"`weir verify {run} --repair` recomputes the bad results of {run} that are needed" for run in runs]
        print_some(advice, SHOWN)


_REST_OF_SHA256 = re.compile(r"(?<=\b[0-9a-f]{12})[0-9a-f]{52}\b")


def _detail(result: VerifiedResult) -> str:
    return _REST_OF_SHA256.sub("...", result.detail.replace(f"{result.folder}/", ""))


_COLUMNS = (
    *(*OF_RUN, key("result", of_partition), key("layout"), key("attempt"), size("bytes")),
    *(value("it is", lambda row: row.outcome.value), text("what was found", _detail)),
)


def _document(report: VerifyReport, repairs: Sequence[Repair]) -> dict[str, Any]:
    return {
        "runs": report.runs,
        "results": {outcome: {"results": count, "bytes": size} for outcome, (count, size) in report.counts().items()},
        "bad": [_to_json(each) for each in report.bad],
        "misfits": report.misfits,
        "repairs": repairs,
    }


def _to_json(result: VerifiedResult) -> dict[str, Any]:
    found = {name: value for name, value in plain(result).items() if name not in {"loss", "result"}}
    return found | {"fault": result.loss.fault if result.loss else None}
