"""`weir verify --expectations`: checks stored rows against suites, and tests the restore of checkpoints.

Invariant: only the ledger's record of the checks changes; the files of a restore test are deleted with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from weir.cli.documents import print_document
from weir.cli.progress import Progress
from weir.cli.tables import OF_RUN, key, number, of_partition, print_line, print_rows, text, value
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.formats.checks import CheckReport
from weir.formats.region_job import CheckJob, RegionReport
from weir.integrity.expectation_checks import Check, ChecksReport, check_expectations
from weir.integrity.restore_test import RestoreTestReport, dataflows_with_checkpoints, run_restore_test

NEWEST = "newest"


def verify_expectations(
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
    print_report(looked, as_json=as_json)
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


def print_report(looked: Sequence[ChecksReport], *, as_json: bool) -> None:
    """Print a line for each check."""
    if as_json:
        print_document(looked_at=[_to_json(each) for each in looked])
        return
    for each in looked:
        print_line(f"{each.what}. {_summary(each)}")
        if each.checks:
            print_rows(_COLUMNS, each.checks)
        if each.problem:
            print_line(each.problem)
        if not (each.is_recorded or each.problem):
            print_line("The ledger does not know this dataflow, so the checks are not recorded")
    if not looked:
        print_line("No dataflow has a retained checkpoint: there is nothing to restore")


def _to_json(looked: ChecksReport) -> dict[str, Any]:
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


_COLUMNS = (
    *(*OF_RUN, key("partition", of_partition), key("suite"), value("attempt"), number("rows")),
    *(value("outcome", lambda row: row.outcome.value), text("what was found", _found)),
)
