"""Sweep the folder of one run: delete what is not needed.

Invariant 4: the store is listed before the ledger is read, so that a file of a running attempt never counts as unknown.
A file of state that is in use stays, whatever became of the attempt that wrote it; files in use are read after
the listing. Invariant 7: a sweep may stop at any step, and the next sweep continues: pointers are deleted before the
manifests that they name, and these before their data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir.coordination.evidence import require_known_results, require_known_versions, unknown_pointers
from weir.coordination.run_records import write_record
from weir.coordination.services import Services
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.formats.codec import from_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import (
    MANIFEST,
    PROVISIONAL,
    RUN_RECORD,
    epoch_folder,
    name_of,
    pointer_folder,
    sinks_folder,
)
from weir.formats.pointer import pointer_from_json
from weir.ledger.attempts import end
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import dataflow_of
from weir.retention.deletion_queries import knowledge_of, note_deleted, running_attempts, still_finished
from weir.retention.deletion_rules import (
    Age,
    FolderAction,
    FolderDecision,
    RunKnowledge,
    folder_decisions,
    is_record_kept,
    known_gone,
    other_copies,
)
from weir.retention.folder_rules import (
    NOTES,
    TEMPORARY,
    AttemptFolder,
    Place,
    RunFolder,
    is_short,
    may_have_strays,
    run_folder,
    strays,
)
from weir.retention.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.state.files_in_use import has_kept_state, live_state_files
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.store.walk import FoundFile, files_below, folders_in
from weir.store.worker_threads import in_parallel

Fate = tuple[list[Kept] | Garbage, str] | None
"""What becomes of a file, and why: it is deleted, or listed as kept or unknown; None if that is reported already."""

_POINTERS = (MANIFEST, COPY_NAME)
"""The files that make a folder a result or a copy: they are deleted before its data."""

_UNREADABLE = "it cannot be read"

_NOT_AGED = (Garbage.POINTER, Garbage.CHECKPOINT)
"""What the ledger knows to be of no use, however young it is."""


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
    """Sweeps runs of one dataflow into one report; files of no use go once they are older than `age_limit`.

    What no row names goes by `orphan_age` at the earliest, however low that limit is: what restores, compactions and
    begins write is entered only when it is whole.
    """

    def __init__(
        self,
        services: Services,
        settings: RetentionSettings,
        report: SweepReport,
        age_limit: timedelta,
        *,
        is_reclaiming: bool = False,
    ) -> None:
        self.services, self.report = services, report
        self._settings, self._is_reclaiming = settings, is_reclaiming
        self._age_limits = {Age.OLD: age_limit, Age.ORPHANED: max(age_limit, settings.orphan_age)}
        self._would_go = {each.path for each in report.deleted} if report.is_dry else set()  # else they are not there

    def sweep(self, run: str) -> None:
        """Delete what is not needed of a run. Raises Retryable."""
        if not self.report.is_dry:
            self._fence_silent(run)
        listed = self._list(run)
        known = self._knowledge(listed)
        self._require_known(listed, known)
        self.sweep_files(((each.path, each.bytes) for each in listed.pointers), self._pointers(listed, known))
        self._compare(listed, known)
        decisions = without_state_in_use(self.services, dataflow_of(run), folder_decisions(listed.folder, known))
        gone = {each.folder.path for each in decisions if self._apply(each, known)}
        self._note_gone(listed.run, known, {each.folder.path for each in decisions} - gone)
        loose = [*listed.folder.temporary, *((each.path, each.bytes) for each in listed.temporary)]
        self.sweep_files([*loose, *listed.folder.strange], lambda _: (self.report.unknown, "not a file of Weir's"))
        self._tidy(listed, known)
        self.report.runs += 1

    def _fence_silent(self, run: str) -> None:
        """Fence attempts that are given up, so that they cannot commit: their files are about to be deleted."""
        services, now = self.services, self.services.now()
        with services.ledger.transaction() as session:
            if not running_attempts(session, run, self._settings, now)[1]:
                return
        with services.ledger.transaction(dataflow_of(run)) as session:
            for row in running_attempts(session, run, self._settings, now)[1]:
                end(row, AttemptState.FENCED, now, error="it was given up: it has sent no heartbeat for too long")

    def _tidy(self, listed: _Listed, known: RunKnowledge) -> None:
        """Delete the record of an expired, unpublished run last, and then its empty folders."""
        record = f"{listed.root}/{RUN_RECORD}"
        is_due = listed.folder.has_record and not is_record_kept(known) and not listed.folder.strange
        if is_due and self._is_expired(listed.run):
            self.remove_file(record, self.services.store.size(record), "its run is expired", age=Age.ANY)
            if not self.report.is_dry:
                self._write_again(listed.run)
        if known.is_expired and not self.report.is_dry:
            self.services.store.prune(listed.root)

    def _is_expired(self, run: str) -> bool:
        with self.services.ledger.transaction() as session:
            return session.get_one(RunRow, run).expired_at is not None

    def _write_again(self, run: str) -> None:
        """Write the record again that was deleted, if an attempt has begun in the run meanwhile."""
        if self._is_expired(run):
            return
        with self.services.ledger.transaction(dataflow_of(run)) as session:
            session.get_one(RunRow, run).is_record_due = True
        write_record(self.services, run)

    def sweep_files(self, files: Iterable[tuple[str, int]], fate: Callable[[str], Fate], *, age: Age = Age.OLD) -> None:
        """Delete or list single files; unfinished writes of killed processes are deleted once they are old."""
        for path, size in files:
            is_temporary = TEMPORARY.fullmatch(name_of(path)) is not None
            found = (Garbage.STRAY, "a write that was never finished") if is_temporary else fate(path)
            if found is None:
                continue
            to, reason = found
            if isinstance(to, Garbage):
                self.remove_file(path, size, reason, to, age=Age.ANY if to in _NOT_AGED else age)
            else:
                to.append(Kept(path, size, reason))

    # Store and ledger

    def _list(self, run: str) -> _Listed:
        dataflow, _, epoch = run.partition("@")
        root = epoch_folder(dataflow, epoch)
        store = self.services.store
        folder = run_folder(root, ((each.path, each.bytes) for each in files_below(store, [root])))
        sinks = folders_in(store, sinks_folder(dataflow))
        beside = files_below(store, [pointer_folder(dataflow, sink, epoch) for sink in sinks])
        pointers = in_parallel(self._pointer, [each for each in beside if _is_pointer(each)], store.workers)
        temporary = tuple(each for each in beside if TEMPORARY.fullmatch(name_of(each.path)))
        return _Listed(run, root, folder, tuple(pointers), temporary)

    def _pointer(self, found: FoundFile) -> _Pointer:
        try:
            pointer = pointer_from_json(self.services.store.read(found.path))
            return _Pointer(found.path, found.bytes, tuple(each.folder for each in pointer.partitions))
        except NotFound:
            return _Pointer(found.path, 0, ())
        except (ValueError, TypeError, KeyError, Misconfigured):
            return _Pointer(found.path, found.bytes, None)

    def _knowledge(self, listed: _Listed) -> RunKnowledge:
        with self.services.ledger.transaction() as session:
            self.services.ledger.require_not_behind(session, dataflow_of(listed.run))
            return knowledge_of(
                session,
                listed.run,
                self._settings,
                self.services.now(),
                listed.folder,
                {each.path: each.folders or () for each in listed.pointers},
                is_reclaiming=self._is_reclaiming,
            )

    def _require_known(self, listed: _Listed, known: RunKnowledge) -> None:
        """Raise LedgerBehind if the folder has whole results or versions of which the ledger does not know."""
        if known.is_expired:
            return
        folders = [
            each.path
            for each in listed.folder.folders
            if each.place is Place.RESULT and MANIFEST in each.names and each.attempt not in known.attempts
        ]
        require_known_results(self.services, listed.run, folders)
        unknown = unknown_pointers([each.path for each in listed.pointers], known.pointers)
        require_known_versions(self.services, dataflow_of(listed.run), unknown)

    def _pointers(self, listed: _Listed, known: RunKnowledge) -> Callable[[str], Fate]:
        readable = {each.path for each in listed.pointers if each.folders is not None}

        def fate(path: str) -> Fate:
            is_live = known.pointers.get(path)
            if path in self._would_go:
                return None
            if is_live is None:
                return self.report.unknown, "the ledger does not know this version" if path in readable else _UNREADABLE
            if is_live:
                return self.report.kept, "the pointer to a published version"
            return Garbage.POINTER, "its version is expired"

        return fate

    def _compare(self, listed: _Listed, known: RunKnowledge) -> None:
        """Report finished results without their files; those committed since the listing are listed again."""
        found = {each.path: each for each in listed.folder.folders}
        finished = {path: each for path, each in known.results.items() if each.state is PartitionState.FINISHED}
        short = [path for path, each in finished.items() if path not in found or is_short(found[path], each.bytes)]
        if not short:
            return
        again = files_below(self.services.store, short)
        self.services.store_id()
        with self.services.ledger.transaction() as session:
            still = still_finished(session, listed.run, short)
        for path in sorted(still):
            names = {
                each.path.removeprefix(f"{path}/"): each.bytes for each in again if each.path.startswith(f"{path}/")
            }
            there = sum(size for name, size in names.items() if name not in NOTES)
            expected = finished[path].bytes
            if MANIFEST not in names or there < expected:
                gone = f"{there} of {expected} bytes are there" + ("" if MANIFEST in names else ", and no manifest")
                self.report.missing.append(Kept(path, expected - there, gone))

    # Folders

    def _note_gone(self, run: str, known: RunKnowledge, there: set[str]) -> None:
        gone = known_gone(known, there)
        if self.report.is_dry or not gone:
            return
        self.services.store_id()  # on an unmounted disk everything seems deleted
        with self.services.ledger.transaction(run.partition("@")[0]) as session:
            note_deleted(session, run, gone, self.services.now())

    def _apply(self, decision: FolderDecision, known: RunKnowledge) -> bool:
        """Apply a decision; return whether the whole folder was deleted."""
        folder, reason = decision.folder, decision.reason
        is_young = decision.age is not Age.ANY and not self._is_old(decision)
        if decision.action is FolderAction.KEPT or is_young:
            why = f"{reason}; it is not old enough yet" if is_young else reason
            self.report.kept.append(Kept(folder.path, folder.bytes, why))
            result = known.results.get(folder.path)
            if result is not None and result.state is PartitionState.FINISHED:
                self._remove_strays(decision, result.bytes)
            if folder.place is Place.SOURCE_COPY:
                self._remove_other_copies(folder, known)
            return False
        is_emptied = decision.action is FolderAction.EMPTIED
        if not self.report.is_dry:
            self._empty(decision) if is_emptied else self._remove(folder)
        size = folder.data_bytes if is_emptied else folder.bytes
        self.report.deleted.append(Swept(_kind(decision, known), folder.path, size, reason))
        return not is_emptied

    def _is_old(self, decision: FolderDecision) -> bool:
        """Report whether a folder has not changed within the age limit."""
        before = self.services.now() - self._age_limits[decision.age]
        if decision.since is not None and decision.since > before:
            return False
        paths = [f"{decision.folder.path}/{name}" for name, _ in decision.folder.files]
        times = in_parallel(self._modified, paths, self.services.store.workers)
        return all(at is None or at <= before for at in times)

    def _modified(self, path: str) -> datetime | None:
        try:
            return self.services.store.modified(path)
        except NotFound:
            return None

    def _remove(self, folder: AttemptFolder) -> None:
        for name in _POINTERS:
            if name in folder.names:
                self.services.store.delete(f"{folder.path}/{name}")
        if folder.place is not Place.SOURCE_COPY:
            self.services.store.delete_folder(folder.path)
            return
        for name in folder.names:  # an attempt that has begun since may write beside them
            self.services.store.delete(f"{folder.path}/{name}")

    def _empty(self, decision: FolderDecision) -> None:
        for name, _ in decision.folder.files:
            if name not in NOTES:
                self.services.store.delete(f"{decision.folder.path}/{name}")

    def _remove_strays(self, decision: FolderDecision, expected: int) -> None:
        """Delete files in the folder of a finished result that its manifest does not name."""
        folder = decision.folder
        if not may_have_strays(folder, expected):
            return
        try:
            manifest = read_manifest(self.services.store, folder.path)
        except (NotFound, Misconfigured):
            return  # `weir verify` reports it
        named = frozenset(file.name for file in manifest.files)
        for name, size in strays(folder, named):
            self.remove_file(f"{folder.path}/{name}", size, "no manifest names it")

    def _remove_other_copies(self, folder: AttemptFolder, known: RunKnowledge) -> None:
        """Delete what attempts have left that were killed while they copied, or were not first.

        An attempt that has ended since the listing may have described its copy before: so that is read now.
        """
        try:
            bound = from_json(StageCopy, self.services.store.read(f"{folder.path}/{COPY_NAME}")).attempt
        except NotFound:
            bound = None
        except Misconfigured:
            return  # `weir verify` reports it
        for name, size in other_copies(folder, bound, known):
            self.remove_file(f"{folder.path}/{name}", size, "another copy counts, or it was never completed")

    def remove_file(
        self,
        path: str,
        size: int,
        reason: str,
        kind: Garbage = Garbage.STRAY,
        *,
        age: Age = Age.OLD,
    ) -> None:
        """Delete one file once it has the age."""
        at = self._modified(path)
        if at is None:
            return
        if age is not Age.ANY and at > self.services.now() - self._age_limits[age]:
            self.report.kept.append(Kept(path, size, f"{reason}; it is not old enough yet"))
            return
        if not self.report.is_dry:
            self.services.store.delete(path)
        self.report.deleted.append(Swept(kind, path, size, reason))


def _is_pointer(found: FoundFile) -> bool:
    name = name_of(found.path)
    return name.endswith((".json", PROVISIONAL)) and not name.startswith(".")


def _kind(decision: FolderDecision, known: RunKnowledge) -> Garbage:
    if known.is_expired:
        return Garbage.EXPIRED
    if decision.action is FolderAction.EMPTIED:
        return Garbage.RELEASED
    if decision.folder.place is Place.COPY:
        return Garbage.COPY
    if decision.folder.place is Place.SOURCE_COPY:
        return Garbage.SOURCE_COPY
    return Garbage.SUPERSEDED if decision.folder.path in known.results else Garbage.ABANDONED


def without_state_in_use(
    services: Services, dataflow: str, decided: Iterable[FolderDecision]
) -> tuple[FolderDecision, ...]:
    """Return the decisions, but keep folders with files of states that are in use, keyed or not. Raises Retryable."""
    decisions = tuple(decided)
    doubtful = [
        each for each in decisions if each.action is not FolderAction.KEPT and each.folder.place is Place.RESULT
    ]
    if not doubtful:
        return decisions
    with services.ledger.transaction() as session:
        if not has_kept_state(session, dataflow):
            return decisions
    in_use = live_state_files(services, dataflow)
    folders = (each.folder for each in doubtful)
    held = {each.path for each in folders if any(f"{each.path}/{name}" in in_use for name in each.names)}
    return tuple(
        FolderDecision(each.folder, FolderAction.KEPT, "state that is in use") if each.folder.path in held else each
        for each in decisions
    )
