"""Which results of a run nobody needs any more: Flink's region rule, counted per attempt, over scheduled runs.

A result may go when every consumer region has committed a result made from its very attempt, or when its run is over.
Policies only keep longer. Invariant 4: what a lease, a publication, or a consumer may need that is at work, has not run
yet, has failed, has to run again or is of an epoch to come is never named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir.dataflow.retention import RetainUntil
from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.run_state import CLOSE, AttemptState, RunState
from weir.topology.regions import PartitionId, RegionId
from weir.units import format_duration

QUIET = timedelta(hours=1)
"""A closed and valid run in which nothing has happened for so long is over, whatever was made again in it since."""

_FINISHED = (AttemptState.COMMITTED, AttemptState.ADOPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A finished result whose bytes are there: `result` is its number in the ledger, `attempt` who made it.

    One in quarantine is never current: nobody reads it but a person.
    """

    result: int
    partition: PartitionId
    attempt: str
    is_current: bool
    bytes: int
    is_chancy: bool = False
    """Whether its attempt, made again, might make something else: it is declared so, or has done so."""
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Pin:
    """Why a result must stay; a lasting one stays until something else happens, whatever the time."""

    reason: str
    is_lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLife:
    """What the release of a run's results depends on, at one instant.

    `pins` say why a result must stay, by its number. `needed_later` says of a stage which later epoch may read it over
    `previous`. `closed_after` is how many runs of the dataflow have been closed after this one; None: it is not closed.
    `is_last_word` says that the closing task has committed after all current results were made. `last_event` is when
    something happened in it last.
    """

    state: RunState
    stored: tuple[StoredResult, ...]
    pins: Mapping[int, Pin]
    needed_later: Mapping[str, str]
    closed_at: datetime | None
    closed_after: int | None
    is_last_word: bool
    last_event: datetime
    is_deleted: bool = False
    """Airflow has no such run any more."""
    states: Set[str] = frozenset()
    """The stages that are states: of these no consumer decides, but checkpoints do."""
    subsumed: str | None = None
    """Why nobody goes on from its states any more: what was checkpointed of it is subsumed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a stored result, and why; a lasting one is the same until something else happens."""

    stored: StoredResult
    is_released: bool
    reason: str
    is_lasting: bool = False


def release_verdicts(
    life: RunLife, settings: RetentionSettings, now: datetime, *, is_pressed: bool = False
) -> tuple[Verdict, ...]:
    """Judge all stored results of a run. Where room is needed (`is_pressed`), policies do not keep any longer."""
    judge = _Judge(life, settings, now, is_pressed)
    return tuple(judge.verdict(each) for each in life.stored)


