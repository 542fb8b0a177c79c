"""A view of the ledger's tables, read without the tested code.

Invariant: it is what the tables hold at one instant, and what has changed since the last refresh.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.simulator.listings import files_of

from weir.formats.paths import MANIFEST, folder_of, results_folder
from weir.ledger.runs import dataflow_of, run_key
from weir.topology.regions import PartitionId, RegionId


class Attempt(NamedTuple):
    """One try of a region."""

    id: str
    run: str
    region: str
    subtask: int
    try_number: int
    state: str
    began_at: str
    ended_at: str | None
    origin: str
    lineage: int
    task_id: str
    map_index: int
    failure: str | None
    code: str | None
    archive: str | None
    generation: int | None

    @property
    def is_restored(self) -> bool:
        """Report whether it is synthetic: its results are those of a checkpoint or savepoint."""
        return self.origin == "restored"

    @property
    def run_region(self) -> tuple[str, RegionId]:
        """Return the run and its region."""
        return self.run, RegionId(self.region, self.subtask)


class Result(NamedTuple):
    """A result partition of one attempt."""

    id: int
    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    is_current: int
    state: str
    fault: str | None
    folder: str
    digest: str
    versions: str

    @property
    def known_versions(self) -> frozenset[str]:
        """Return the versions of code that are known to make it."""
        return frozenset(json.loads(self.versions))

    @property
    def partition(self) -> Partition:
        """Return the partition that it is a result of."""
        return Partition(self.run, PartitionId(self.stage, self.subtask, self.layout))


class Partition(NamedTuple):
    """A result partition of a run, whatever the attempt."""

    run: str
    id: PartitionId


class Read(NamedTuple):
    """An input that a committed attempt was made from."""

    partition: Partition
    attempt: str
    digest: str


class Clear(NamedTuple):
    """A pending or delivered clear."""

    id: int
    run: str
    region: str
    subtask: int
    run_id: str
    task_id: str
    map_index: int
    expected_try: int
    failover: int | None
    settled_at: str | None
    is_void: int
    reason: str
    code: str | None
    outcome: str | None

    @property
    def run_region(self) -> tuple[str, RegionId]:
        """Return the run and its region."""
        return self.run, RegionId(self.region, self.subtask)


class Failover(NamedTuple):
    """A decision to restart."""

    id: int
    run: str
    region: str
    subtask: int
    kind: str
    plan: str

    def steps(self) -> list[dict[str, Any]]:
        """Return the plan's steps, one for each region."""
        found: list[dict[str, Any]] = json.loads(self.plan)["steps"]
        return found

    @property
    def is_impossible(self) -> bool:
        """Report whether nothing can be re-run, as a state that is needed has expired."""
        return bool(json.loads(self.plan)["impossible"])


class Lease(NamedTuple):
    """A reader's claim on a result."""

    id: int
    result: int
    holder: str
    expires_at: str


class Closed(NamedTuple):
    """A run, since when it is closed, its archive, its DagRun, since when that is gone, older attempts, its seal."""

    id: str
    created_at: str
    closed_at: str | None
    run_id: str
    archive: str | None
    deleted_at: str | None
    abandoned: str | None
    sealed_at: str | None


class StoredArchive(NamedTuple):
    """An archive of code in the store."""

    dataflow: str
    fingerprint: str
    path: str
    deleting_at: str | None


def place_of(partition: Partition) -> tuple[str, str, str]:
    """Return run, stage and layout."""
    return partition.run, partition.id.stage, partition.id.layout


def _folder(partition: Partition) -> str:
    """Return the folder in the store that holds those of all attempts of a partition."""
    dataflow, epoch = partition.run.split("@")
    return results_folder(dataflow, epoch, partition.id.stage, partition.id.layout, partition.id.subtask)


