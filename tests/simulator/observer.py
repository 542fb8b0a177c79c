"""The observer of a simulation: it sees the ledger after each transaction, and the store at each change.

Invariant: the first broken invariant ends the simulation, by raising Broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from tests.simulator.history.history import History
from tests.simulator.history.snapshots import Snapshot
from tests.simulator.invariants.invariants import AFTER_A_REBUILD, AFTER_EACH_TRANSACTION, why_not_stopped
from tests.simulator.invariants.needs import is_in_use

from weir.coordination.airflow import ClearAnswer
from weir.coordination.values import Begun
from weir.execution.airflow_words import FINAL
from weir.formats.codec import from_json
from weir.formats.manifest import RELEASED_NOTE, Manifest
from weir.formats.paths import MANIFEST, folder_of, manifest_path, name_of
from weir.formats.pointer import pointer_from_json
from weir.topology.regions import RegionId


class Broken(BaseException):
    """An invariant does not hold. Not an `Exception`: the tested code must not handle it."""

    def __init__(self, invariant: str, found: str) -> None:
        self.invariant, self.found = invariant, found
        super().__init__(f"{invariant.replace('_', ' ')}: {found}")


class NeedsARestore(BaseException):
    """A state that has to be recomputed has expired, and there is no checkpoint that a person could restore."""


def require(invariant: str, found: Iterable[str]) -> None:
    """Raise Broken with the first violation found."""
    for text in found:
        raise Broken(invariant, text)


class Observer:
    """Adds to the history of one simulation, and checks the invariants against it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._valid_sinks: dict[tuple[str, str], frozenset[str]] = {}
        """By run and sink, the folders of its results that are valid together now."""
        self._valid_until: dict[tuple[str, str, frozenset[str]], int] = {}
        """By run, sink and folders that were valid together once, the last refresh at which they were."""

    def transaction_committed(self, *, is_rebuilt: bool = False, sent_at: datetime | None = None) -> None:
        """Read the ledger, and check all invariants if it has changed; if it was rebuilt, those of what it holds.

        One that comes true late was `sent_at` some time before.
        """
        history = self._history
        if not history.ledger.refresh(is_rebuilt=is_rebuilt):
            return
        if is_rebuilt:
            history.ledger.note_without_a_manifest(history.files)
            self._note_released_meanwhile()
        history.note_leases(sent_at or history.now())
        self._note_valid_sinks()
        if history.flow.keeps_state:
            history.snapshots.update(history.ledger.rows(Snapshot, "checkpoint"))
            history.restores.update(history.ledger, history.snapshots, history.engine.made)
        # One that is impossible restarts nothing, and says that a person has to restore a checkpoint.
        history.ledger.new_failovers = [each for each in history.ledger.new_failovers if not each.is_impossible]
        for invariant in AFTER_A_REBUILD if is_rebuilt else AFTER_EACH_TRANSACTION:
            require(invariant.__name__, invariant(history))

    def ledger_went_back(self) -> None:
        """Take what the ledger has now for all that it ever had: it has lost its last commits."""
        history = self._history
        history.went_back()
        self._note_valid_sinks()
        if history.flow.keeps_state:
            history.snapshots.update(history.ledger.rows(Snapshot, "checkpoint"))
            history.restores.went_back(history.ledger)

    def free_files(self) -> frozenset[str]:
        """Return the files that may be deleted now."""
        return frozenset(path for path in self._history.files if self._why_not_deleted(path) is None)

    def file_deleted_late(self, path: str) -> None:
        """Note that a process deletes what was free when it looked, before the ledger lost commits.

        Nobody can know at the instant of a deletion that they are lost: it is as if it had come before the loss.
        """
        self._history.damaged.add(folder_of(path))
        self._history.published.remove(path)

    def attempt_stopped(self, begun: Begun) -> None:
        """Check that the commit of an attempt that a heartbeat stops would be refused."""
        require("only_attempts_that_cannot_commit_are_stopped", why_not_stopped(self._history, begun))

    def airflow_answered(self, answers: Iterable[ClearAnswer]) -> None:
        """Note Airflow's answers to clears."""
        for answer in answers:
            item = answer.item
            self._history.answers.setdefault((item.run_id, item.task_id, item.map_index), []).append(answer)

    def airflow_was_asked(self, answers: Iterable[ClearAnswer]) -> None:
        """Note which regions Airflow will run, by its answers, and do not run by the ledger."""
        ledger, cleared = self._history.ledger, self._history.cleared_in_airflow
        runs = {row.run_id: run for run, row in ledger.runs().items()}
        for answer in answers:
            where = runs.get(answer.item.run_id, ""), RegionId(answer.item.task_id, max(answer.item.map_index, 0))
            cleared.pop(where, None)
            if answer.state not in FINAL and not ledger.is_running(*where):
                newest = ledger.newest(*where)
                cleared[where] = newest and newest.id

    def file_changed(self, how: str, path: str, data: bytes) -> None:
        """Note that a process writes or deletes a file, and check that it may."""
        if how == "delete":
            require("nothing_in_use_is_deleted", self._deleted(path))
            self._note_release(folder_of(path))
            self._note_forgotten(folder_of(path))
            return
        if how == "replace":
            require("no_name_is_written_twice", [] if path.endswith("/_run.json") else [f"{path} is replaced"])
            return
        history = self._history
        is_twice = path in history.created and not history.snapshots.has_written(path, data)
        # A process may note late that a result was released whose folder is deleted by now: a sweep takes the note.
        is_twice &= not path.endswith(f"/{RELEASED_NOTE}") or manifest_path(folder_of(path)) in history.files
        require("no_name_is_written_twice", [f"{path} is written again"] if is_twice else [])
        history.created.add(path)
        history.snapshots.wrote(path, data)
        if path.endswith(f"/{RELEASED_NOTE}"):
            history.unnoted.discard(folder_of(path))
        if path.endswith(f"/{MANIFEST}"):
            self._note_state(from_json(Manifest, data), folder_of(path))
        if path.startswith("_sinks/"):
            require("what_is_published_was_valid_as_a_whole", self._published(path, data))

    def _note_release(self, folder: str) -> None:
        there = self._history.files
        is_unnoted = manifest_path(folder) in there and f"{folder}/{RELEASED_NOTE}" not in there
        if is_unnoted and self._history.is_reclaiming:
            self._history.unnoted.add(folder)

    def _note_released_meanwhile(self) -> None:
        """Note what a rebuild has listed as whole, and a release has deleted before the rebuild has entered it."""
        history = self._history
        for result in history.ledger.current.values():
            is_released = f"{result.folder}/{RELEASED_NOTE}" in history.files and result.state == "finished"
            if is_released and not history.files.keys() >= {*history.files_of(result)}:
                history.damaged.add(result.folder)

    def _note_forgotten(self, folder: str) -> None:
        """Note a deleted folder of an attempt that the ledger has lost while it computed, and that goes on.

        A sweep of a simulation takes folders of any age. The attempt may write its manifest yet, which is found then.
        """
        if name_of(folder) in self._history.forgotten and manifest_path(folder) not in self._history.created:
            self._history.damaged.add(folder)

    def _note_state(self, manifest: Manifest, folder: str) -> None:
        self._history.restores.wrote(manifest)
        if manifest.state is not None:
            self._history.state_files[folder] = tuple(file.path for file in manifest.state.files)

    def _deleted(self, path: str) -> Iterator[str]:
        why = self._why_not_deleted(path)
        if why is not None:
            yield f"{path} is deleted: {why}"
        self._history.published.remove(path)

    def _why_not_deleted(self, path: str) -> str | None:
        return is_in_use(self._history, path) or self._history.why_unknown(path)

    def _published(self, path: str, data: bytes) -> Iterator[str]:
        history, pointer = self._history, pointer_from_json(data)
        folders = frozenset(part.folder for part in pointer.partitions)
        history.published.add(path, pointer, history.now())
        run = f"{pointer.dataflow}@{pointer.epoch}"
        last = self._valid_until.get((run, pointer.sink, folders), 0)
        is_valid_now = self._valid_sinks.get((run, pointer.sink)) == folders
        if not is_valid_now and last < history.ledger.first_seen.get(pointer.attempt, 0):
            yield f"{path} of {pointer.attempt} names {sorted(folders)}, which were not valid together since it began"

    def _note_valid_sinks(self) -> None:
        """Remember which results of a sink were valid together, and until when."""
        ledger = self._history.ledger
        if not ledger.results_changed:
            return
        for where, folders in self._valid_sinks.items():
            self._valid_until[*where, folders] = ledger.refreshes - 1
        self._valid_sinks = {
            (run, sink): folders
            for run in {partition.run for partition in ledger.current}
            for sink in self._history.topology_of(run).sinks
            if (folders := self._valid_together(run, sink))
        }

    def _valid_together(self, run: str, sink: str) -> frozenset[str]:
        ledger = self._history.ledger
        (layout,) = self._history.topology_of(run).layouts_of(sink)
        partitions = self._history.epochs.partitions_of(run, sink, layout.id)
        is_whole = all(ledger.is_good(partition) for partition in partitions)
        return frozenset(ledger.current[partition].folder for partition in partitions) if is_whole else frozenset()
