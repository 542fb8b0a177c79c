"""Rebuild the ledger from the store: `weir ledger rebuild`; or have one that has lost commits catch up with the store.

Invariant: no attempt that began before can commit afterwards, and what is current after a rebuild is valid. What only
the lost ledger recorded is named in the report, never guessed.

Invariant 7: to catch up may be interrupted anywhere, and several processes may do so at once: until one has entered
all, in one transaction, no other transaction of the dataflow begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.import_rules import (
    Candidate,
    candidates,
    choose,
    other_pins,
    other_splits,
    outdated,
    splits_read,
    unfinished_restores,
)
from weir.coordination.importing import (
    REASON,
    enter_archives,
    enter_attempts,
    enter_checks,
    enter_corrections,
    enter_pins,
    enter_publications,
    enter_published,
    enter_quarantine,
    enter_results,
    enter_run,
    give_up,
    published_reads,
    quarantined_attempts,
    settled_attempts,
    stop_everything,
)
from weir.coordination.run_records import record_of, write_records
from weir.coordination.services import Services
from weir.errors import Conflict, Misconfigured
from weir.execution.run_state import AttemptState, RunState
from weir.formats.checkpoint import Checkpoint
from weir.formats.manifest import Manifest
from weir.formats.pointer import Pointer
from weir.formats.run_record import RunRecord
from weir.ledger.attempts import Origin, attempts_known
from weir.ledger.clears import add_pending_clears
from weir.ledger.database.dataset_tables import LedgerRow
from weir.ledger.database.tables import AttemptRow, DataflowRow, PublicationRow, ResultRow, RunRow
from weir.ledger.results import supersede_all
from weir.ledger.runs import (
    ensure_dataflow,
    pin_fingerprint,
    run_by_id,
    runs_of,
    topology_of,
)
from weir.ledger.snapshot import newest_try, run_state
from weir.ledger.sources import (
    copied_subtasks,
    corrections_of,
    fix_splits,
    forget_unread_splits,
    is_copied,
    note_copies,
    ranges_of,
    splits_of,
)
from weir.rebuild.checkpoints import StoredSnapshots, enter_pins_of_all, enter_snapshots, stored_snapshots
from weir.rebuild.notifications import known_events, tell_found
from weir.recovery.datasets import compare
from weir.store.catalogue import EpochCatalogue, StoredArchive, catalogue, stored_archives, stored_dataflows
from weir.store.errors import NotFound
from weir.store.store import MARKER
from weir.topology.ids import AttemptId, RunRef
from weir.topology.regions import PartitionId, RegionId, Topology

UNKNOWN = (
    "What the store does not tell: failures and what is left of their budgets, past failovers, pending clears, "
    "versions of code that were declared equal, and attempts that wrote nothing. Results that had become stale are "
    "left out, so they count as missing; damaged ones count as whole until they are read, or until `weir verify`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRun:
    """A rebuilt run: the number of regions with valid results, the others, and the number of published versions.

    `is_changed` says that the store had results or versions of it that the ledger had not, `is_outdated` that they are
    not what is to be published.
    """

    run: str
    run_id: str
    valid: int = 0
    missing: tuple[RegionId, ...] = ()
    published: int
    notes: tuple[str, ...]
    is_changed: bool = False
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class InStore:
    """All that a store holds of a dataflow of which a ledger has rows."""

    epochs: tuple[EpochCatalogue, ...]
    snapshots: StoredSnapshots
    archives: tuple[StoredArchive | str, ...]

    @property
    def revision(self) -> int:
        """The highest revision of the ledger that a writer of these files had seen."""
        return max((each.revision for each in self._documents()), default=0)

    @property
    def lineage(self) -> int:
        """The highest lineage in these files."""
        made = (each.lineage for each in self._documents() if isinstance(each, Manifest | Checkpoint))
        restored = (each.record.restored_in for each in self.epochs if each.record is not None)
        return max((*made, *restored), default=0)

    def _documents(self) -> Iterator[Checkpoint | Manifest | Pointer | RunRecord]:
        for epoch in self.epochs:
            yield from epoch.pointers
            yield from (each.manifest for each in epoch.stored)
            yield from () if epoch.record is None else (epoch.record,)
        yield from self.snapshots.readable


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A dataflow whose ledger was rebuilt; `notes` are about epochs that were left out, and forks."""

    dataflow: str
    lineage: int
    runs: tuple[RebuiltRun, ...]
    notes: tuple[str, ...]