class _Judge:
    def __init__(self, life: RunLife, settings: RetentionSettings, now: datetime, is_pressed: bool) -> None:  # noqa: FBT001
        self._life, self._settings, self._now, self._is_pressed = life, settings, now, is_pressed
        self._made_from: dict[RegionId, frozenset[tuple[PartitionId, str]]] = {}
        self._over = self._why_over()
        self._kept = self._why_kept()
        """What the policy says; where room is needed it is overruled, and told."""

    def verdict(self, stored: StoredResult) -> Verdict:
        pin = self._life.pins.get(stored.result)
        if pin is not None:
            return Verdict(stored, is_released=False, reason=pin.reason, is_lasting=pin.is_lasting)
        if not stored.is_current:
            return self._of_old(stored)
        needed = self._life.needed_later.get(stored.partition.stage)
        if needed is not None:
            return Verdict(stored, is_released=False, reason=needed)
        if stored.partition.stage in self._life.states:
            return self._of_state(stored)
        given_up = self._why_given_up()
        if given_up is not None:
            return Verdict(stored, is_released=True, reason=given_up)
        return self._by_use(stored)

    def _of_old(self, stored: StoredResult) -> Verdict:
        """What is in quarantine is kept to be looked at, as long as the policy keeps what nobody needs."""
        if not stored.is_quarantined:
            return Verdict(stored, is_released=True, reason="it was made again, and nobody reads the old one")
        why = self._over or self._why_given_up()
        if why is None or (self._over is not None and self._kept is not None and not self._is_pressed):
            reason = f"it is in quarantine, to be looked at: {self._kept or 'the run is not over'}"
            return Verdict(stored, is_released=False, reason=reason)
        return Verdict(stored, is_released=True, reason=f"it was in quarantine long enough: {why}")

    def _of_state(self, stored: StoredResult) -> Verdict:
        why = self._life.subsumed
        if why is None and self._life.closed_at is None:
            why = "Airflow has no such run any more" if self._life.is_deleted else self._why_given_up()
        if why is not None:
            return Verdict(stored, is_released=True, reason=why)
        return Verdict(stored, is_released=False, reason="state stays until its checkpoint is subsumed")

    def _by_use(self, stored: StoredResult) -> Verdict:
        consumers = self._life.state.consumers(stored.partition)
        unread = next(self._unread(stored), None)
        is_consumed = bool(consumers) and unread is None
        if not is_consumed and self._over is None:
            return Verdict(stored, is_released=False, reason=self._why_needed(unread))
        why = "every consumer has committed a result made from it" if is_consumed else str(self._over)
        if self._kept is None or (is_consumed and self._settings.keep.until is RetainUntil.CONSUMED):
            return Verdict(stored, is_released=True, reason=why)
        if self._is_pressed:
            return Verdict(stored, is_released=True, reason=f"{why}, and room was needed")
        return Verdict(stored, is_released=False, reason=self._kept)

    def _unread(self, stored: StoredResult) -> Iterator[RegionId]:
        """The consumers that have not read it, or another result that would be made otherwise together with it.

        Else two consumers could take turns for ever: what one has brought back changes what the other has read.
        """
        same = [each for each in self._life.stored if each.is_current and each.attempt == stored.attempt]
        for each in same if any(one.is_chancy for one in same) else (stored,):
            for consumer in self._life.state.consumers(each.partition):
                if not self._has_consumed(consumer, each):
                    yield consumer

    def _why_needed(self, unread: RegionId | None) -> str:
        return "the run is not over" if unread is None else f"{unread} has not committed a result made from it"

    def _has_consumed(self, consumer: RegionId, stored: StoredResult) -> bool:
        """Whether a region has committed a result made from this very attempt, and is not to run again."""
        if consumer not in self._made_from:
            self._made_from[consumer] = self._reads_of(consumer) if self._is_finished(consumer) else frozenset()
        return (stored.partition, stored.attempt) in self._made_from[consumer]

    def _is_finished(self, region: RegionId) -> bool:
        """Whether nothing of a region has to be made again, as far as is known; released results count as made.

        One that a failed try has followed, or that has not begun in a DagRun that was made anew, is not.
        """
        state = self._life.state
        known = state.region(region)
        return (
            not known.at_work
            and known.newest_state in _FINISHED
            and all(state.is_done(each) for each in state.outputs(region))
        )

    def _reads_of(self, consumer: RegionId) -> frozenset[tuple[PartitionId, str]]:
        state = self._life.state
        output = next(iter(state.outputs(consumer)), None)
        result = None if output is None else state.results.get(output)
        reads = () if result is None else result.reads
        return frozenset((read.partition, read.attempt) for each in reads for read in each.members)

    def _why_over(self) -> str | None:
        """Why the run is over: closed, nobody at work or failed, and all that was made since is as it was."""
        life = self._life
        if life.is_deleted:
            return "Airflow has no such run any more"
        if life.closed_at is None or any(self._is_open(each) for each in (*life.state.region_ids(), CLOSE)):
            return None
        is_quiet = life.last_event + QUIET <= self._now and self._is_whole()
        return "its run is over" if life.is_last_word or is_quiet else None

    def _is_open(self, region: RegionId) -> bool:
        known = self._life.state.region(region)
        return known.at_work or known.newest_state is AttemptState.FAILED

    def _is_whole(self) -> bool:
        state = self._life.state
        return all(state.is_done(each) for region in state.region_ids() for each in state.outputs(region))

    def _why_given_up(self) -> str | None:
        """Why a run that is not over is waited for no longer."""
        limit = self._settings.keep_failed
        if self._over is not None or limit is None or self._life.last_event + limit > self._now:
            return None
        if self._life.closed_at is not None and not self._is_pressed and self._by_policy() is not None:
            return None
        what = "never closed" if self._life.closed_at is None else "is not whole"
        return f"its run {what}, and nothing has happened in it for {format_duration(limit)}"

    def _why_kept(self) -> str | None:
        """Why the policy keeps what nobody needs."""
        if self._life.is_deleted:
            return None
        return "the run is not over" if self._over is None else self._by_policy()

    def _by_policy(self) -> str | None:
        """Why the policy keeps what a closed run has."""
        life, keep = self._life, self._settings.keep
        if keep.until is RetainUntil.RUNS and life.closed_after is not None and life.closed_after < keep.runs:
            return f"it is kept until {keep} have been closed after its own"
        if keep.until is RetainUntil.TIME and life.closed_at is not None and life.closed_at + keep.time > self._now:
            return f"it is kept for {keep} after its run was closed"
        return None
