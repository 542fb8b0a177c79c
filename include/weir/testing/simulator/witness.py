"""Who watches a simulation: the ledger behind each transaction, the store at each change.

Invariant: the first thing that is wrong ends the simulation, by Broken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from weir.coordination.airflow import ClearAnswer
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.formats.codec import manifest_from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import MANIFEST
from weir.formats.pointer import pointer_from_json
from weir.testing.simulator.engine import SIZE, SimulatedEngine
from weir.testing.simulator.invariants.epochs import Epochs
from weir.testing.simulator.invariants.invariants import AFTER_EACH_TRANSACTION
from weir.testing.simulator.invariants.needs import Publications, is_in_use
from weir.testing.simulator.invariants.restores import Restores
from weir.testing.simulator.invariants.sight import Read, Result, Sight
from weir.testing.simulator.invariants.snapshots import Snapshot, Snapshots
from weir.topology.regions import Topology


class Broken(BaseException):
    """An invariant does not hold. Not an `Exception`: nothing that is tested may take it for a failure of its own."""

    def __init__(self, invariant: str, found: str) -> None:
        self.invariant, self.found = invariant, found
        super().__init__(f"{invariant.replace('_', ' ')}: {found}")


class Witness:
    """Sees all that happens in one simulation, and remembers what the invariants need."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        topology: Topology,
        engine: SimulatedEngine,
        files: Mapping[str, bytes],
        now: Callable[[], datetime],
    ) -> None:
        self.sight, self.engine = Sight(connection), engine
        self.epochs = Epochs(connection, topology)
        self.flow = topology.dataflow
        self.snapshots, self.restores = Snapshots(), Restores()
        self._states = {state.name for stage in topology.dataflow.stages for state in stage.states}
        self._state_files: dict[str, tuple[str, ...]] = {}
        self.committed_tries: dict[tuple[Any, ...], str] = {}
        self.created: set[str] = set()
        self.harmed: set[str] = set()
        self.answers: dict[tuple[str, str, int], list[ClearAnswer]] = {}
        self.made_anew: set[str] = set()
        self.files = files
        self._standing: dict[tuple[str, str], frozenset[str]] = {}
        self._publishable: dict[tuple[str, str, frozenset[str]], int] = {}
        self.published = Publications()
        self.now = now
        self.is_reclaiming = False
        """Whether who is at work just now wants room."""

    def observe(self) -> None:
        """Look at the ledger."""
        if not self.sight.look():
            return
        self._note_publishable()
        if self.flow.keeps_state:
            self.snapshots.look(self.sight.rows(Snapshot, "checkpoint"))
            self.restores.look(self)
        for invariant in AFTER_EACH_TRANSACTION:
            require(invariant.__name__, invariant(self))

    def topology_of(self, run: str) -> Topology:
        """What a run is pinned to."""
        return self.epochs.topology_of(run)

    def files_of(self, result: Result) -> tuple[str, ...]:
        """The data files of a result: of keyed state those that earlier attempts wrote, too."""
        return self._state_files.get(result.folder, (f"{result.folder}/part-0.bin",))

    def is_state(self, result: Result) -> bool:
        """Whether it is one of a state of any kind."""
        return result.stage in self._states

    def current_files(self) -> Iterator[str]:
        """The files of all current results; those of state, that an earlier attempt may have written, among them."""
        for result in self.sight.current.values():
            yield f"{result.folder}/{MANIFEST}"
            yield from self.files_of(result)

    def _note_publishable(self) -> None:
        """Remember which results of a sink were valid together, and until when."""
        if not self.sight.results_changed:
            return
        for where, folders in self._standing.items():
            self._publishable[*where, folders] = self.sight.looks - 1
        self._standing = {
            (run, sink): folders
            for run in {partition.run for partition in self.sight.current}
            for sink in self.topology_of(run).sinks
            if (folders := self._valid_together(run, sink))
        }

    def _valid_together(self, run: str, sink: str) -> frozenset[str]:
        (layout,) = self.topology_of(run).layouts_of(sink)
        partitions = self.epochs.partitions_of(run, sink, layout.id)
        is_whole = all(self.sight.is_good(each) for each in partitions)
        return frozenset(self.sight.current[each].folder for each in partitions) if is_whole else frozenset()

    @property
    def strategy(self) -> FailoverStrategy:
        """Which regions a failure restarts."""
        return self.flow.failover

    def restarts_consumers(self, stage: str) -> bool:
        """Whether consumers of `stage` restart with it whatever it gives."""
        return self.flow.consumers is Consumers.ALWAYS or not self.flow.stage(stage).deterministic

    def is_other(self, read: Read, found: Result) -> bool:
        """Whether a result is not what was read, as far as whoever read it is concerned."""
        if found.digest != read.digest:
            return True
        return found.attempt != read.attempt and self.restarts_consumers(read.partition.id.stage)

    def answered(self, answers: Iterable[ClearAnswer]) -> None:
        """Airflow has answered whoever wants task instances cleared."""
        for each in answers:
            item = each.item
            self.answers.setdefault((item.run_id, item.task_id, item.map_index), []).append(each)

    def is_back(self, result: Result | None) -> bool:
        """Whether a result that was missing is there again, as whoever probes it finds."""
        if result is None or result.state != "lost" or result.fault == "damaged":
            return False
        whole = all(len(self.files.get(path, b"")) == SIZE for path in self.files_of(result))
        return whole and f"{result.folder}/manifest.json" in self.files

    # The store

    def changed(self, how: str, path: str, data: bytes) -> None:
        """A process has written or deleted a file."""
        if how == "delete":
            require("nothing_in_use_is_deleted", self._deleted(path))
            return
        if how == "replace":
            require("no_name_is_written_twice", [] if path.endswith("/_run.json") else [f"{path} is replaced"])
            return
        require("no_name_is_written_twice", [f"{path} is written again"] if path in self.created else [])
        self.created.add(path)
        self.snapshots.wrote(path, data)
        if path.endswith(f"/{MANIFEST}"):
            self._note_state(manifest_from_json(data), path.rpartition("/")[0])
        if path.startswith("_sinks/"):
            require("what_is_published_was_valid_as_a_whole", self._publishes(path, data))

    def _note_state(self, manifest: Manifest, folder: str) -> None:
        if manifest.state is not None:
            self._state_files[folder] = tuple(file.path for file in manifest.state.files)

    def _deleted(self, path: str) -> Iterator[str]:
        why = is_in_use(self, path)
        if why is not None:
            yield f"{path} is deleted: {why}"
        self.published.remove(path)

    def _publishes(self, path: str, data: bytes) -> Iterator[str]:
        pointer = pointer_from_json(data)
        folders = frozenset(each.folder for each in pointer.partitions)
        self.published.add(path, pointer, self.now())
        run = f"{pointer.dataflow}@{pointer.epoch}"
        last = self._publishable.get((run, pointer.sink, folders), 0)
        is_standing = self._standing.get((run, pointer.sink)) == folders
        if not is_standing and last < self.sight.first_seen.get(pointer.attempt, 0):
            yield f"{path} of {pointer.attempt} names {sorted(folders)}, which were not valid together since it began"


def require(invariant: str, found: Iterable[str]) -> None:
    """Raise Broken with the first thing that was found."""
    for text in found:
        raise Broken(invariant, text)