def rebuild(services: Services, dataflow: str | None = None) -> tuple[Rebuilt, ...]:
    """Rebuild the ledger of a dataflow, or of all dataflows.

    Raises Misconfigured where there is no store or no such dataflow, Retryable where the store does not answer, and
    Conflict if tasks committed meanwhile.
    """
    store_id = present_store(services)
    with services.ledger.transaction() as session:
        known = {row.name for row in session.scalars(select(DataflowRow))}
    names = sorted(known | set(stored_dataflows(services.store)))
    if dataflow is not None and dataflow not in names:
        raise Misconfigured.of(
            "rebuild.dataflow_unknown",
            store_url=services.store.url,
            dataflow=dataflow,
            names=", ".join(names) or "none",
        )
    wanted = [dataflow] if dataflow else names
    with services.ledger.catching_up():
        forks = enter_pins_of_all(services, store_id)
        unknown = {origin: found - {*wanted} for origin, found in forks.items()}
        return tuple(_with_forks(_dataflow(services, store_id, name), unknown.get(name, ())) for name in wanted)


def _with_forks(built: Rebuilt, forks: Iterable[str]) -> Rebuilt:
    """Add notes on forks that the ledger does not have yet."""
    notes = (
        f"{fork} began with files of {built.dataflow}, which stay for it: `weir ledger rebuild {fork}` takes it in"
        for fork in sorted(forks)
    )
    return replace(built, notes=(*built.notes, *notes))


def present_store(services: Services) -> str:
    """Return the id of the store, which must exist: an empty folder may be a disk that is not mounted."""
    try:
        services.store.size(MARKER)
    except NotFound as error:
        raise Misconfigured.of("rebuild.no_store", store_url=services.store.url, marker=MARKER) from error
    return services.store_id()


def _dataflow(services: Services, store_id: str, name: str) -> Rebuilt:
    with services.ledger.transaction(name) as session:
        ensure_dataflow(session, name, store_id)
        lineage = stop_everything(session, name, services.now())
    write_records(services, name)  # or an older pin in the store would replace that of the ledger
    stored = in_store(services, name)
    with services.ledger.transaction(name) as session:
        _require_quiet(session, name, lineage)
        built = enter_stored(session, services, name, stored)
    write_records(services, name)
    return built


def in_store(services: Services, dataflow: str) -> InStore:
    """Read what the store holds of a dataflow.

    Raises Retryable, also where the store has gone meanwhile, and Misconfigured for files of another Weir.
    """
    found = InStore(
        epochs=catalogue(services.store, dataflow),
        snapshots=stored_snapshots(services, dataflow),
        archives=stored_archives(services.store, dataflow),
    )
    services.store_id()  # what was not found may be on a disk that is not mounted any more
    services.ledger.saw(dataflow, found.revision)
    return found


def enter_stored(
    session: Session, services: Services, name: str, stored: InStore, *, is_catching_up: bool = False
) -> Rebuilt:
    """Enter what the store holds; a ledger that catches up keeps all that it knows. It is not behind afterwards."""
    dataflow = session.get_one(DataflowRow, name)
    dataflow.lineage = max(dataflow.lineage, stored.lineage + 1)
    before = known_events(session, name)
    records, notes = _records(session, name, stored.epochs)
    taken: dict[PartitionId, str | None] = {}
    runs = tuple(
        _run(session, services, record, epoch, taken, is_catching_up=is_catching_up) for record, epoch in records
    )
    notes += tuple(each for each in stored.archives if isinstance(each, str))
    enter_archives(session, name, [each for each in stored.archives if not isinstance(each, str)], services.now())
    notes += enter_snapshots(session, name, stored.snapshots, services.now())
    for each in runs:
        _open_again(session, each)
    for record, _ in records:
        _note_closed(session, record)
        if record.datasets:
            compare(session, services, record.run, is_rebuilt=True)
    _take_over(session, [record for record, epoch in records if epoch.record is not None])
    tell_found(session, name, before, services.now())
    session.flush()
    services.ledger.end_behind(session, name)
    return Rebuilt(name, dataflow.lineage, runs, notes)


