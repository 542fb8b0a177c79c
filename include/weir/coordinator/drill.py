"""The fire drill: whether a checkpoint or savepoint can be restored, found out by restoring it.

Invariant: it is restored by the code that restores it in earnest, as a fork, into a place that goes afterwards; of what
is there nothing is changed but the ledger's record of what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import select

from weir.coordinator.checkpoint_content import fingerprint
from weir.coordinator.drill_place import DrillPlace, drill_place
from weir.coordinator.drill_source import DrillSource, drill_source, is_still_kept
from weir.coordinator.reading import leased_reading, reader
from weir.coordinator.restore import Wish, restore
from weir.coordinator.restored_results import makers_in, partitions_in
from weir.coordinator.services import Services
from weir.coordinator.snapshot_source import OpenStore, Source
from weir.coordinator.stored_checks import checking_job, checks_now, recorded_by, to_check
from weir.coordinator.verify import reference
from weir.errors import Loss, Misconfigured
from weir.ledger.checkpoints import complete, enter_checkpoint
from weir.ledger.models import DataflowRow, ResultRow
from weir.ledger.quality import enter_checks
from weir.ledger.runs import ensure_dataflow, topology_of
from weir.quality.check import CheckReport, ExpectationResult, Outcome, Why
from weir.quality.suite import Severity
from weir.quality.verdict import told
from weir.results.checkpoint import Checkpoint
from weir.results.manifest import Manifest, parsed_digest
from weir.results.region_job import RegionJob, RegionReport, RestoredToCheck
from weir.store.comparison import compare_results
from weir.topology.regions import PartitionId

Check = Callable[[RegionJob], RegionReport]
"""Has Spark look at what a job names."""

FILES_AS_RECORDED = "weir_files_as_recorded"
"""The built-in check that needs no Spark: all bytes are those that were written."""

RESTORABLE = "weir_restorable"
"""The built-in check that only a failure is told of: all files are there, with their sizes."""

ROUNDS = 3
"""How often the newest checkpoint may be subsumed under a drill."""


@dataclass(frozen=True, slots=True)
class Drilled:
    """What a drill has found. `problem` says why nothing could be restored; it is empty if something was."""

    dataflow: str
    source: str
    epoch: str
    checks: tuple[CheckReport, ...] = ()
    problem: str = ""
    copied_bytes: int = 0
    is_recorded: bool = False

    @property
    def is_right(self) -> bool:
        """Whether it can be restored, and is what it should be."""
        return not self.problem and all(each.outcome is not Outcome.FAILED for each in self.checks)

    def lines(self) -> list[str]:
        """All of it as text: a line a check."""
        if self.problem:
            return [f"{self.source} cannot be restored: {self.problem}"]
        failed = sum(each.outcome is Outcome.FAILED for each in self.checks)
        return [
            f"{self.source} was restored to a scratch place: {len(self.checks)} check(s), {failed or 'none'} failed",
            *(f"  {each.outcome.value}: {_told(each)}" for each in self.checks),
        ]


def drill(services: Services, dataflow: str, which: str | None, open_store: OpenStore, check: Check) -> Drilled:
    """Restore a checkpoint or savepoint to a scratch place, and look at what comes out.

    `which` is a number, a savepoint's name or its folder; None is the newest checkpoint that is kept. Raises
    Misconfigured where there is none, or a suite is missing, Retryable, and what `check` raises.
    """
    services.store_id()
    for _ in range(ROUNDS):
        found = drill_source(services, dataflow, which, open_store)
        if isinstance(found.source, str):
            return Drilled(dataflow, found.told, found.epoch, problem=found.source)
        with _claimed(services, found.source):
            drilled = _drill(services, found, found.source, open_store, check)
        if drilled.is_right or is_still_kept(services, found):
            return _recorded(services, found.source, drilled)
        if which is not None:
            break
    raise Misconfigured(
        f"{found.told} was subsumed while it was being restored, and its files are deleted. `weir checkpoints "
        f"{dataflow}` lists those that are kept"
    )


@contextmanager
def _claimed(services: Services, source: Source) -> Iterator[None]:
    """Keep the results that a checkpoint consists of, should it be subsumed meanwhile."""
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


def _drill(services: Services, found: DrillSource, source: Source, open_store: OpenStore, check: Check) -> Drilled:
    made = source.checkpoint
    with drill_place(services) as place:
        _tell_of(place, source)
        try:
            restored = restore(place.services, Wish(made.dataflow, found.name, fork=place.dataflow), open_store)
        except Misconfigured as error:
            return Drilled(made.dataflow, found.told, made.epoch, problem=str(error))
        checks = _looked_at(services, place, source, check)
        return Drilled(made.dataflow, found.told, made.epoch, checks, copied_bytes=restored.copied_bytes)


def _tell_of(place: DrillPlace, source: Source) -> None:
    """Let the ledger of the drill know what is restored; a savepoint needs no ledger."""
    if source.is_savepoint:
        return
    made, now = source.checkpoint, place.services.now()
    with place.services.ledger.transaction(made.dataflow) as session:
        ensure_dataflow(session, made.dataflow, place.services.store_id())
        enter_checkpoint(session, made, fingerprint(made), now)
        complete(session, made.dataflow, made.number, now)


def _looked_at(services: Services, place: DrillPlace, source: Source, check: Check) -> tuple[CheckReport, ...]:
    """Compare all bytes of what was restored, and have Spark look at the rows of what is whole."""
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
        job = checking_job(services.store, made.dataflow, made.epoch, place.id, wanted, Why.DRILL, report)
        checks += _of_origin(check(job), made)
    return tuple(sorted(checks, key=lambda each: (each.stage, each.subtask)))


def _of_files(row: ResultRow, found: Manifest | Loss, made: Checkpoint) -> CheckReport:
    """Whether all bytes of a partition are as they were written."""
    error = "" if isinstance(found, Manifest) else f"{found.fault.value}, {found.detail}"
    result = ExpectationResult(FILES_AS_RECORDED, {}, Severity.FAIL, not error, row.bytes, error=error)
    return _built_in(made, PartitionId(row.stage, row.subtask, row.layout), row.digest, result)


def _not_restorable(made: Checkpoint, problem: str) -> tuple[CheckReport, ...]:
    """What is recorded of each partition where none could be restored."""
    result = ExpectationResult(RESTORABLE, {}, Severity.FAIL, success=False, error=problem)
    return tuple(_built_in(made, each, digest, result) for each, digest in sorted(partitions_in(made).items()))


def _built_in(made: Checkpoint, of: PartitionId, digest: str, result: ExpectationResult) -> CheckReport:
    return CheckReport.built_in(
        of.stage,
        of.subtask,
        Why.DRILL,
        digest,
        parsed_digest(digest).rows,
        result,
        run=made.run,
        layout=of.layout,
        attempt=makers_in(made).get(of, ""),
    )


def _to_check(
    services: Services, place: DrillPlace, made: Checkpoint, manifest: Manifest, folder: str
) -> RestoredToCheck:
    pinned = topology_of(made.pinned).dataflow
    checks = checks_now(services, made.dataflow, pinned, manifest.stage, Why.DRILL)
    return to_check(place.services.store, pinned, manifest, folder, recorded_by(made, manifest), checks)


def _of_origin(report: RegionReport, made: Checkpoint) -> list[CheckReport]:
    """What was found, as of the results that the checkpoint was made of: nobody knows those of the drill."""
    makers = makers_in(made)
    return [
        replace(each, run=made.run, attempt=makers.get(PartitionId(each.stage, each.subtask, each.layout), ""))
        for each in report.checks
    ]


def _recorded(services: Services, source: Source, drilled: Drilled) -> Drilled:
    """Write down what was found, if the ledger knows whose it is."""
    made = source.checkpoint
    with services.ledger.transaction() as session:
        if session.get(DataflowRow, made.dataflow) is None:
            return drilled
    checks = drilled.checks or _not_restorable(made, drilled.problem)
    with services.ledger.transaction(made.dataflow) as session:
        enter_checks(session, made.dataflow, {made.run: made.epoch}, "", checks, services.now())
    return replace(drilled, is_recorded=True)


def _told(check: CheckReport) -> str:
    wrong = [each for each in check.results if not each.success]
    if wrong:
        return told(check, wrong)
    return f"{check.suite} of {check.stage}[{check.subtask}] of {check.run}, {check.rows} rows"
