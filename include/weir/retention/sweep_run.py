"""Sweeping the folder of one run: what nobody needs of it goes.

Invariant 4: the store is listed first and the ledger read then, so that no file of an attempt at work is ever taken for
nobody's. Invariant 7: each step may be the last, and the next sweep goes on: pointers go before the manifests that they
name, and these before their data.

Sweeping what keyed state has beside the folders of its own results: shared files, and checkpoints.

Invariant 4: a file that anybody uses stays, whatever became of the attempt that wrote it. The store is listed before it
is asked who uses what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from weir.coordination.services import Services
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.formats.codec import manifest_from_json
from weir.formats.manifest import COPY_NAME, RELEASED_NOTE
from weir.formats.paths import (
    MANIFEST,
    RUN_RECORD,
    checkpoint_number,
    checkpoint_path,
    checkpoints_folder,
    epoch_folder,
    pointer_folder,
    sinks_folder,
)
from weir.formats.pointer import pointer_from_json
from weir.ledger.attempts import end
from weir.ledger.checkpoints import CheckpointStatus, checkpoints_of
from weir.ledger.database.tables import CheckpointRow, RunRow
from weir.ledger.runs import dataflow_of
from weir.retention.orphan_rules import (
    TEMPORARY,
    Fate,
    Judgement,
    Place,
    RunFolder,
    RunKnowledge,
    is_record_kept,
    is_short,
    judge,
    known_gone,
    may_have_strays,
    run_folder,
    strays,
)
from weir.retention.sweep_ledger import is_expired, knowledge_of, note_deleted, silent_attempts, still_finished
from weir.retention.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.state.files_in_use import live_state_files
from weir.store.errors import NotFound
from weir.store.walk import FoundFile, files_below, folders_in
from weir.store.worker_threads import in_parallel
from weir.topology.partitions import PLAIN

_POINTERS = (MANIFEST, COPY_NAME)
"""What makes files a result or a copy: it goes before them."""


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A pointer in the store; `folders` is None for one that cannot be read."""

    path: str
    bytes: int
    folders: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Listed:
    """The folder of a run, and the pointers to its published versions."""

    run: str
    root: str
    folder: RunFolder
    pointers: tuple[_Pointer, ...]
    temporary: tuple[FoundFile, ...]