def _note_closed(session: Session, record: RunRecord) -> None:
    """Note with which results a run was closed: those that no person has cleared since.

    That a checkpoint has its states does not say so: its other stages may not have run.
    """
    row = session.get_one(RunRow, record.run)
    if row.closed_at is None or (record.closed_clears <= 0 and not _publishers(session, row)):
        return
    stood = select(func.max(ResultRow.id)).join(AttemptRow, AttemptRow.id == ResultRow.attempt)
    stood = stood.where(ResultRow.run == row.id, ResultRow.is_current)
    newest = session.scalar(stood.where(AttemptRow.clear_number <= record.closed_clears))
    row.closed_result = max(filter(None, (row.closed_result, newest)), default=None)


def _publishers(session: Session, row: RunRow) -> set[str]:
    """Return the closing tasks that have published versions of a run."""
    is_published = (PublicationRow.run == row.id) & PublicationRow.published_at.is_not(None)
    return set(session.scalars(select(PublicationRow.attempt).where(is_published)))


def _take_over(session: Session, records: Sequence[RunRecord]) -> None:
    """Have the newest record in the store name this ledger: from now on it has the dataflow."""
    own = session.scalars(select(LedgerRow.id)).one()
    for record in records[-1:]:
        session.get_one(RunRow, record.run).is_record_due |= record.ledger != own


def _open_again(session: Session, built: RebuiltRun) -> None:
    """Record that a run is not closed that was freed since it was published, and has not been made again.

    One that was restored is as its checkpoint says: none of its tasks is called for.
    """
    row = session.get_one(RunRow, built.run)
    if row.expired_at is not None:
        return
    publishers = _publishers(session, row)
    if not publishers or not publishers <= {*(row.abandoned or ())} or not (built.missing or row.pinned is None):
        return
    current = select(ResultRow.attempt).where(ResultRow.run == row.id, ResultRow.is_current)
    origins = session.scalars(select(AttemptRow.origin).where(AttemptRow.id.in_(current)))
    if Origin.RESTORED.value not in set(origins):
        row.closed_at = None


def _require_quiet(session: Session, dataflow: str, lineage: int) -> None:
    query = (
        select(AttemptRow.id)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(
            RunRow.dataflow == dataflow,
            AttemptRow.lineage >= lineage,
            AttemptRow.state == AttemptState.COMMITTED.value,
        )
        .limit(1)
    )
    committed = session.scalar(query)
    if committed is not None:
        raise Conflict.of("rebuild.not_quiet", committed=committed, dataflow=dataflow)


def _records(
    session: Session, dataflow: str, found: tuple[EpochCatalogue, ...]
) -> tuple[list[tuple[RunRecord, EpochCatalogue]], tuple[str, ...]]:
    """Return the records of runs, from the store or else from the ledger, and notes on epochs without a record."""
    known, stored = {row.epoch: row for row in runs_of(session, dataflow)}, {each.epoch: each for each in found}
    pairs, notes = [], []
    for epoch in sorted({*known, *stored}):
        there = stored.get(epoch, EpochCatalogue(epoch, None, (), (), (), ()))
        record = _record(session, known.get(epoch), there)
        if record is not None:
            pairs.append((record, there))
            continue
        notes.append(
            f"epoch {epoch} has {len(there.stored)} result(s) but no record of its run: they are left alone, and "
            "its DagRun computes anew when it is cleared"
        )
    return pairs, tuple(notes)


def _record(session: Session, row: RunRow | None, there: EpochCatalogue) -> RunRecord | None:
    """Return the record of a run: that in the store, unless it is known to be older than the ledger's."""
    stored = there.record
    is_older = stored is not None and row is not None and row.is_record_due and _is_older(there, stored, row)
    return record_of(session, row) if row is not None and (stored is None or is_older) else stored


def _is_older(there: EpochCatalogue, stored: RunRecord, row: RunRow) -> bool:
    """Report whether the record of a run in the store is from before the ledger pinned the run, or took its pin away.

    Each time abandons more attempts, which tells whether it is the ledger that has lost one. A pin under which nothing
    is stored need not be known again.
    """
    if stored.pinned == row.pinned:
        return False
    abandoned = {*(row.abandoned or ())}
    is_used = bool(stored.ranges) or any(each.manifest.attempt not in abandoned for each in there.stored)
    return not is_used or not abandoned <= {*stored.abandoned}


