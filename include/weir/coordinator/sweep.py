"""Sweeping: the store is listed against the ledger, and what nobody needs is removed (`weir gc`, and upkeep).

Invariant 4: the store is listed first and the ledger read then, so that no file of an attempt at work is ever taken for
nobody's. Invariant 7: deleting may stop at any step, and the next sweep goes on. What is deleted is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from weir.coordinator.release import delete_released, release
from weir.coordinator.services import Services
from weir.coordinator.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.errors import Misconfigured
from weir.ledger.models import DataflowRow
from weir.ledger.sweeping import knowledge_of, runs_to_sweep, settings_of, still_finished
from weir.results.codec import manifest_from_json
from weir.results.life_settings import LifeSettings
from weir.results.orphans import (
    MANIFEST,
    Fate,
    Judgement,
    Place,
    RunFolder,
    RunKnowledge,
    is_short,
    judge,
    may_have_strays,
    run_folder,
    strays,
)
from weir.results.partition_state import PartitionState
from weir.results.released_note import RELEASED_NOTE
from weir.results.stage_copy import COPY_NAME
from weir.sinks.pointer import pointer_from_json
from weir.store.errors import NotFound
from weir.store.hands import in_parallel
from weir.store.walk import FoundFile, files_below

RECENT = timedelta(days=2)
"""A sweep that is not full looks at runs in which something has happened since the age floor and so much more."""

_SINKS = "_sinks"
_POINTERS = (MANIFEST, COPY_NAME)
"""What makes files a result or a copy: it goes before them."""


def sweep(
    services: Services,
    dataflow: str | None = None,
    *,
    is_full: bool = False,
    is_dry: bool = False,
    is_pressed: bool = False,
    older_than: timedelta | None = None,
) -> SweepReport:
    """Release what nobody needs and remove it, with all that dead attempts left, of one dataflow or of all.

    A full one looks at every folder, else only at runs of the last days. `is_pressed`: room is needed, so that policies
    keep nothing. `older_than` is how old a file must be that nobody knows. A dry one changes nothing.
    Raises Misconfigured for a dataflow that the ledger does not know, and Retryable.
    """
    services.store_id()  # an unmounted disk looks as if all were missing
    report = SweepReport(is_dry, is_full)
    for name in _named(services, dataflow):
        _Sweep(services, name, report, older_than, is_pressed=is_pressed).run()
    return report


def _named(services: Services, dataflow: str | None) -> list[str]:
    with services.ledger.transaction() as session:
        known = list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))
    if dataflow is not None and dataflow not in known:
        raise Misconfigured(f"the ledger knows no dataflow {dataflow}; it knows {', '.join(known) or 'none'}")
    return known if dataflow is None else [dataflow]


@dataclass(frozen=True, slots=True)
class _Listed:
    """The folder of a run, and those that its pointers name."""

    run: str
    folder: RunFolder
    pointed: frozenset[str]


class _Sweep:
    """One dataflow."""

    def __init__(
        self,
        services: Services,
        dataflow: str,
        report: SweepReport,
        older_than: timedelta | None,
        *,
        is_pressed: bool,
    ) -> None:
        self._services, self._dataflow, self._report = services, dataflow, report
        self._is_pressed = is_pressed
        with services.ledger.transaction() as session:
            self._settings: LifeSettings = settings_of(session, dataflow, services.life)
        self._floor = self._settings.orphan_age if older_than is None else older_than

    def run(self) -> None:
        self._release()
        for run in self._runs():
            self._sweep_run(run)
            self._report.runs += 1

    # Results

    def _release(self) -> None:
        said = release(self._services, self._dataflow, is_pressed=self._is_pressed, is_dry=self._report.is_dry)
        if self._report.is_dry:
            self._report.to_release += [each for each in said if each.is_released]
            return
        for each in delete_released(self._services, self._dataflow):
            self._report.deleted.append(Swept(Garbage.RELEASED, each.folder, each.bytes, each.reason))

    # Folders of runs

    def _runs(self) -> list[str]:
        since = None if self._report.is_full else self._services.now() - self._floor - RECENT
        with self._services.ledger.transaction() as session:
            return runs_to_sweep(session, self._dataflow, since)

    def _sweep_run(self, run: str) -> None:
        listed = self._list(run)
        known = self._know(listed)
        self._compare(listed, known)
        for judgement in judge(listed.folder, known):
            self._carry_out(judgement, known)
        for path, size in listed.folder.temporary:
            self._remove_file(path, size, "a write that was never finished")
        self._report.unknown += [Kept(path, size, "not a file of Weir's") for path, size in listed.folder.strange]

    def _list(self, run: str) -> _Listed:
        root = run.replace("@", "/", 1)
        files = files_below(self._services.store, [root])
        folder = run_folder(root, ((each.path, each.bytes) for each in files))
        return _Listed(run, folder, self._pointed(root.partition("/")[2]))

    def _pointed(self, epoch: str) -> frozenset[str]:
        """The folders that the pointers of an epoch name."""
        store = self._services.store
        try:
            sinks = [name for name, size in store.entries(f"{_SINKS}/{self._dataflow}") if size is None]
        except NotFound:
            return frozenset()
        pointers = files_below(store, [f"{_SINKS}/{self._dataflow}/{sink}/{epoch}" for sink in sinks])
        found = in_parallel(self._folders_of, pointers, store.workers)
        return frozenset(folder for folders in found for folder in folders)

    def _folders_of(self, pointer: FoundFile) -> tuple[str, ...]:
        if not pointer.path.endswith(".json"):
            return ()
        try:
            return tuple(each.folder for each in pointer_from_json(self._services.store.read(pointer.path)).partitions)
        except (NotFound, ValueError, TypeError, KeyError):
            return ()

    def _know(self, listed: _Listed) -> RunKnowledge:
        copies = {(each.name, each.subtask) for each in listed.folder.folders if each.place is Place.COPY}
        with self._services.ledger.transaction() as session:
            return knowledge_of(
                session,
                listed.run,
                self._settings,
                self._services.now(),
                copies,
                listed.pointed,
                is_pressed=self._is_pressed,
            )

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

    def _carry_out(self, judgement: Judgement, known: RunKnowledge) -> None:
        folder = judgement.folder
        if judgement.fate is Fate.KEPT:
            self._report.kept.append(Kept(folder.path, folder.bytes, judgement.reason))
            result = known.results.get(folder.path)
            if result is not None and result.state is PartitionState.FINISHED:
                self._remove_strays(judgement, result.bytes)
            return
        if judgement.is_aged and not self._is_old(judgement):
            reason = f"{judgement.reason}; it is not old enough yet"
            self._report.kept.append(Kept(folder.path, folder.bytes, reason))
            return
        kind, size = _kind(judgement, known), folder.bytes
        if judgement.fate is Fate.EMPTIED:
            size = folder.data_bytes
            self._empty(judgement)
        elif not self._report.is_dry:
            self._remove(folder.path, folder.names)
        self._report.deleted.append(Swept(kind, folder.path, size, judgement.reason))

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
        if self._report.is_dry:
            return
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
            self._remove_file(f"{folder.path}/{name}", size, "no manifest names it")

    def _remove_file(self, path: str, size: int, reason: str) -> None:
        at = self._modified(path)
        if at is None:
            return
        if at > self._services.now() - self._floor:
            self._report.kept.append(Kept(path, size, f"{reason}; it is not old enough yet"))
            return
        if not self._report.is_dry:
            self._services.store.delete(path)
        self._report.deleted.append(Swept(Garbage.STRAY, path, size, reason))


def _kind(judgement: Judgement, known: RunKnowledge) -> Garbage:
    if known.is_expired:
        return Garbage.EXPIRED
    if judgement.fate is Fate.EMPTIED:
        return Garbage.RELEASED
    if judgement.folder.place is Place.COPY:
        return Garbage.COPY
    return Garbage.SUPERSEDED if judgement.folder.path in known.results else Garbage.ABANDONED