class RunSweep:
    """Sweeps runs of one dataflow into one report. Files that nobody knows go when they are older than `floor`."""

    def __init__(
        self,
        services: Services,
        settings: RetentionSettings,
        report: SweepReport,
        floor: timedelta,
        *,
        is_pressed: bool = False,
    ) -> None:
        self._services, self._settings, self._report, self._floor = services, settings, report, floor
        self._is_pressed = is_pressed

    def sweep(self, run: str) -> None:
        """Remove what nobody needs of a run. Raises Retryable."""
        if not self._report.is_dry:
            self._fence_silent(run)
        listed = self._list(run)
        known = self._know(listed)
        self._sweep_pointers(listed, known)
        self._compare(listed, known)
        judged = without_state_in_use(self._services, dataflow_of(run), judge(listed.folder, known))
        gone = {each.folder.path for each in judged if self._carry_out(each, known)}
        self._note_gone(listed.run, known, {each.folder.path for each in judged} - gone)
        self.remove_temporary([*listed.folder.temporary, *((each.path, each.bytes) for each in listed.temporary)])
        self._report.unknown += [Kept(path, size, "not a file of Weir's") for path, size in listed.folder.strange]
        self._tidy(listed, known)
        self._report.runs += 1

    def _fence_silent(self, run: str) -> None:
        """Whoever is given up may not commit any more, should it wake up: what it has written is about to go."""
        services, now = self._services, self._services.now()
        with services.ledger.transaction() as session:
            if not silent_attempts(session, run, self._settings, now):
                return
        with services.ledger.transaction(dataflow_of(run)) as session:
            for row in silent_attempts(session, run, self._settings, now):
                end(row, AttemptState.FENCED, now, error="it was given up: nobody has heard of it for so long")

    def _tidy(self, listed: _Listed, known: RunKnowledge) -> None:
        """Of an expired run of which nothing is published, the record goes last; and then the folders."""
        record = f"{listed.root}/{RUN_RECORD}"
        if listed.folder.has_record and not is_record_kept(known) and not listed.folder.strange:
            # A begin writes it again in a transaction of its own.
            with self._services.ledger.transaction(dataflow_of(listed.run)) as session:
                if is_expired(session, session.get_one(RunRow, listed.run)):
                    self.remove_file(record, self._services.store.size(record), "its run is expired", is_aged=False)
        if known.is_expired and not self._report.is_dry:
            self._services.store.prune(listed.root)

    def remove_temporary(self, files: Iterable[tuple[str, int]]) -> None:
        """Remove what creators left who were killed, once it is old."""
        for path, size in files:
            self.remove_file(path, size, "a write that was never finished")

    # What is there, and what is known

    def _list(self, run: str) -> _Listed:
        dataflow, _, epoch = run.partition("@")
        root = epoch_folder(dataflow, epoch)
        store = self._services.store
        folder = run_folder(root, ((each.path, each.bytes) for each in files_below(store, [root])))
        sinks = folders_in(store, sinks_folder(dataflow))
        beside = files_below(store, [pointer_folder(dataflow, sink, epoch) for sink in sinks])
        pointers = in_parallel(self._pointer, [each for each in beside if _is_pointer(each)], store.workers)
        temporary = tuple(each for each in beside if TEMPORARY.fullmatch(each.path.rpartition("/")[2]))
        return _Listed(run, root, folder, tuple(pointers), temporary)

    def _pointer(self, found: FoundFile) -> _Pointer:
        try:
            said = pointer_from_json(self._services.store.read(found.path))
            return _Pointer(found.path, found.bytes, tuple(each.folder for each in said.partitions))
        except NotFound:
            return _Pointer(found.path, 0, ())
        except (ValueError, TypeError, KeyError, Misconfigured):
            return _Pointer(found.path, found.bytes, None)

    def _know(self, listed: _Listed) -> RunKnowledge:
        copies = {(each.name, each.subtask) for each in listed.folder.folders if each.place is Place.COPY}
        with self._services.ledger.transaction() as session:
            return knowledge_of(
                session,
                listed.run,
                self._settings,
                self._services.now(),
                copies,
                {each.path: each.folders or () for each in listed.pointers},
                is_pressed=self._is_pressed,
            )

    def _sweep_pointers(self, listed: _Listed, known: RunKnowledge) -> None:
        for each in listed.pointers:
            is_live = known.pointers.get(each.path)
            if is_live is None:
                why = "the ledger does not know this version" if each.folders is not None else "it cannot be read"
                self._report.unknown.append(Kept(each.path, each.bytes, why))
            elif is_live:
                self._report.kept.append(Kept(each.path, each.bytes, "the pointer to a published version"))
            else:
                self.remove_file(each.path, each.bytes, "its version is expired", Garbage.POINTER, is_aged=False)

    def _compare(self, listed: _Listed, known: RunKnowledge) -> None:
        """Name finished results whose files are not there; what was committed since the listing is looked at again."""
        found = {each.path: each for each in listed.folder.folders}
        finished = {path: each for path, each in known.results.items() if each.state is PartitionState.FINISHED}
        short = [path for path, each in finished.items() if path not in found or is_short(found[path], each.bytes)]
        if not short:
            return
        again = files_below(self._services.store, short)
        self._services.store_id()
        with self._services.ledger.transaction() as session:
            still = still_finished(session, listed.run, short)
        for path in sorted(still):
            names = {
                each.path.removeprefix(f"{path}/"): each.bytes for each in again if each.path.startswith(f"{path}/")
            }
            there = sum(size for name, size in names.items() if name not in (MANIFEST, RELEASED_NOTE))
            expected = finished[path].bytes
            if MANIFEST not in names or there < expected:
                gone = f"{there} of {expected} bytes are there" + ("" if MANIFEST in names else ", and no manifest")
                self._report.missing.append(Kept(path, expected - there, gone))

    # What becomes of a folder

    def _note_gone(self, run: str, known: RunKnowledge, there: set[str]) -> None:
        gone = known_gone(known, there)
        if self._report.is_dry or not gone:
            return
        self._services.store_id()  # of a disk that is not mounted all is gone
        with self._services.ledger.transaction(run.partition("@")[0]) as session:
            note_deleted(session, run, gone, self._services.now())

    def _carry_out(self, judgement: Judgement, known: RunKnowledge) -> bool:
        """Do what was judged; answers whether all of the folder went."""
        folder, reason = judgement.folder, judgement.reason
        is_young = judgement.is_aged and not self._is_old(judgement)
        if judgement.fate is Fate.KEPT or is_young:
            why = f"{reason}; it is not old enough yet" if is_young else reason
            self._report.kept.append(Kept(folder.path, folder.bytes, why))
            result = known.results.get(folder.path)
            if result is not None and result.state is PartitionState.FINISHED:
                self._remove_strays(judgement, result.bytes)
            return False
        is_emptied = judgement.fate is Fate.EMPTIED
        if not self._report.is_dry:
            self._empty(judgement) if is_emptied else self._remove(folder.path, folder.names)
        size = folder.data_bytes if is_emptied else folder.bytes
        self._report.deleted.append(Swept(_kind(judgement, known), folder.path, size, reason))
        return not is_emptied

    def _is_old(self, judgement: Judgement) -> bool:
        """Whether nothing has happened to a folder for as long as the age floor says."""
        before = self._services.now() - self._floor
        if judgement.since is not None and judgement.since > before:
            return False
        paths = [f"{judgement.folder.path}/{name}" for name, _ in judgement.folder.files]
        times = in_parallel(self._modified, paths, self._services.store.workers)
        return all(at is None or at <= before for at in times)

    def _modified(self, path: str) -> datetime | None:
        try:
            return self._services.store.modified(path)
        except NotFound:
            return None

    def _remove(self, folder: str, names: Iterable[str]) -> None:
        for name in _POINTERS:
            if name in names:
                self._services.store.delete(f"{folder}/{name}")
        self._services.store.delete_folder(folder)

    def _empty(self, judgement: Judgement) -> None:
        for name, _ in judgement.folder.files:
            if name not in (MANIFEST, RELEASED_NOTE):
                self._services.store.delete(f"{judgement.folder.path}/{name}")

    def _remove_strays(self, judgement: Judgement, expected: int) -> None:
        """Remove files in the folder of a finished result that no manifest names."""
        folder = judgement.folder
        if not may_have_strays(folder, expected):
            return
        try:
            manifest = manifest_from_json(self._services.store.read(f"{folder.path}/{MANIFEST}"))
        except (NotFound, Misconfigured):
            return  # whoever verifies tells of it
        named = frozenset(file.name for file in manifest.files)
        for name, size in strays(folder, named):
            self.remove_file(f"{folder.path}/{name}", size, "no manifest names it")

    def remove_file(
        self, path: str, size: int, reason: str, kind: Garbage = Garbage.STRAY, *, is_aged: bool = True
    ) -> None:
        """Remove one file; one that is aged only once it is old."""
        at = self._modified(path)
        if at is None:
            return
        if is_aged and at > self._services.now() - self._floor:
            self._report.kept.append(Kept(path, size, f"{reason}; it is not old enough yet"))
            return
        if not self._report.is_dry:
            self._services.store.delete(path)
        self._report.deleted.append(Swept(kind, path, size, reason))


