"""The history of one simulation: everything that the invariants are checked against.

Invariant: it is read from the ledger's tables and the store's files, and from what the engine and Airflow did; never
from the code that is tested.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from tests.simulator.engine import SIZE, SimulatedEngine
from tests.simulator.history.epochs import Epochs, RunRegion
from tests.simulator.history.ledger_view import LedgerView, Read, Result
from tests.simulator.history.publications import Publications
from tests.simulator.history.restores import Restores
from tests.simulator.history.snapshots import Snapshots
from tests.simulator.listings import Listings

from weir.coordination.airflow import ClearAnswer
from weir.coordination.values import TaskKey
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.execution.run_state import CLOSE
from weir.formats.paths import folder_of, manifest_path, name_of
from weir.ledger.leases import LEASE
from weir.ledger.runs import dataflow_of
from weir.topology.ids import is_synthetic
from weir.topology.regions import Topology

Try = tuple[*RunRegion, int]
"""A run, its region, and a try number."""


class History:
    """The history of one simulation; the observer adds to it, the invariants read it."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        topology: Topology,
        engine: SimulatedEngine,
        files: Mapping[str, bytes],
        now: Callable[[], datetime],
    ) -> None:
        self.ledger, self.engine, self.files, self.now = LedgerView(connection), engine, files, now
        self.epochs = Epochs(connection, topology)
        self.flow = topology.dataflow
        self.snapshots, self.restores, self.published = Snapshots(), Restores(), Publications()
        self.committed_tries: dict[Try, str] = {}
        """By try, the attempt that has committed."""
        self.created: set[str] = set()
        """The paths of all files that were ever created."""
        self.damaged: set[str] = set()
        """The folders of results whose files were lost or damaged."""
        self.unnoted: set[str] = set()
        """The folders that were released without a note, for which there was no space: a rebuilt ledger misses them."""
        self.answers: dict[tuple[str, str, int], list[ClearAnswer]] = {}
        """Airflow's answers to clears, by DagRun, task and map index."""
        self.cleared_in_airflow: dict[RunRegion, str | None] = {}
        """The regions that Airflow has told to be yet to run, and their newest attempts then."""
        self.recreated: set[str] = set()
        """The DagRuns that were deleted and created again under their names."""
        self.adopted: set[str] = set()
        """The runs whose results a person has given up, to have them computed again."""
        self.state_files: dict[str, tuple[str, ...]] = {}
        """By folder of a result of keyed state, the data files that its manifest names."""
        self.cleared: Sequence[tuple[TaskKey, int]] = ()
        """What persons have cleared: task instances, and their newest tries then."""
        self.archives: Mapping[str, Mapping[str, int]] = {}
        """By fingerprint of an archive, the edits of functions by stage."""
        self.listings = Listings(())
        """The files of sources, and all listings that there were."""
        self.read_by: dict[tuple[str, str, int], tuple[str, ...]] = {}
        """By run, source and subtask, the files whose rows were closed last: they stay published."""
        self.slack = timedelta()
        """How far two clocks were apart at most."""
        self.deleted: set[str] = set()
        """The DagRuns that are deleted, and were not created again."""
        self._leased: dict[tuple[int, str], datetime] = {}
        """By lease, and until when the ledger says that it lasts: when it was taken or renewed."""
        self.lost: set[str] = set()
        """The folders of results that were current when the ledger went back in time."""
        self.forgotten: set[str] = set()
        """The attempts that the ledger has lost."""
        self.has_lost_commits = False
        """True once the ledger has gone back in time."""
        self.is_reclaiming = False
        """True if the process that runs now needs free space."""
        self._states = {state.name for stage in topology.dataflow.stages for state in stage.states}

    def went_back(self) -> None:
        """Note that the ledger has lost its last commits: its tables are what they were before these.

        What was committed then, and deleted since, counts as damaged: the ledger does not know who has deleted it.
        """
        self.has_lost_commits = True
        self.lost |= {each.folder for each in self.ledger.current.values() if each.state == "finished"}
        before = {*self.ledger.attempts}
        self.ledger.went_back()
        self.forgotten |= before - self.ledger.attempts.keys()
        self.note_leases(self.now())
        self.committed_tries = {at: id_ for at, id_ in self.committed_tries.items() if id_ in self.ledger.attempts}
        for result in self.ledger.results.values():
            gone = {path for path in (manifest_path(result.folder), *self.files_of(result)) if path not in self.files}
            self.damaged |= {folder_of(path) for path in gone}

    def why_unknown(self, path: str) -> str | None:
        """Return which result a file is of that was committed, that the ledger has lost, and has not caught up with.

        Of a DagRun that was deleted nobody needs it, nor of an older pin, which the ledger notes; nor of a restore that
        is lost, and of which nothing was read: it is as if it had not been carried out.
        """
        folder = folder_of(path)
        run = self.ledger.runs().get("@".join(path.split("/")[:2]))
        if run is not None and run.run_id in self.deleted:
            return None
        given_up = [] if run is None else json.loads(run.abandoned or "null") or []
        is_known = name_of(folder) in self.ledger.attempts or name_of(folder) in given_up
        if folder not in self.lost or folder in self.damaged or is_known:
            return None
        if is_synthetic(name_of(folder)) and not self._was_read(name_of(folder)):
            return None
        return "its result was committed, and the ledger does not know its attempt any more"

    def _was_read(self, attempt: str) -> bool:
        return any(read.attempt == attempt for reads in self.ledger.reads.values() for read in reads)

    @property
    def strategy(self) -> FailoverStrategy:
        """Return the dataflow's failover strategy."""
        return self.flow.failover_strategy

    def latest(self) -> datetime:
        """Return the latest time that a process may have; those that are read from rows may be earlier by `slack`."""
        return self.now() + self.slack

    def note_leases(self, at: datetime) -> None:
        """Remember when leases were taken or renewed, by the right clock: `at`, if they are new."""
        for row in self.ledger.leases.values():
            self._leased.setdefault((row.id, row.expires_at), at)

    def readers_of(self, results: Collection[int]) -> Iterator[str]:
        """Yield the holders of leases that were taken or renewed less than an hour ago."""
        for row in self.ledger.leases.values():
            if row.result in results and self._leased[row.id, row.expires_at] + LEASE > self.now():
                yield row.holder

    def begun(self) -> set[RunRegion]:
        """Return the regions that have begun, each with its run, without those of an older pin that it has no more."""
        return {each for each in self.ledger.regions() if self.epochs.has(*each)}

    def begun_later(self, run: str) -> set[RunRegion]:
        """Return the regions of later runs of its dataflow that have begun, without closing tasks and sealed runs."""
        mine = dataflow_of(run)
        later = {each for each in self.begun() if each[0] > run and dataflow_of(each[0]) == mine and each[1] != CLOSE}
        return {each for each in later if each[0] not in self.ledger.sealed}

    def topology_of(self, run: str) -> Topology:
        """Return the topology that a run is pinned to."""
        return self.epochs.topology_of(run)

    def files_of(self, result: Result) -> tuple[str, ...]:
        """Return the data files of a result; keyed state includes files that earlier attempts wrote."""
        return self.state_files.get(result.folder, (f"{result.folder}/part-0.bin",))

    def current_files(self) -> Iterator[str]:
        """Yield the files of all current results; keyed state includes files that earlier attempts wrote."""
        for result in self.ledger.current.values():
            yield manifest_path(result.folder)
            yield from self.files_of(result)

    def is_state(self, result: Result) -> bool:
        """Report whether a result is one of keyed or operator state."""
        return result.stage in self._states

    def is_back(self, result: Result | None) -> bool:
        """Report whether a result that was lost is in the store again, as a probe of its files finds."""
        if result is None or result.state != "lost" or result.fault == "damaged":
            return False
        whole = all(len(self.files.get(path, b"")) == SIZE for path in self.files_of(result))
        return whole and manifest_path(result.folder) in self.files

    def restarts_consumers(self, stage: str) -> bool:
        """Report whether consumers of `stage` restart with it even if its content stays the same."""
        return self.flow.consumers is Consumers.ALWAYS or not self.flow.stage(stage).deterministic

    def is_other(self, read: Read, found: Result) -> bool:
        """Report whether a consumer that made this read has to run again to read `found`."""
        if found.digest != read.digest:
            return True
        return found.attempt != read.attempt and self.restarts_consumers(read.partition.id.stage)
