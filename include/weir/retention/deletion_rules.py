"""What may be deleted, by which policy, and why not: results, versions, runs, and the folders of attempts.

A result may be released once every consumer region has committed a result computed from its very attempt, or once its
run is over (Flink's region rule per attempt and run). Retention policies only keep longer. A folder is garbage only if
its attempt is not running any more and neither the ledger nor a published version needs its content. The files of keyed
state are `weir.state.files_in_use`; which checkpoints stay, `weir.state.retention_rules`.

Invariant 4: a result is never released while it is under lease or published, or while a consumer may need it: one that
is running, has not run yet, has failed, has to run again, or is of a later epoch.

Invariant 6: the version that readers see stays, unless `keep_published` has passed; a version that may still become
visible expires only when no closing task can be about to publish it.

The store must be listed before the ledger is read: an attempt is registered before it writes, so that files of an
attempt that the ledger does not know belong to no attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from weir.dataflow.retention import RetainUntil, RetentionPolicy
from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, FINISHED, AttemptState, RunState
from weir.formats.manifest import COPY_NAME
from weir.retention.folder_rules import NOTES, AttemptFolder, Place, RunFolder
from weir.topology.regions import PartitionId, RegionId
from weir.units import format_duration

QUIET: Final = timedelta(hours=1)
"""A closed and valid run without events for so long is over, even if results were recomputed after its close."""

LEAVE: Final = timedelta(hours=1)
"""How long readers of a replaced version may continue."""

GONE: Final = "Airflow has no such run any more"


# Policies


def is_gone(deleted_at: datetime | None, settings: RetentionSettings, now: datetime) -> bool:
    """Report whether it is known for long enough that a DagRun was deleted in Airflow: no policy keeps its results."""
    return deleted_at is not None and is_silent(deleted_at, settings.orphan_age, now)


def is_silent(since: datetime, limit: timedelta | None, now: datetime) -> bool:
    """Report whether nothing has happened `since` then for as long as a policy keeps; None is forever."""
    return limit is not None and since + limit <= now


def is_given_up(last_heard: datetime, deleted_at: datetime | None, settings: RetentionSettings, now: datetime) -> bool:
    """Report whether a running attempt that reads nothing has been silent for as long as a failed run is kept."""
    if deleted_at is None:
        return is_silent(last_heard, settings.keep_failed, now)
    return is_silent(max(last_heard, deleted_at), settings.orphan_age, now)


def why_expired(
    last_event: datetime, deleted_at: datetime | None, settings: RetentionSettings, now: datetime
) -> str | None:
    """Return why the manifests and records of a run are due to be deleted."""
    if is_gone(deleted_at, settings, now):
        return GONE
    if is_silent(last_event, settings.expire_runs, now):
        return "nothing has happened in it for as long as runs are kept"
    return None


def is_kept(keep: RetentionPolicy, closed_at: Any, closed_after: Any, now: datetime) -> Any:
    """Report whether a policy keeps the unneeded results of a closed run; `closed_after` later epochs are closed.

    Both may be expressions on rows of runs: then so is the answer.
    """
    if keep.until is RetainUntil.RUNS:
        return closed_after < keep.runs
    return closed_at > now - keep.time if keep.until is RetainUntil.TIME else False


# Results


class Keeper(Enum):
    """What a stored result is kept for, in kinds that can be counted. The values are tags of a metric."""

    READER = "reader"
    """A lease."""
    CHECKPOINT = "checkpoint"
    """A checkpoint names it, or is to; or it is a state."""
    VERSION = "version"
    """It is published."""
    RUN = "run"
    """Its run is not over: a consumer has not read it, or may fail and read it again."""
    NEXT_RUN = "next_run"
    """A later epoch may read it."""
    POLICY = "policy"
    """Nobody needs it; the retention policy keeps it."""
    QUARANTINE = "quarantine"
    """A person may want to look at it."""
    NONE = "none"
    """It is released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A finished result whose bytes are stored: `result` is its number in the ledger, `attempt` the one that wrote it.

    A quarantined result is never current: only a person reads it.
    """

    run: str = ""
    result: int
    partition: PartitionId
    attempt: str
    is_current: bool
    bytes: int
    is_nondeterministic: bool = False
    """True if recomputing it may give other rows: its stage is declared so, or has done so."""
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Pin:
    """The reason why a result must stay; a lasting one does not end with time, only with another event."""

    keeper: Keeper
    reason: str
    is_lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetention:
    """The facts that the release of a run's results depends on, at one instant.

    `pins` say why a result must stay, by its number. `needed_later` says of a stage which later epoch may read it over
    `previous`. `closed_after` is how many runs of later epochs are closed.
    `is_close_newest` says that the closing task has committed after all current results. `last_event` is the time of
    the last event in the run.
    """

    state: RunState
    stored: tuple[StoredResult, ...]
    pins: Mapping[int, Pin]
    needed_later: Mapping[str, str]
    closed_at: datetime | None
    closed_after: int
    is_close_newest: bool
    last_event: datetime
    is_deleted: bool = False
    """The DagRun was deleted in Airflow."""
    states: Set[str] = frozenset()
    """The stages that are states: checkpoints decide about these, not consumers."""
    to_checkpoint: Set[PartitionId] = frozenset()
    """What the checkpoint of the run names, or will when the run is closed or its checkpoint is completed once more."""
    subsumed: str | None = None
    """The reason why no run will continue from its states: its checkpoint is subsumed."""


@dataclass(frozen=True, slots=True)
class ReleaseDecision:
    """What keeps a stored result, and why; a lasting decision changes only with another event."""

    stored: StoredResult
    keeper: Keeper
    reason: str
    is_lasting: bool = False

    @property
    def is_released(self) -> bool:
        """Report whether nothing keeps it."""
        return self.keeper is Keeper.NONE


def release_decisions(
    run: RunRetention, settings: RetentionSettings, now: datetime, *, is_reclaiming: bool = False
) -> tuple[ReleaseDecision, ...]:
    """Decide about all stored results of a run. If space is reclaimed (`is_reclaiming`), policies keep nothing."""
    evaluation = _Evaluation(run, settings, now, is_reclaiming)
    return tuple(evaluation.decision(each) for each in run.stored)


class _Evaluation:
    def __init__(self, run: RunRetention, settings: RetentionSettings, now: datetime, is_reclaiming: bool) -> None:  # noqa: FBT001
        self._run, self._settings, self._now, self._is_reclaiming = run, settings, now, is_reclaiming
        self._made_from: dict[RegionId, frozenset[tuple[PartitionId, str]]] = {}
        self._over = self._why_over()
        self._kept = self._why_kept()
        """The policy's reason to keep; ignored, and named in the reason, if space is reclaimed."""

    def decision(self, stored: StoredResult) -> ReleaseDecision:
        pin = self._run.pins.get(stored.result)
        if pin is not None:
            return ReleaseDecision(stored, pin.keeper, pin.reason, pin.is_lasting)
        if not stored.is_current:
            return self._of_old(stored)
        needed = self._run.needed_later.get(stored.partition.stage)
        if needed is not None:
            return ReleaseDecision(stored, Keeper.NEXT_RUN, needed)
        if stored.partition.stage in self._run.states:
            return self._of_state(stored)
        given_up = self._why_given_up()
        if given_up is not None:
            return ReleaseDecision(stored, Keeper.NONE, given_up)
        return self._by_use(stored)

    def _of_old(self, stored: StoredResult) -> ReleaseDecision:
        """Release an old result; a quarantined one stays for inspection while the policy keeps unneeded results."""
        if not stored.is_quarantined:
            return ReleaseDecision(stored, Keeper.NONE, "it was recomputed, and the old result is not read")
        why = self._over or self._why_given_up()
        if why is None or (self._over is not None and self._kept is not None and not self._is_reclaiming):
            reason = f"it is in quarantine, for inspection: {self._kept or 'the run is not over'}"
            return ReleaseDecision(stored, Keeper.QUARANTINE, reason)
        return ReleaseDecision(stored, Keeper.NONE, f"it was in quarantine long enough: {why}")

    def _of_state(self, stored: StoredResult) -> ReleaseDecision:
        why = self._run.subsumed
        if why is None and self._run.closed_at is None:
            why = GONE if self._run.is_deleted else self._why_given_up()
        if why is not None:
            return ReleaseDecision(stored, Keeper.NONE, why)
        return ReleaseDecision(stored, Keeper.CHECKPOINT, "state stays until its checkpoint is subsumed")

    def _by_use(self, stored: StoredResult) -> ReleaseDecision:
        if stored.partition in self._run.to_checkpoint:
            return ReleaseDecision(stored, Keeper.CHECKPOINT, "a checkpoint of its run is to name it")
        consumers = self._run.state.consumers(stored.partition)
        unread = next(self._unread(stored), None)
        is_consumed = bool(consumers) and unread is None
        if not is_consumed and self._over is None:
            return ReleaseDecision(stored, Keeper.RUN, self._why_needed(unread))
        why = "every consumer has committed a result made from it" if is_consumed else str(self._over)
        if self._kept is None or (is_consumed and self._settings.keep.until is RetainUntil.CONSUMED):
            return ReleaseDecision(stored, Keeper.NONE, why)
        if self._is_reclaiming:
            return ReleaseDecision(stored, Keeper.NONE, f"{why}, and space was needed")
        return ReleaseDecision(stored, Keeper.RUN if self._over is None else Keeper.POLICY, self._kept)

    def _unread(self, stored: StoredResult) -> Iterator[RegionId]:
        """Yield the consumers that have not read it, or another result that its attempt would recompute differently.

        Otherwise two consumers could restart each other forever: recomputing for one changes the input of the other.
        """
        same = [each for each in self._run.stored if each.is_current and each.attempt == stored.attempt]
        for each in same if any(one.is_nondeterministic for one in same) else (stored,):
            for consumer in self._run.state.consumers(each.partition):
                if not self._has_consumed(consumer, each):
                    yield consumer

    def _why_needed(self, unread: RegionId | None) -> str:
        return "the run is not over" if unread is None else f"{unread} has not committed a result made from it"

    def _has_consumed(self, consumer: RegionId, stored: StoredResult) -> bool:
        """Report whether a region has committed a result computed from this very attempt, and need not run again."""
        if consumer not in self._made_from:
            self._made_from[consumer] = self._reads_of(consumer) if self._is_finished(consumer) else frozenset()
        return (stored.partition, stored.attempt) in self._made_from[consumer]

    def _is_finished(self, region: RegionId) -> bool:
        """Report whether a region is finished and all its results are finished or released.

        It is not if its newest try has failed, or if it has not begun in a DagRun that was created again.
        """
        state = self._run.state
        known = state.region(region)
        return (
            not known.is_running
            and known.newest_state in FINISHED
            and all(state.is_done(each) for each in state.outputs(region))
        )

    def _reads_of(self, consumer: RegionId) -> frozenset[tuple[PartitionId, str]]:
        reads = (each for made in self._run.state.made_by(consumer) for each in made.reads)
        return frozenset((read.partition, read.attempt) for each in reads for read in each.members)

    def _why_over(self) -> str | None:
        """Return why the run is over: closed, no region running or failed, and all results since then valid."""
        run = self._run
        if run.is_deleted:
            return GONE
        if run.closed_at is None or any(self._is_open(each) for each in (*run.state.region_ids(), CLOSE)):
            return None
        is_quiet = run.last_event + QUIET <= self._now and self._is_whole()
        return "its run is over" if run.is_close_newest or is_quiet else None

    def _is_open(self, region: RegionId) -> bool:
        known = self._run.state.region(region)
        return known.is_running or known.newest_state is AttemptState.FAILED

    def _is_whole(self) -> bool:
        state = self._run.state
        return all(state.is_done(each) for region in state.region_ids() for each in state.outputs(region))

    def _why_given_up(self) -> str | None:
        """Return why a run that is not over is given up (`keep_failed`)."""
        limit = self._settings.keep_failed
        if self._over is not None or limit is None or not is_silent(self._run.last_event, limit, self._now):
            return None
        if self._run.closed_at is not None and not self._is_reclaiming and self._by_policy() is not None:
            return None
        what = "never closed" if self._run.closed_at is None else "is not whole"
        return f"its run {what}, and nothing has happened in it for {format_duration(limit)}"

    def _why_kept(self) -> str | None:
        """Return why the policy keeps unneeded results."""
        if self._run.is_deleted:
            return None
        return "the run is not over" if self._over is None else self._by_policy()

    def _by_policy(self) -> str | None:
        """Return why the policy keeps the results of a closed run."""
        run, keep = self._run, self._settings.keep
        if run.closed_at is None or not is_kept(keep, run.closed_at, run.closed_after, self._now):
            return None
        if keep.until is RetainUntil.RUNS:
            return f"it is kept until {keep} of later epochs are closed"
        return f"it is kept for {keep} after its run was closed"