def _is_pointer(found: FoundFile) -> bool:
    name = found.path.rpartition("/")[2]
    return name.endswith(".json") and not name.startswith(".")


def _kind(judgement: Judgement, known: RunKnowledge) -> Garbage:
    if known.is_expired:
        return Garbage.EXPIRED
    if judgement.fate is Fate.EMPTIED:
        return Garbage.RELEASED
    if judgement.folder.place is Place.COPY:
        return Garbage.COPY
    return Garbage.SUPERSEDED if judgement.folder.path in known.results else Garbage.ABANDONED


def without_state_in_use(services: Services, dataflow: str, judged: Iterable[Judgement]) -> tuple[Judgement, ...]:
    """What was judged, but for folders that hold files of keyed state that are in use: these stay. Raises Retryable."""
    all_judged = tuple(judged)
    if not any(_may_hold_state(each) for each in all_judged):
        return all_judged
    in_use = live_state_files(services, dataflow)
    return tuple(_kept(each) if _may_hold_state(each) and _holds(each, in_use) else each for each in all_judged)


def _may_hold_state(judged: Judgement) -> bool:
    folder = judged.folder
    return judged.fate is not Fate.KEPT and folder.place is Place.RESULT and folder.layout != PLAIN.id


def _holds(judged: Judgement, in_use: frozenset[str]) -> bool:
    return any(f"{judged.folder.path}/{name}" in in_use for name in judged.folder.names)


def _kept(judged: Judgement) -> Judgement:
    return replace(judged, fate=Fate.KEPT, reason="keyed state that is in use", is_aged=False)


def sweep_checkpoints(services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport) -> None:
    """Look at the manifests of checkpoints: those of subsumed and failed ones go. Raises Retryable."""
    folder = checkpoints_folder(dataflow)
    try:
        found = {f"{folder}/{name}": size for name, size in services.store.list(folder)}
    except NotFound:
        found = {}
    with services.ledger.transaction() as session:
        known = {
            checkpoint_path(dataflow, row.number): row
            for row in checkpoints_of(session, dataflow)
            if not row.is_savepoint
        }
    for path, size in found.items():
        if TEMPORARY.fullmatch(path.rpartition("/")[2]):
            of_runs.remove_temporary([(path, size)])
        elif path in known and _is_gone(known[path]):
            of_runs.remove_file(path, size, "its checkpoint is not retained", Garbage.CHECKPOINT, is_aged=False)
        elif path in known:
            report.kept.append(Kept(path, size, "a checkpoint"))
        elif checkpoint_number(path) is None:
            report.unknown.append(Kept(path, size, "not a file of Weir's"))
        else:
            why = f"the ledger does not know this checkpoint: `weir ledger rebuild {dataflow}` takes it in"
            report.unknown.append(Kept(path, size, why))
    for path, row in known.items():
        if path not in found and _is_retained(row):
            report.missing.append(Kept(path, 0, f"the manifest of checkpoint {row.number} is not there"))


def _is_gone(row: CheckpointRow) -> bool:
    return row.status == CheckpointStatus.FAILED.value or row.subsumed_at is not None


def _is_retained(row: CheckpointRow) -> bool:
    return row.status == CheckpointStatus.COMPLETED.value and row.subsumed_at is None and row.deleted_at is None