class LedgerView:
    """The ledger at the last refresh; the names that begin with `new` hold the changes since the one before."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changes = -1
        self.refreshes = 0
        self.attempts: dict[str, Attempt] = {}
        self.results: dict[int, Result] = {}
        self.current: dict[Partition, Result] = {}
        self.reads: dict[str, tuple[Read, ...]] = {}
        self.clears: dict[int, Clear] = {}
        self.first_seen: dict[str, int] = {}
        self.committed_in: dict[str, int] = {}
        """By attempt, the refresh at which it was first seen committed."""
        self.failovers: dict[int, Failover] = {}
        self.leases: dict[int, Lease] = {}
        self.recorded: dict[tuple[str, str], list[Any]] = {}
        """By run and source, the recorded splits."""
        self.splits: dict[tuple[str, str], list[Any]] = {}
        self.ends: dict[tuple[str, str], tuple[int, str | None]] = {}
        """By run and source that goes on, the position at which it ends, and the run at whose end it begins."""
        """By run and source, what each of its subtasks is to read."""
        self.without_a_manifest: set[Partition] = set()
        """Inputs of later epochs of which a rebuild has found no manifest: what was read of them holds until they are
        computed again."""
        self._leased: set[tuple[str, int]] = set()
        """The holders and results of all leases ever: a lease that is renewed is no new one."""
        self._forget_news()
        self._valid: dict[Partition, bool] = {}
        self._subtasks: Counter[tuple[str, str, str]] = Counter()
        self.run_before: dict[str, str] = {}
        """By run, the one whose state and results it reads."""
        self.sealed: set[str] = set()
        """The runs that are sealed."""
        self._behind: dict[tuple[str, str], tuple[Partition, ...]] = {}

    def _forget_news(self) -> None:
        self.before: dict[str, Attempt] = self.attempts
        self.new_commits: list[Attempt] = []
        self.new_results: list[Result] = []
        self.newly_lost: list[Result] = []
        self.newly_suspected: list[Result] = []
        self.newly_released: list[Result] = []
        self.new_clears: list[Clear] = []
        self.newly_settled: list[Clear] = []
        self.new_failovers: list[Failover] = []
        self.new_leases: list[Lease] = []
        self.results_changed = False

    def refresh(self, *, is_rebuilt: bool = False) -> bool:
        """Read the tables if they have changed; report whether they have. One that is rebuilt has other reads, too."""
        if self._connection.total_changes == self._changes:
            return False
        self._changes = self._connection.total_changes
        self.refreshes += 1
        self._forget_news()
        self._read_attempts()
        if is_rebuilt:
            self.reads |= {id_: found for id_ in self.attempts if (found := tuple(self._reads_of(id_)))}
            self._valid = {}
        self._read_results()
        self._read_others()
        return True

    def note_without_a_manifest(self, files: Iterable[str]) -> None:
        """Note after a rebuild which inputs of later epochs have no result, and no manifest in the store, either."""
        missed = {
            read.partition
            for result in self.current.values()
            for read in self.reads.get(result.attempt, ())
            if read.partition.run != result.run and read.partition not in self.current
        }
        places = {folder_of(folder_of(path)) for path in files if path.endswith(f"/{MANIFEST}")} if missed else set()
        self.without_a_manifest = {each for each in missed if _folder(each) not in places}
        self._valid = {}

    def went_back(self) -> None:
        """Read the tables after they have gone back in time: what is lost is not there, and may be new again."""
        self.failovers, self._leased = {}, set()
        self.replace()
        self.refresh(is_rebuilt=True)

    def replace(self) -> None:
        """Note that the tables are others, though this connection has not changed them."""
        self._changes = -1

    def _read_attempts(self) -> None:
        self.attempts = {row.id: row for row in map(Attempt._make, self._rows(Attempt, "attempt"))}
        for row in self.attempts.values():
            self.first_seen.setdefault(row.id, self.refreshes)
            known = self.before.get(row.id)
            if row.state == "committed" and (known is None or known.state != "committed"):
                self.new_commits.append(row)
                self.committed_in[row.id] = self.refreshes
                self.reads[row.id] = tuple(self._reads_of(row.id))

    def _read_results(self) -> None:
        found = {row.id: row for row in map(Result._make, self._rows(Result, "result"))}
        self.results_changed = found != self.results
        self.new_results = [row for row in found.values() if row.id not in self.results]
        if self.results_changed:
            changed = [row for row in found.values() if row.id in self.results and self.results[row.id] != row]
            moved = [row for row in changed if self.results[row.id].state != row.state]
            self.newly_lost = [row for row in moved if row.state == "lost"]
            self.newly_suspected = [row for row in moved if row.state == "quarantined"]
            self.newly_released = [row for row in moved if row.state == "released"]
            self.results = found
            self.current = {row.partition: row for row in found.values() if row.is_current}
            self.without_a_manifest -= self.current.keys()
            self._subtasks = Counter(map(place_of, self.current))
            self._valid, self._behind = {}, dict(self._stages_of_several_codes())

    def _read_others(self) -> None:
        clears = {row.id: row for row in map(Clear._make, self._rows(Clear, "pending_clear"))}
        self.new_clears = [row for row in clears.values() if row.id not in self.clears]
        self.newly_settled = [row for row in self.pending_clears() if clears.get(row.id, row).settled_at is not None]
        self.clears = clears
        last = max(self.failovers, default=0)
        self.new_failovers = list(map(Failover._make, self._rows(Failover, "failover", f"WHERE id > {last}")))
        self.failovers |= {row.id: row for row in self.new_failovers}
        chain = self._connection.execute("SELECT id, dataflow, predecessor FROM run WHERE predecessor IS NOT NULL")
        before = {run: str(run_key(dataflow, epoch)) for run, dataflow, epoch in chain}
        self.sealed = {run for (run,) in self._connection.execute("SELECT id FROM run WHERE sealed_at IS NOT NULL")}
        if before != self.run_before:
            self.run_before, self._valid = before, {}
        splits = self._connection.execute("SELECT run, stage, splits, position, base FROM source_split").fetchall()
        self.recorded = {(run, stage): json.loads(found) for run, stage, found, _, _ in splits}
        self.splits = {
            key: [*map(files_of, found)]
            for key, found in self.recorded.items()
            if found and isinstance(found[0], list | dict)
        }
        self.ends = {
            (run, stage): (json.loads(position)["value"], base) for run, stage, _, position, base in splits if position
        }
        leases = {row.id: row for row in map(Lease._make, self._rows(Lease, "lease"))}
        self.new_leases = [row for row in leases.values() if (row.holder, row.result) not in self._leased]
        self._leased |= {(row.holder, row.result) for row in self.new_leases}
        self.leases = leases

    def rows(self, kind: Any, table: str) -> list[Any]:
        """Return all rows of a table; `kind` has the columns."""
        return [kind._make(row) for row in self._rows(kind, table)]

    def _rows(self, kind: Any, table: str, where: str = "") -> Iterable[tuple[Any, ...]]:
        return self._connection.execute(f"SELECT {', '.join(kind._fields)} FROM {table} {where}")  # noqa: S608 - no input

    def _reads_of(self, attempt: str) -> Iterable[Read]:
        query = (
            "SELECT run, stage, layout, members FROM consumption JOIN read_set ON read_set.id = read_set "
            "WHERE attempt = ?"
        )
        for run, stage, layout, members in self._connection.execute(query, (attempt,)):
            for subtask, read, digest in json.loads(members):
                yield Read(Partition(run, PartitionId(stage, subtask, layout)), read, digest)

    # Derived from the tables

    def is_valid(self, partition: Partition) -> bool:
        """Report whether all inputs of the current result are valid, and have the digests that it read."""
        if partition not in self._valid:
            self._valid[partition] = False  # a result that was made from itself is not
            result = self.current.get(partition)
            self._valid[partition] = (
                result is not None
                and result.state != "quarantined"
                and not self.behind(partition)
                and self._has_read_what_is_there(result)
            )
        return self._valid[partition]

    def is_valid_alone(self, partition: Partition) -> bool:
        """Report whether the current result is valid, or will be when other subtasks have caught up with its code."""
        result = self.current.get(partition)
        return (
            result is not None
            and result.state != "quarantined"
            and partition not in self.behind(partition)
            and self._has_read_what_is_there(result)
        )

    def _has_read_what_is_there(self, result: Result) -> bool:
        """Report whether all inputs hold, and those of the run before are all subtasks that it has."""
        reads = self.reads.get(result.attempt, ())
        return all(self.holds(each) for each in reads) and not self.has_missed(result.run, result.attempt)

    def has_missed(self, run: str, attempt: str) -> bool:
        """Report whether an attempt has not read all that there is of the stages that it read of another run.

        It has not, either, where that is not the run before any more.
        """
        reads = {each.partition for each in self.reads.get(attempt, ()) if each.partition.run != run}
        own = {each.run for each in reads if dataflow_of(each.run) == dataflow_of(run)}
        if not own <= {self.run_before.get(run)}:
            return True
        return any(self._subtasks[place] > count for place, count in Counter(map(place_of, reads)).items())

    def behind(self, partition: Partition) -> tuple[Partition, ...]:
        """Return the results of a partition's stage that no code of the newest has made, if no code made all of it."""
        return self._behind.get((partition.run, partition.id.stage), ())

    def _stages_of_several_codes(self) -> Iterator[tuple[tuple[str, str], tuple[Partition, ...]]]:
        """Yield the stages of runs that no version of code has made, with the results of older code."""
        stages: dict[tuple[str, str], list[Result]] = {}
        for result in self.current.values():
            stages.setdefault((result.run, result.stage), []).append(result)
        for stage, found in stages.items():
            if not frozenset.intersection(*(each.known_versions for each in found)):
                newest = max(found, key=lambda each: (self.attempts[each.attempt].generation or 0, each.id))
                version = self.attempts[newest.attempt].code or min(newest.known_versions)
                yield stage, tuple(each.partition for each in found if version not in each.known_versions)

    def holds(self, read: Read) -> bool:
        """Report whether an input is valid now, and the same."""
        found = self.current.get(read.partition)
        if found is None:
            return read.partition in self.without_a_manifest
        return found.digest == read.digest and self.is_valid(read.partition)

    def is_good(self, partition: Partition) -> bool:
        """Report whether the current result is valid, and finished as far as the ledger knows."""
        found = self.current.get(partition)
        return found is not None and found.state == "finished" and self.is_valid(partition)

    def is_done(self, partition: Partition) -> bool:
        """Report whether the current result is valid, and finished or released."""
        found = self.current.get(partition)
        return found is not None and found.state in ("finished", "released") and self.is_valid(partition)

    def newest(self, run: str, region: RegionId) -> Attempt | None:
        """Return the newest attempt of a region in this DagRun."""
        own = [row for row in self.attempts.values() if row.run_region == (run, region) and row.try_number > 0]
        return max(own, key=lambda row: row.try_number, default=None)

    def runs(self) -> dict[str, Closed]:
        """Return the runs by their ids, open and closed."""
        return {row.id: row for row in map(Closed._make, self._rows(Closed, "run"))}

    def last_event(self, run: str) -> str:
        """Return the latest begin or end of an attempt of a run; attempts of a deleted DagRun count too."""
        times = [at for row in self.attempts.values() if row.run == run for at in (row.began_at, row.ended_at) if at]
        return max(times, default=self.runs()[run].created_at)

    def committed(self, run: str, region: RegionId) -> Attempt | None:
        """Return the newest committed attempt of a region; attempts of a deleted DagRun have tries below 1."""
        own = [row for row in self.attempts.values() if row.run_region == (run, region) and row.try_number > 0]
        tries = [row for row in own if row.state == "committed"]
        return max(tries, key=lambda row: row.try_number, default=None)

    def is_running(self, run: str, region: RegionId) -> bool:
        """Report whether an attempt of a region is running, or a pending clear will start one."""
        tries = [row for row in self.attempts.values() if row.run_region == (run, region)]
        newest = max(tries, key=lambda row: row.try_number, default=None)
        if newest is not None and newest.state in ("running", "waiting", "retrying"):
            return True
        ended = max((row.try_number for row in tries if row.state in ("committed", "adopted", "failed")), default=0)
        owed = [row for row in self.clears.values() if row.run_region == (run, region) and not row.is_void]
        return any(row.expected_try >= ended for row in owed)

    def regions(self) -> set[tuple[str, RegionId]]:
        """Return the regions that have begun, each with its run."""
        return {row.run_region for row in self.attempts.values() if row.try_number > 0}

    def leased(self) -> set[str]:
        """Return the folders of results with a read lease."""
        return {self.results[row.result].folder for row in self.leases.values()}

    def pending_clears(self) -> list[Clear]:
        """Return the clears that are not delivered yet."""
        return [row for row in self.clears.values() if row.settled_at is None]