def _run(
    session: Session,
    services: Services,
    record: RunRecord,
    epoch: EpochCatalogue,
    taken: dict[PartitionId, str | None],
    *,
    is_catching_up: bool,
) -> RebuiltRun:
    """Enter a run; `taken` are the chosen digests of earlier runs, to which those of this run are added."""
    now = services.now()
    row, is_pinned_anew = enter_run(session, record)
    if is_pinned_anew or record.pinned is None or not is_catching_up:
        supersede_all(session, row.id, REASON, now)
        session.flush()
    if record.pinned is None:
        enter_publications(session, row, (*epoch.pointers, *epoch.provisional))
        note = f"it is to be pinned anew: clear the whole run {row.run_id} in Airflow"
        published, notes = len(epoch.pointers), [*epoch.notes, note]
        return RebuiltRun(run=row.id, run_id=row.run_id, published=published, notes=tuple(notes))
    topology = topology_of(record.pinned)
    give_up(session, row, other_pins(epoch.stored, pin_fingerprint(record.pinned)))
    found = candidates(topology, epoch.stored)
    to_clear = enter_corrections(session, record, topology, found, is_known=is_catching_up)
    quarantined = [each for each in found if each.is_quarantined]
    given_up = frozenset(row.abandoned or ())
    refused = {*given_up, *quarantined_attempts(session, row.id), *(each.attempt for each in quarantined)}
    refused |= settled_attempts(session, row.id) if is_catching_up else set()
    before = _known(session, row.id)
    refused |= _outdated(session, row, found, epoch.pointers, now)
    unfinished = unfinished_restores(epoch.stored) - attempts_known(session, row.id)
    refused |= unfinished
    readers = [each for each in found if each.attempt not in refused or each in quarantined]
    splits = _splits(session, row.id, topology, readers)
    refused |= other_splits(readers, splits)
    chosen = choose(topology, row.id, found, refused, taken)
    own_run = RunRef(row.id)
    taken |= {partition.in_run(own_run): None for candidate in found for partition in candidate.results}
    for candidate in chosen.current:
        taken |= {partition.in_run(own_run): digest for partition, digest in candidate.digests.items()}
    # Attempts of a deleted DagRun have the try numbers of the run that replaced it: they are left out.
    own = [each for each in found if each.attempt not in given_up | unfinished]
    enter_attempts(session, row, topology, own, chosen.computed)
    again = {each: (newest_try(session, row.id, each), f"weir: {REASON}") for each in to_clear}
    add_pending_clears(session, run_by_id(session, row.id), again, now)
    notes = list(epoch.notes)
    if unfinished:
        notes.append(
            f"a restore of epoch {row.epoch} has not written all of its results, or some are gone: it counts as not "
            f"done. If it was meant, `weir restore {row.dataflow}` the checkpoint or savepoint again"
        )
    were_bad = enter_results(session, row.id, chosen.current, now)
    if were_bad:
        notes.append(
            f"{were_bad} result(s) that were known to be lost or damaged count as whole again: `weir verify {row.id}` "
            "finds those that still are not"
        )
    enter_quarantine(session, row.id, (each for each in quarantined if each in own), now)
    enter_published(session, row.id, own, (*epoch.pointers, *epoch.provisional), now)
    enter_checks(session, row, own)
    if not row.has_dag_run:
        row.closed_at = row.closed_at or now
    restored = [stored.manifest for each in chosen.restored.values() for stored in each.results.values()]
    enter_pins(session, row.dataflow, row.epoch, restored, now)
    notes += _enter_splits(session, row.id, splits, readers, now)
    enter_publications(session, row, (*epoch.pointers, *epoch.provisional))
    session.flush()
    summary = _summary(session, row, topology, epoch, notes)
    return replace(summary, is_changed=_known(session, row.id) != before)


def _outdated(
    session: Session, row: RunRow, found: Sequence[Candidate], pointers: Iterable[Pointer], now: datetime
) -> frozenset[AttemptId]:
    """Take the results out of use of which a later try had other rows, and return their attempts."""
    given_up = frozenset(row.abandoned or ())
    closes = [(published_reads(row.id, each), each.revision) for each in pointers if each.attempt not in given_up]
    old = outdated(row.id, found, closes, given_up)
    if old:
        supersede_all(session, row.id, REASON, now, old)
    return old


