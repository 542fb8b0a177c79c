"""Rules of release: which results of a run are not needed any more (Flink's region rule per attempt and run).

A result may be released once every consumer region has committed a result computed from its very attempt, or once its
run is over. Retention policies only keep longer. Invariant 4: a result is never released while it is under lease or
published, or while a consumer may need it: one that is running, has not run yet, has failed, has to run again, or is of
a later epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from weir.dataflow.retention import RetainUntil, RetentionPolicy
from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.run_state import CLOSE, FINISHED, AttemptState, RunState
from weir.topology.regions import PartitionId, RegionId
from weir.units import format_duration

QUIET = timedelta(hours=1)
"""A closed and valid run without events for so long is over, even if results were recomputed after its close."""


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
    `previous`. `closed_after` is how many runs of later epochs are closed; None: it is not closed.
    `is_close_newest` says that the closing task has committed after all current results. `last_event` is the time of
    the last event in the run.
    """

    state: RunState
    stored: tuple[StoredResult, ...]
    pins: Mapping[int, Pin]
    needed_later: Mapping[str, str]
    closed_at: datetime | None
    closed_after: int | None
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
            why = "Airflow has no such run any more" if self._run.is_deleted else self._why_given_up()
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
            return "Airflow has no such run any more"
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
        if self._over is not None or limit is None or self._run.last_event + limit > self._now:
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
        run = self._run
        if run.closed_at is None or run.closed_after is None:
            return None
        return kept_by_policy(self._settings.keep, run.closed_at, run.closed_after, self._now)


def kept_by_policy(keep: RetentionPolicy, closed_at: datetime, closed_after: int, now: datetime) -> str | None:
    """Return why a policy keeps the unneeded results of a closed run; `closed_after` later epochs are."""
    if keep.until is RetainUntil.RUNS and closed_after < keep.runs:
        return f"it is kept until {keep} of later epochs are closed"
    if keep.until is RetainUntil.TIME and closed_at + keep.time > now:
        return f"it is kept for {keep} after its run was closed"
    return None
