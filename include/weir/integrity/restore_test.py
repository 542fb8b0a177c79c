"""Restore test: restore a checkpoint or savepoint to a scratch place and check what comes out.

Invariant: it is restored as a fork by the same code as any restore, into a scratch place that is deleted afterwards;
the deployment's ledger receives only the record of what was found. A retained snapshot that cannot be read is a
finding, not an error of the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import select

from weir.coordination.read_leases import leased_reading, reader
from weir.coordination.services import Services
from weir.errors import Loss, Misconfigured
from weir.formats.checkpoint import Checkpoint, fingerprint
from weir.formats.checks import CheckOutcome, CheckReason, CheckReport, ExpectationResult
from weir.formats.manifest import Manifest, parsed_digest
from weir.formats.paths import checkpoint_path, name_of
from weir.formats.region_job import RegionReport, RestoredToCheck
from weir.formats.savepoint import SAVEPOINT
from weir.formats.suite import Severity
from weir.integrity.expectation_checks import Check, ChecksReport
from weir.ledger.checkpoints import complete, enter_checkpoint, is_retained, restorable, savepoint_url
from weir.ledger.database.tables import CheckpointRow, DataflowRow, ResultRow
from weir.ledger.names import require_dataflow
from weir.ledger.results import reference
from weir.ledger.runs import ensure_dataflow, runs_of, topology_of
from weir.quality.check_queries import enter_checks
from weir.quality.rules import described
from weir.quality.stored_checks import checking_job, checks_now, recorded_by, to_check
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.scratch import RestoreTestPlace, restore_test_place
from weir.snapshots.source import (
    Source,
    folder_at,
    folder_of_savepoint,
    is_retained_now,
    read_checkpoint,
    read_savepoint,
)
from weir.store.errors import NotFound
from weir.store.verification import compare_results
from weir.topology.regions import PartitionId

FILES_AS_RECORDED = "weir_files_as_recorded"
"""The built-in check without Spark: all bytes are as they were written."""

RESTORABLE = "weir_restorable"
"""The built-in check that is reported only if it fails: all files are present, with their sizes."""

ROUNDS = 3
"""How often a test of the newest checkpoint is repeated because that was subsumed meanwhile."""

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTestReport(ChecksReport):
    """The checks of a restored snapshot; `problem` says why it could not be restored, and is else empty."""

    source: str
    epoch: str
    copied_bytes: int = 0

    def lines(self) -> list[str]:
        """Return the report as text, a line for each check."""
        if self.problem:
            return [f"{self.source} cannot be restored: {self.problem}"]
        failed = sum(each.outcome is CheckOutcome.FAILED for each in self.checks)
        return [
            f"{self.source} was restored to a scratch place: {len(self.checks)} check(s), {failed or 'none'} failed",
            *(f"  {each.outcome.value}: {_described(each)}" for each in self.checks),
        ]


@dataclass(frozen=True, slots=True)
class RestoreTestSource:
    """A checkpoint or savepoint; if it cannot be read, `source` is a text that says why.

    `name` is the argument for a restore, `description` the text for a person.
    """

    source: Source | str
    name: str
    description: str
    epoch: str


def dataflows_with_checkpoints(services: Services, name: str | None) -> tuple[str, ...]:
    """Return the dataflows with a retained checkpoint: all, or the one of that name.

    Raises Misconfigured if the ledger does not know the dataflow, or it has no checkpoint.
    """
    with services.ledger.transaction() as session:
        kept = {row.dataflow for row in session.query(CheckpointRow).where(is_retained()) if not row.is_savepoint}
        if name is None:
            return tuple(sorted(kept))
        require_dataflow(session, name)
        pinned = [row.pinned for row in runs_of(session, name) if row.pinned is not None]
        keeps_state = any(topology_of(each).dataflow.keeps_state for each in pinned[-1:])
    if name not in kept:
        why = "no checkpoint of it is complete yet" if keeps_state else "it keeps no state, and has no checkpoints"
        raise Misconfigured.of("integrity.not_restorable", name=name, why=why)
    return (name,)


def run_restore_test(services: Services, dataflow: str, which: str | None, check: Check) -> RestoreTestReport:
    """Restore a checkpoint or savepoint to a scratch place, and check its results.

    `which` is a number, a savepoint's name or its folder; None is the newest retained checkpoint. Raises Misconfigured
    if there is none, or a suite is missing, Retryable, and the errors of `check`.
    """
    services.store_id()
    for _ in range(ROUNDS):
        found = restore_test_source(services, dataflow, which)
        if isinstance(found.source, str):
            return _report(found, problem=found.source)
        with _leased(services, found.source):
            report = _restored_and_checked(services, found, found.source, check)
        if report.is_right or _is_still_kept(services, found.source):
            return _recorded(services, found.source, report)
        if which is not None:
            break
    raise Misconfigured.of("integrity.subsumed_meanwhile", description=found.description, dataflow=dataflow)


def restore_test_source(services: Services, dataflow: str, which: str | None) -> RestoreTestSource:
    """Find the checkpoint or savepoint; `which` is None for the newest checkpoint. Raises Misconfigured."""
    if which is not None and "/" in which:
        return _in_folder(services, which)
    with services.ledger.transaction() as session:
        require_dataflow(session, dataflow)
        rows = restorable(session, dataflow)
    if which is None:
        wanted = [row for row in rows if not row.is_savepoint][-1:]
    else:
        wanted = [row for row in rows if which in (str(row.number), name_of(row.folder))]
    if len(wanted) != 1:
        known = ", ".join(f"{row.number} ({row.kind}, epoch {row.epoch})" for row in rows[-_SHOWN:]) or "none"
        raise Misconfigured.of("integrity.not_kept", dataflow=dataflow, which=which or "at all", known=known)
    return _known(services, wanted[0])


def _known(services: Services, row: CheckpointRow) -> RestoreTestSource:
    folder = savepoint_url(row, services.store.url)
    name = folder or str(row.number)
    description = f"{row.kind} {row.number} of {row.dataflow} (epoch {row.epoch})"
    found: Source | str
    try:
        if row.is_savepoint:
            found = read_savepoint(folder_of_savepoint(services, row))
        else:
            found = read_checkpoint(services, row.dataflow, row.number)
    except Misconfigured as error:
        where = folder or checkpoint_path(row.dataflow, row.number)
        found = f"its manifest in {where} cannot be used: {error}"
    return RestoreTestSource(found, name, description, row.epoch)


def _in_folder(services: Services, url: str) -> RestoreTestSource:
    folder = folder_at(services, url)
    try:
        folder.store.size(folder.at(SAVEPOINT))
    except NotFound as error:
        raise Misconfigured.of("integrity.no_savepoint", folder_url=folder.url, savepoint=SAVEPOINT) from error
    try:
        source = read_savepoint(folder)
    except Misconfigured as error:
        return RestoreTestSource(str(error), folder.url, f"the savepoint in {folder.url}", "")
    return RestoreTestSource(source, folder.url, str(source), source.checkpoint.epoch)


def _is_still_kept(services: Services, source: Source) -> bool:
    with services.ledger.transaction() as session:
        return is_retained_now(session, source)


@contextmanager
def _leased(services: Services, source: Source) -> Iterator[None]:
    """Lease the results that a checkpoint consists of, in case it is subsumed meanwhile."""
    made = source.checkpoint
    stages = {each.state.name for each in made.states} | {each.stage for each in made.results}
    with services.ledger.transaction() as session:
        is_known = session.get(DataflowRow, made.dataflow) is not None
        query = select(ResultRow.id).where(ResultRow.run == made.run, ResultRow.stage.in_(stages))
        results = list(session.scalars(query))
    if not is_known or not results:
        yield
        return
    with leased_reading(services, made.dataflow, results, reader("weir verify --expectations")):
        yield


def _restored_and_checked(
    services: Services, found: RestoreTestSource, source: Source, check: Check
) -> RestoreTestReport:
    made = source.checkpoint
    with restore_test_place(services) as place:
        _register(place, source)
        try:
            restored = restore(place.services, RestoreRequest(made.dataflow, found.name, fork=place.dataflow))
        except Misconfigured as error:
            return _report(found, problem=str(error))
        return _report(found, checks=_checks(services, place, source, check), copied_bytes=restored.copied_bytes)


def _report(found: RestoreTestSource, *, problem: str = "", **more: Any) -> RestoreTestReport:
    what = f"{found.description}: {'it cannot be restored' if problem else 'restored to a scratch place'}"
    report = partial(RestoreTestReport, what=what, source=found.description, epoch=found.epoch)
    return report(problem=problem, is_recorded=False, **more)


def _register(place: RestoreTestPlace, source: Source) -> None:
    """Enter the checkpoint into the scratch ledger; a savepoint needs no ledger."""
    if source.is_savepoint:
        return
    made, now = source.checkpoint, place.services.now()
    with place.services.ledger.transaction(made.dataflow) as session:
        ensure_dataflow(session, made.dataflow, place.services.store_id())
        enter_checkpoint(session, made, content := fingerprint(made), now)
        complete(session, made.dataflow, made.number, made.attempt, content, now)


def _checks(services: Services, place: RestoreTestPlace, source: Source, check: Check) -> tuple[CheckReport, ...]:
    """Compare all bytes of the restored results, and have Spark check the rows of those that are intact."""
    with place.services.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.is_current).order_by(ResultRow.stage, ResultRow.subtask)
        rows = list(session.scalars(query))
    references = {reference(row): row for row in rows}
    compared = compare_results(place.services.store, services.store_id(), list(references), lambda _bytes: None)
    wanted, checks = [], []
    for ref, row in references.items():
        answer = compared[ref]
        checks.append(_of_files(row, answer, source.checkpoint))
        if isinstance(answer, Manifest):
            wanted.append(_to_check(services, place, source.checkpoint, answer, row.folder))
    if wanted:
        made, report = source.checkpoint, f"{place.folder}/report.json"
        job = checking_job(
            services.store, made.dataflow, made.epoch, place.id, wanted, CheckReason.RESTORE_TEST, report
        )
        checks += _of_origin(check(job), made)
    return tuple(sorted(checks, key=lambda each: (each.stage, each.subtask)))


def _of_files(row: ResultRow, found: Manifest | Loss, made: Checkpoint) -> CheckReport:
    """Return the check that all bytes of a partition are as they were written."""
    error = "" if isinstance(found, Manifest) else f"{found.fault.value}, {found.detail}"
    result = ExpectationResult(FILES_AS_RECORDED, {}, Severity.FAIL, not error, row.bytes, error=error)
    return _built_in(made, PartitionId(row.stage, row.subtask, row.layout), row.digest, result)


def _not_restorable(made: Checkpoint, problem: str) -> tuple[CheckReport, ...]:
    """Return a failed check of each partition of a snapshot that could not be restored."""
    result = ExpectationResult(RESTORABLE, {}, Severity.FAIL, success=False, error=problem)
    return tuple(_built_in(made, each, part.digest, result) for each, part in sorted(made.parts.items()))


def _built_in(made: Checkpoint, of: PartitionId, digest: str, result: ExpectationResult) -> CheckReport:
    return CheckReport.built_in(
        of.stage,
        of.subtask,
        CheckReason.RESTORE_TEST,
        digest,
        parsed_digest(digest).rows,
        result,
        run=made.run,
        layout=of.layout,
        attempt=_maker(made, of),
    )


def _to_check(
    services: Services, place: RestoreTestPlace, made: Checkpoint, manifest: Manifest, folder: str
) -> RestoredToCheck:
    pinned = topology_of(made.pinned).dataflow
    checks = checks_now(services, made.dataflow, pinned, manifest.stage, CheckReason.RESTORE_TEST)
    return to_check(place.services.store, pinned, manifest, folder, recorded_by(made, manifest), checks)


def _of_origin(report: RegionReport, made: Checkpoint) -> list[CheckReport]:
    """Return the checks as those of the results in the checkpoint: the ledger does not know the restored ones."""
    return [
        replace(each, run=made.run, attempt=_maker(made, PartitionId(each.stage, each.subtask, each.layout)))
        for each in report.checks
    ]


def _maker(made: Checkpoint, partition: PartitionId) -> str:
    part = made.parts.get(partition)
    return "" if part is None else part.attempt


def _recorded(services: Services, source: Source, report: RestoreTestReport) -> RestoreTestReport:
    """Record the checks if the ledger knows the dataflow."""
    made = source.checkpoint
    with services.ledger.transaction() as session:
        if session.get(DataflowRow, made.dataflow) is None:
            return report
    checks = report.checks or _not_restorable(made, report.problem)
    with services.ledger.transaction(made.dataflow) as session:
        enter_checks(session, made.dataflow, {made.run: made.epoch}, "", checks, services.now())
    return replace(report, is_recorded=True)


def _described(check: CheckReport) -> str:
    wrong = [each for each in check.results if not each.success]
    if wrong:
        return described(check, wrong)
    return f"{check.suite} of {check.stage}[{check.subtask}] of {check.run}, {check.rows} rows"
