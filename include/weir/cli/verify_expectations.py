"""`weir verify --expectations`: rows by the suites of their stages, and checkpoints by restoring them.

Invariant: nothing is changed but the ledger's record of what was found; what a drill has written goes with it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from weir.cli.expectation_report import Looked, tell
from weir.cli.progress import Progress
from weir.cli.savepoint_commands import open_store
from weir.cli.services import opened_services
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weir.coordinator.drill import Drilled
    from weir.coordinator.services import Services
    from weir.results.region_job import RegionJob, RegionReport

    Check = Callable[[RegionJob], RegionReport]

NEWEST = "newest"


def verify_expectations(
    name: str | None, checkpoint: str | None, savepoint: str | None, remote: str | None, *, as_json: bool
) -> bool:
    """Check committed results, or what a checkpoint or savepoint restores to; answers whether all is right."""
    if checkpoint is not None and savepoint is not None:
        raise Misconfigured("a drill restores a checkpoint or a savepoint: name one of them")
    check = partial(_checked, remote)
    with opened_services() as services:
        if checkpoint is None and savepoint is None:
            looked = [_asked(services, name, check)]
        else:
            looked = [_told(each) for each in _drills(services, name, checkpoint, savepoint, check)]
    tell(looked, as_json=as_json)
    return all(each.is_right for each in looked)


def _drills(
    services: Services, name: str | None, checkpoint: str | None, savepoint: str | None, check: Check
) -> Sequence[Drilled]:
    """One after the other: each reads all of a dataflow's state."""
    from weir.coordinator.drill import drill  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.coordinator.drill_source import dataflows_with_checkpoints  # noqa: PLC0415

    if checkpoint == NEWEST:
        return [drill(services, each, None, open_store, check) for each in dataflows_with_checkpoints(services, name)]
    which = savepoint if checkpoint is None else checkpoint
    if checkpoint is not None and not checkpoint.isdigit():
        raise Misconfigured(f"--checkpoint {checkpoint}: expected a number, or {NEWEST}")
    if name is None and "/" not in (which or ""):
        raise Misconfigured(f"whose is it? `weir verify DATAFLOW --expectations` with the dataflow of {which}")
    return [drill(services, name or "", which, open_store, check)]


def _checked(remote: str | None, job: RegionJob) -> RegionReport:
    from weir.cli.check_program import checked  # noqa: PLC0415

    progress = Progress(Console(stderr=True))
    total = len(job.to_check)
    with progress.phase(f"checking the rows of {total} partition(s) of {job.dataflow}"):
        return checked(job, remote, os.environ, lambda done: progress.say(f"{done} of {total}"))


def _told(drilled: Drilled) -> Looked:
    done = "restored to a scratch place" if not drilled.problem else "it cannot be restored"
    return Looked(f"{drilled.source}: {done}", drilled.checks, drilled.problem, drilled.is_recorded)


def _asked(services: Services, name: str | None, check: Check) -> Looked:
    from weir.coordinator.asked_checks import ask  # noqa: PLC0415  SQLAlchemy is slow to import

    found = ask(services, name, check)
    return Looked(f"current results of {len(found.runs)} run(s) whose stages have suites", found.checks, "")
