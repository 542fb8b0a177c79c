"""`weir verify`: reads every byte of stored results again, or checks rows against suites and tests restores.

Invariants: a bad result is recorded, so that no task reads it; it is recomputed only with --repair. With --expectations
only the ledger's record of the checks changes; the files of a restore test are deleted with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.cli.airflow_api import deliver_pending
from weir.cli.documents import AsJson, OnlyRunOrDataflow, print_document
from weir.cli.progress import Progress, byte_progress
from weir.cli.tables import OF_RUN, key, number, of_partition, print_line, print_rows, print_some, size, text, value
from weir.coordination.read_leases import leased_reading, reader
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.formats.checks import CheckReport
from weir.formats.programs import ResultToCheck
from weir.formats.region_job import CheckJob, RegionReport
from weir.integrity.content import contents_to_check, with_contents
from weir.integrity.expectation_checks import Check, ChecksReport, check_expectations
from weir.integrity.repair import repair_runs
from weir.integrity.restore_test import RestoreTestReport, dataflows_with_checkpoints, run_restore_test
from weir.integrity.states import state_copies, state_inconsistencies
from weir.integrity.verification import VerifyReport, verify_runs
from weir.integrity.verify import VerifiedResult
from weir.ledger.runs import dataflow_of
from weir.recovery.repair import Repair
from weir.views.documents import plain

EXIT_BAD = 1

NEWEST = "newest"
"""The newest checkpoint, in the place of its number."""


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
    """Read results again: sizes, digests of bytes, page checksums, manifests, published versions, tables of states.

    Exit code 1 means that something is bad.
    """
    if expectations or checkpoint is not None or savepoint is not None:
        if content or repair or not expectations:
            raise Misconfigured.of("cli.verify_options_clash")
        is_right = _check_expectations(name, checkpoint, savepoint, remote, as_json=as_json)
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


# Checks of rows, and tests of restores


def _check_expectations(
    name: str | None, checkpoint: str | None, savepoint: str | None, remote: str | None, *, as_json: bool
) -> bool:
    """Check committed results, or the restored state of a checkpoint or savepoint; return whether all checks pass."""
    if checkpoint is not None and savepoint is not None:
        raise Misconfigured.of("cli.nothing_to_restore")
    check = partial(_checked, remote)
    with opened_services() as services:
        if checkpoint is None and savepoint is None:
            looked: Sequence[ChecksReport] = [check_expectations(services, name, check)]
        else:
            looked = _drills(services, name, checkpoint, savepoint, check)
    print_checks(looked, as_json=as_json)
    return all(each.is_right for each in looked)


def _drills(
    services: Services, name: str | None, checkpoint: str | None, savepoint: str | None, check: Check
) -> Sequence[RestoreTestReport]:
    """Test the restores one after the other: each reads all of a dataflow's state."""
    if checkpoint == NEWEST:
        return [run_restore_test(services, each, None, check) for each in dataflows_with_checkpoints(services, name)]
    which = savepoint if checkpoint is None else checkpoint
    if checkpoint is not None and not checkpoint.isdigit():
        raise Misconfigured.of("cli.checkpoint_malformed", checkpoint=checkpoint, newest=NEWEST)
    if name is None and "/" not in (which or ""):
        raise Misconfigured.of("cli.dataflow_not_named", which=which)
    return [run_restore_test(services, name or "", which, check)]


def _checked(remote: str | None, job: CheckJob) -> RegionReport:
    from weir.cli.programs import checked  # noqa: PLC0415  pyarrow is slow to import

    progress = Progress(Console(stderr=True))
    total = len(job.to_check)
    with progress.phase(f"checking the rows of {total} partition(s) of {job.dataflow}"):
        return checked(job, remote, os.environ, lambda done: progress.say(f"{done} of {total}"))


def print_checks(looked: Sequence[ChecksReport], *, as_json: bool) -> None:
    """Print a line for each check."""
    if as_json:
        print_document(looked_at=[_of_checks(each) for each in looked])
        return
    for each in looked:
        print_line(f"{each.what}. {_summary(each)}")
        if each.checks:
            print_rows(_OF_CHECKS, each.checks)
        if each.problem:
            print_line(each.problem)
        if not (each.is_recorded or each.problem):
            print_line("The ledger does not know this dataflow, so the checks are not recorded")
    if not looked:
        print_line("No dataflow has a retained checkpoint: there is nothing to restore")


def _of_checks(looked: ChecksReport) -> dict[str, Any]:
    names = ("run", "stage", "subtask", "layout", "attempt", "suite", "outcome", "rows", "results")
    found = {name: getattr(looked, name) for name in ("what", "is_right", "problem", "is_recorded")}
    return {**found, "checks": [{name: getattr(check, name) for name in names} for check in looked.checks]}


def _summary(looked: ChecksReport) -> str:
    failed = sum(bool(each.violated) for each in looked.checks)
    if looked.problem:
        return "Nothing could be checked"
    return f"{len(looked.checks)} check(s), {failed or 'none'} failed"


def _found(check: CheckReport) -> str:
    wrong = "; ".join(str(each) for each in check.results if not each.success)
    return wrong or f"{len(check.results)} expectation(s) met"


_OF_CHECKS = (
    *(*OF_RUN, key("partition", of_partition), key("suite"), value("attempt"), number("rows")),
    *(value("outcome", lambda row: row.outcome.value), text("what was found", _found)),
)
