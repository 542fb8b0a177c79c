"""The fire drill: whether a checkpoint or savepoint can be restored, found out by restoring it.

Invariant: it is restored by the code that restores it in earnest, as a fork, into a place that goes afterwards; of what
is there nothing is changed but the ledger's record of what was found.

What a drill restores. Invariant: one that is kept and cannot be read is a finding, not a mistake of who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import select

from weir.coordination.read_leases import leased_reading, reader
from weir.coordination.services import Services
from weir.errors import Loss, Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.checks import CheckOutcome, CheckReason, CheckReport, ExpectationResult
from weir.formats.manifest import Manifest, parsed_digest
from weir.formats.paths import checkpoint_path
from weir.formats.region_job import RegionJob, RegionReport, RestoredToCheck
from weir.formats.savepoint import SAVEPOINT
from weir.formats.suite import Severity
from weir.integrity.verify import reference
from weir.ledger.checkpoints import CheckpointStatus, complete, enter_checkpoint, is_retained
from weir.ledger.database.tables import CheckpointRow, DataflowRow, ResultRow
from weir.ledger.runs import ensure_dataflow, runs_of, topology_of
from weir.quality.ledger import enter_checks
from weir.quality.rules import told
from weir.quality.stored_checks import checking_job, checks_now, recorded_by, to_check
from weir.snapshots.restore import Wish, restore
from weir.snapshots.restored_results import makers_in, partitions_in
from weir.snapshots.scratch import DrillPlace, drill_place
from weir.snapshots.source import (
    OpenStore,
    Source,
    folder_at,
    read_checkpoint,
    read_savepoint,
    require_retained,
    snapshots_of,
)
from weir.state.checkpoint_content import fingerprint
from weir.store.errors import NotFound
from weir.store.verification import compare_results
from weir.topology.regions import PartitionId

Check = Callable[[RegionJob], RegionReport]
"""Has Spark look at what a job names."""

FILES_AS_RECORDED = "weir_files_as_recorded"
"""The built-in check that needs no Spark: all bytes are those that were written."""

RESTORABLE = "weir_restorable"
"""The built-in check that only a failure is told of: all files are there, with their sizes."""

ROUNDS = 3
"""How often the newest checkpoint may be subsumed under a drill."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        return not self.problem and all(each.outcome is not CheckOutcome.FAILED for each in self.checks)

    def lines(self) -> list[str]:
        """All of it as text: a line a check."""
        if self.problem:
            return [f"{self.source} cannot be restored: {self.problem}"]
        failed = sum(each.outcome is CheckOutcome.FAILED for each in self.checks)
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
            return Drilled(dataflow=dataflow, source=found.told, epoch=found.epoch, problem=found.source)
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
            return Drilled(dataflow=made.dataflow, source=found.told, epoch=made.epoch, problem=str(error))
        checks = _looked_at(services, place, source, check)
        return Drilled(
            dataflow=made.dataflow,
            source=found.told,
            epoch=made.epoch,
            checks=checks,
            copied_bytes=restored.copied_bytes,
        )


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
        job = checking_job(services.store, made.dataflow, made.epoch, place.id, wanted, CheckReason.DRILL, report)
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
        CheckReason.DRILL,
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
    checks = checks_now(services, made.dataflow, pinned, manifest.stage, CheckReason.DRILL)
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


_SHOWN = 10


@dataclass(frozen=True, slots=True)
class DrillSource:
    """A checkpoint or savepoint; `source` is why it cannot be read where it is a text.

    `name` is how a restore is told of it, `told` how a person is.
    """

    source: Source | str
    name: str
    told: str
    epoch: str


def drill_source(services: Services, dataflow: str, which: str | None, open_store: OpenStore) -> DrillSource:
    """The checkpoint or savepoint that is meant; `which` is None for the newest checkpoint. Raises Misconfigured."""
    if which is not None and "/" in which:
        return _in_folder(services, which, open_store)
    with services.ledger.transaction() as session:
        if session.get(DataflowRow, dataflow) is None:
            raise Misconfigured(f"the ledger knows no dataflow {dataflow}")
        rows = [row for row in snapshots_of(session, dataflow) if _is_kept(row)]
    if which is None:
        wanted = [row for row in rows if not row.is_savepoint][-1:]
    else:
        wanted = [row for row in rows if which in (str(row.number), row.folder.rpartition("/")[2])]
    if len(wanted) != 1:
        known = ", ".join(f"{row.number} ({row.kind}, epoch {row.epoch})" for row in rows[-_SHOWN:]) or "none"
        raise Misconfigured(f"{dataflow} keeps no checkpoint or savepoint {which or 'at all'}; there are {known}")
    return _known(services, wanted[0], open_store)


def _is_kept(row: CheckpointRow) -> bool:
    is_there = row.subsumed_at is None or row.is_savepoint
    return is_there and row.deleted_at is None and row.status == CheckpointStatus.COMPLETED.value


def _known(services: Services, row: CheckpointRow, open_store: OpenStore) -> DrillSource:
    name = row.folder or str(row.number)
    told = f"{row.kind} {row.number} of {row.dataflow} (epoch {row.epoch})"
    found: Source | str
    try:
        if row.is_savepoint:
            found = read_savepoint(folder_at(services, row.folder, open_store))
        else:
            found = read_checkpoint(services, row.dataflow, row.number)
    except Misconfigured as error:
        where = row.folder or checkpoint_path(row.dataflow, row.number)
        found = f"its manifest in {where} cannot be used: {error}"
    return DrillSource(found, name, told, row.epoch)


def _in_folder(services: Services, url: str, open_store: OpenStore) -> DrillSource:
    folder = folder_at(services, url, open_store)
    try:
        folder.store.size(folder.at(SAVEPOINT))
    except NotFound as error:
        raise Misconfigured(f"there is no savepoint at {folder.url}: expected {SAVEPOINT} there") from error
    try:
        source = read_savepoint(folder)
    except Misconfigured as error:
        return DrillSource(str(error), folder.url, f"the savepoint in {folder.url}", "")
    return DrillSource(source, folder.url, str(source), source.checkpoint.epoch)


def is_still_kept(services: Services, found: DrillSource) -> bool:
    """Whether nobody has let its files go meanwhile. A savepoint's are its owner's to delete."""
    if isinstance(found.source, str):
        return True
    with services.ledger.transaction() as session:
        try:
            require_retained(session, found.source)
        except Misconfigured:
            return False
    return True


def dataflows_with_checkpoints(services: Services, name: str | None) -> tuple[str, ...]:
    """The dataflows that a drill without further words is about: all that keep state, or the one of that name.

    Raises Misconfigured for one that the ledger does not know, or that keeps no state.
    """
    with services.ledger.transaction() as session:
        kept = {row.dataflow for row in session.query(CheckpointRow).where(is_retained()) if not row.is_savepoint}
        if name is None:
            return tuple(sorted(kept))
        if session.get(DataflowRow, name) is None:
            raise Misconfigured(f"the ledger knows no dataflow {name}; a drill is about a dataflow, not about a run")
        pinned = [row.pinned for row in runs_of(session, name) if row.pinned is not None]
        keeps_state = any(topology_of(each).dataflow.keeps_state for each in pinned[-1:])
    if name not in kept:
        why = "no checkpoint of it is complete yet" if keeps_state else "it keeps no state, and has no checkpoints"
        raise Misconfigured(f"{name} cannot be restored: {why}")
    return (name,)