def _known(session: Session, run: str) -> set[tuple[str, ...]]:
    """Return the current results and the published versions of a run."""
    session.flush()
    results = session.execute(
        select(ResultRow.folder, ResultRow.state).where(ResultRow.run == run, ResultRow.is_current)
    )
    query = select(PublicationRow.pointer, PublicationRow.attempt).where(
        PublicationRow.run == run, PublicationRow.published_at.is_not(None)
    )
    return {tuple(each) for found in (results, session.execute(query)) for each in found}


def _splits(session: Session, run: str, topology: Topology, found: list[Candidate]) -> dict[str, list[Any] | None]:
    """Return what the subtasks of each source with a resolver read: what the ledger knows, else what manifests tell.

    Splits in the ledger that no task has read do not count where manifests tell of others that all have: the source
    was resolved anew since, as by the next begin. Those of a correction do, which has tasks cleared.
    """
    splits, bound = {}, corrections_of(session, run).keys() | ranges_of(session, run).keys()
    for stage in topology.dataflow.stages:
        if stage.resolve is not None:
            region = topology.logical_region_of(stage.name)
            own = [each for each in found if each.region.name == region.name]
            known, told = splits_of(session, run, stage.name), splits_read(own, stage.name, stage.parallelism)
            if known is not None and told is not None and known != told and stage.name not in bound:
                forget_unread_splits(session, run_by_id(session, run), RegionId(region.name, 0), "", [stage.name])
                known = splits_of(session, run, stage.name)
            splits[stage.name] = known or told
    return splits


def _enter_splits(
    session: Session, run: str, splits: Mapping[str, list[Any] | None], found: list[Candidate], now: datetime
) -> list[str]:
    """Enter the splits of sources that are known; return notes on the others."""
    for source, known in splits.items():
        if known is not None:
            attempt = next((each.attempt for each in reversed(found) if source in each.splits), "")
            fix_splits(session, run, source, known, attempt, now)
            _enter_copies(session, run, source, known, found)
    return [
        f"what all subtasks of source {source} read is not known: it will be resolved anew, and all of them read again"
        for source, known in splits.items()
        if known is None
    ]


def _enter_copies(session: Session, run: str, source: str, known: list[Any], found: list[Candidate]) -> None:
    """Note which copies of what a source has committed attempts have read: the next commit tells their bytes."""
    copied = {subtask: split for subtask, split in enumerate(known) if is_copied(split)}
    if not copied:
        return
    read = ((each.region.subtask, each.splits.get(source)) for each in found)
    there = {subtask for subtask, split in read if split is not None and split == copied.get(subtask)}
    for subtask in there - copied_subtasks(session, run, source).keys():
        note_copies(session, run, subtask, {source: 0})


def _summary(session: Session, row: RunRow, topology: Topology, epoch: EpochCatalogue, notes: list[str]) -> RebuiltRun:
    state = run_state(session, run_by_id(session, row.id), topology)
    writing = [region for region in topology.region_ids() if topology.outputs(region)]
    missing = tuple(region for region in writing if not all(state.is_valid(each) for each in topology.outputs(region)))
    visible = {pointer.sink: pointer for pointer in sorted(epoch.pointers, key=lambda pointer: pointer.version)}
    outdated = [
        f"what is published of {sink} is not what its present result holds"
        for sink, pointer in visible.items()
        if sink in topology.sinks
        and _digests(state, sink) != {part.subtask: part.digest for part in pointer.partitions}
    ]
    is_outdated = bool(missing or outdated) or len(visible) < len(topology.sinks)
    if is_outdated:
        outdated.append(
            f"clear weir_close of run {row.run_id} in Airflow, unless the run is running: it has what is missing "
            "computed, and publishes"
        )
    valid = len(writing) - len(missing)
    return RebuiltRun(
        run=row.id,
        run_id=row.run_id,
        valid=valid,
        missing=missing,
        published=len(epoch.pointers),
        notes=(*notes, *outdated),
        is_outdated=is_outdated,
    )


def _digests(state: RunState, sink: str) -> dict[int, str]:
    """Return the digests of the present results of a sink, by subtask."""
    own = ((each, result) for each, result in state.results.items() if each.is_of_own_run)
    return {each.subtask: result.digest for each, result in own if each.stage == sink}