# Versions


def expired_versions(
    versions: Mapping[int, datetime | None],
    last_event: datetime,
    now: datetime,
    settings: RetentionSettings,
    *,
    is_deleted: bool = False,
) -> dict[int, str]:
    """Return the unexpired versions of one sink and epoch that expire, by number, and why.

    `versions` are when each was published; None for one that may be incomplete. With the newest all expire: a reader
    would see the version before it. `last_event` is the time of the last event in the run, which a running closing task
    renews. `is_deleted` says that the DagRun was deleted in Airflow.
    """
    published = ((number, at) for number, at in versions.items() if at is not None)
    newest, at = max(published, default=(0, now))
    is_old = is_silent(max(at, last_event), settings.keep_published, now)
    is_abandoned = is_deleted or is_silent(last_event, settings.keep_failed, now)
    found: dict[int, str] = {}
    for number in versions:
        if number > newest:
            found |= {number: "it is incomplete, and will not be completed"} if is_abandoned else {}
        elif is_old:
            found[number] = "it is older than keep_published"
        elif number < newest and is_silent(at, LEAVE, now):
            found[number] = f"version {newest} has replaced it"
    return found


# Folders

_KEPT_STATES: Final = {
    PartitionState.FINISHED: "its result is needed, or kept by the policy",
    PartitionState.LOST: "its result is lost, and its bytes may come back",
    PartitionState.QUARANTINED: "its result is quarantined: it is kept for inspection",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownResult:
    """A result in the ledger; `reader` is the holder of a lease on it, `is_deleted` says that its data are deleted."""

    state: PartitionState
    bytes: int
    reason: str
    reader: str | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """An attempt in the ledger; one that is not running has ended at `ended_at`, in `state`."""

    region: str
    subtask: int
    try_number: int
    is_running: bool
    state: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """The ledger's record of a run: results by folder, attempts by id, and folders of published versions.

    `copies` says why the cached output of a stage and subtask is kept. In an expired run only
    published results and running attempts are kept. `pointers` says of each version that was ever published, by the
    path of its pointer, whether it still is. `has_readers` says that another epoch may read its results.
    `source_copies` are the ids of the copies of the splits that are recorded.
    """

    results: Mapping[str, KnownResult]
    attempts: Mapping[str, KnownAttempt]
    published: Set[str]
    copies: Mapping[tuple[str, str], str]
    pointers: Mapping[str, bool]
    is_expired: bool = False
    has_readers: bool = True
    source_copies: Set[str] = frozenset()


class FolderAction(Enum):
    """The action for a folder."""

    KEPT = "kept"
    GARBAGE = "garbage"
    """All of it goes."""
    EMPTIED = "emptied"
    """Its data go; its manifest stays."""


class Age(Enum):
    """How old files have to be before they go."""

    ANY = "any"
    OLD = "older than is asked for"
    ORPHANED = "older than the settings say"
    """No row names them: a restore or a compaction is entered only when it is whole."""


@dataclass(frozen=True, slots=True)
class FolderDecision:
    """The action for a folder, and why. It waits until its files, and `since`, have the `age`."""

    folder: AttemptFolder
    action: FolderAction
    reason: str
    age: Age = Age.ANY
    since: datetime | None = None


def folder_decisions(found: RunFolder, known: RunKnowledge) -> tuple[FolderDecision, ...]:
    """Decide the action for the folder of each attempt."""
    newest = _newest_copies(found.folders, known)
    return tuple(_decide(each, known, newest) for each in found.folders)


def _decide(folder: AttemptFolder, known: RunKnowledge, newest: Set[str]) -> FolderDecision:
    attempt, result = known.attempts.get(folder.attempt), known.results.get(folder.path)
    if folder.place is Place.SOURCE_COPY:
        return _decide_source_copy(folder, known)
    if attempt is not None and attempt.is_running:
        return _kept(folder, "its attempt is running")
    if result is not None and folder.place is Place.RESULT:
        return _decide_result(folder, known, result)
    if folder.path in known.published:
        return _kept(folder, "a published version names it")
    if known.is_expired:
        return _garbage(folder, "its run is expired")
    return _decide_left(folder, known, attempt, newest)


def _decide_left(
    folder: AttemptFolder, known: RunKnowledge, attempt: KnownAttempt | None, newest: Set[str]
) -> FolderDecision:
    """Decide about the other folders of attempts: records, cached output, results without a row."""
    if attempt is None:
        return FolderDecision(folder, FolderAction.GARBAGE, "the ledger knows no such attempt", Age.ORPHANED)
    if folder.place is Place.RECORD:
        return _kept(folder, "the record of an attempt, kept until the run expires")
    if folder.place is Place.COPY:
        return _decide_copy(folder, known, attempt, newest)
    return _left(folder, attempt, f"its attempt has {_ended(attempt)}, and nothing of it is kept")


def _kept(folder: AttemptFolder, why: str) -> FolderDecision:
    return FolderDecision(folder, FolderAction.KEPT, why)


def _garbage(folder: AttemptFolder, why: str) -> FolderDecision:
    return FolderDecision(folder, FolderAction.GARBAGE, why)


def _left(folder: AttemptFolder, attempt: KnownAttempt, why: str) -> FolderDecision:
    return FolderDecision(folder, FolderAction.GARBAGE, why, Age.OLD, since=attempt.ended_at)


def _ended(attempt: KnownAttempt) -> str:
    return "committed" if attempt.state == "committed" else f"ended without a commit ({attempt.state})"


def _decide_result(folder: AttemptFolder, known: RunKnowledge, result: KnownResult) -> FolderDecision:
    kept = result.reader or _why_folder_kept(folder, known, result)
    if kept is not None:
        return _kept(folder, kept)
    if known.is_expired:
        return _garbage(folder, "its run is expired")
    if result.state is PartitionState.RELEASED:
        return FolderDecision(folder, FolderAction.EMPTIED, f"it was released: {result.reason}")
    return _garbage(folder, f"it is superseded: {result.reason}")


def _why_folder_kept(folder: AttemptFolder, known: RunKnowledge, result: KnownResult) -> str | None:
    if result.state is PartitionState.FINISHED:
        return _KEPT_STATES[result.state]
    if folder.path in known.published:
        return "a published version names it"
    if known.is_expired:
        return None
    if result.state is PartitionState.RELEASED and folder.names <= NOTES:
        return "the manifest of a released result, kept until the run expires"
    return _KEPT_STATES.get(result.state)


def _decide_copy(folder: AttemptFolder, known: RunKnowledge, attempt: KnownAttempt, newest: Set[str]) -> FolderDecision:
    if COPY_NAME not in folder.names:
        return _left(folder, attempt, f"a copy that was never completed; its attempt has {_ended(attempt)}")
    of_task = (attempt.region, attempt.subtask)
    if any(each.is_running and (each.region, each.subtask) == of_task for each in known.attempts.values()):
        return _kept(folder, "a running attempt may have resumed from it")
    kept = known.copies.get((folder.name, folder.subtask))
    if kept is None:
        return _garbage(folder, "a copy that no attempt will resume from")
    is_newest = folder.path in newest
    return _kept(folder, f"a copy to resume from: {kept}") if is_newest else _garbage(folder, "there is a newer copy")


def _decide_source_copy(folder: AttemptFolder, known: RunKnowledge) -> FolderDecision:
    if any(each.is_running and str(each.subtask) == folder.subtask for each in known.attempts.values()):
        return _kept(folder, "a running attempt may copy what its source has, or read it")
    if known.is_expired:
        return _garbage(folder, "its run is expired")
    if folder.attempt in known.source_copies:
        return _kept(folder, "what a source has read, kept until the run expires")
    return FolderDecision(folder, FolderAction.GARBAGE, "its source was resolved anew", Age.OLD)


def other_copies(folder: AttemptFolder, bound: str | None, known: RunKnowledge) -> tuple[tuple[str, int], ...]:
    """Return the files of copies that no attempt reads: of other attempts than the `bound` one, which have ended."""
    kept = {bound, *(each for each, attempt in known.attempts.items() if attempt.is_running)}
    of_attempts = ((name, size) for name, size in folder.files if "/" in name)
    return tuple(each for each in of_attempts if each[0].partition("/")[0] not in kept)


def _newest_copies(folders: Iterable[AttemptFolder], known: RunKnowledge) -> frozenset[str]:
    """Return the paths of the newest complete copy of each stage and subtask."""
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for each in folders:
        attempt = known.attempts.get(each.attempt)
        if each.place is Place.COPY and attempt is not None and COPY_NAME in each.names:
            key, candidate = (each.name, each.subtask), (attempt.try_number, each.path)
            newest[key] = max(newest.get(key, candidate), candidate)
    return frozenset(path for _, path in newest.values())


def is_record_kept(known: RunKnowledge) -> bool:
    """Report whether the record of a run stays: not if the run is expired, not published, and has no readers."""
    is_published = bool(known.published) or any(known.pointers.values())
    return not known.is_expired or is_published or known.has_readers


def known_gone(known: RunKnowledge, there: Set[str]) -> frozenset[str]:
    """Return folders of unused results that are not `there` any more, which the ledger has not recorded yet."""
    superseded = {PartitionState.SUPERSEDED}
    unused = set(PartitionState) - {PartitionState.FINISHED} if known.is_expired else superseded
    results = known.results.items()
    return frozenset(
        path for path, each in results if not each.is_deleted and path not in there and each.state in unused
    )
