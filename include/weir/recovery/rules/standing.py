"""Derives how each open epoch stands: running, waiting (for whom, since when) or stopped; and the command that goes on.

Invariant: one derivation answers `weir plan`, `weir why`, `weir runs` and the notes of tasks. It is taken over the
ledger and over what Airflow answered; what Airflow was not asked is not assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from weir.execution.airflow_words import NOT_IN_AIRFLOW, run_again
from weir.execution.failure_words import happened_in
from weir.execution.run_state import CLOSE, FINISHED, AttemptState
from weir.topology.ids import RunId
from weir.topology.regions import RegionId
from weir.wording import shortened

SHOWN: Final = 3
"""The largest number of tasks that a reason names."""

_ERROR: Final = 300
"""How much of an error a reason quotes; `weir why` has all of it."""

_KEPT: Final = "keeps its declaration"
"""What an error says of a run whose declaration is its cause: another try reads the same one."""

_GIVEN_UP: Final = ("failed", "upstream_failed")
_ENDED: Final = (*_GIVEN_UP, "skipped", "success")
OVER: Final = ("success", "failed")
"""Airflow's states of a DagRun that the scheduler does not look at any more."""


class Stand(Enum):
    """How an epoch stands.

    A published one of which tasks were cleared is run again; a red one is published, and Airflow calls its DagRun or
    a task of it failed. A stopped one does not go on by itself. A sealed one publishes nothing, and later epochs go on
    without it. A waiting one waits for another run, a target or a clear. It is unknown whether one goes on of which no
    task runs by the ledger, where Airflow was not asked.
    """

    PUBLISHED = "published"
    AGAIN = "runs_again"
    RED = "red"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPED = "stopped"
    SEALED = "sealed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SeenTask:
    """A task instance as Airflow has it; an instance that it has yet to make has no state."""

    state: str | None
    try_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A region of a run, or its closing task: its newest attempt, its results, and its task instance in Airflow.

    `since` is when the newest attempt has begun, or has ended if it has; `error` is why it has failed, or why a closing
    task waits. `awaits` are the regions that a waiting attempt waits for, `awaited` says for which data sets of other
    dataflows it does. `begin_error` is that of a newer try that failed before it was registered. `upstream` are the
    names of the regions before it. `seen` is None where Airflow was not asked.
    """

    region: RegionId
    is_done: bool = False
    has_result: bool = False
    state: AttemptState | None = None
    try_number: int = 0
    since: datetime | None = None
    error: str = ""
    begin_error: str = ""
    awaits: tuple[RegionId, ...] = ()
    awaited: str = ""
    is_to_be_cleared: bool = False
    upstream: frozenset[str] = frozenset()
    seen: SeenTask | None = None

    @property
    def is_stopped(self) -> bool:
        """Report whether nothing runs it by itself, and the run cannot be closed without it."""
        if self.is_to_be_cleared:
            return False
        if self.seen is None:
            return self.state is AttemptState.FAILED
        if self.seen.state in _GIVEN_UP:
            return True
        if self.seen.state == "success":
            return not self.has_result
        return not self.is_done and self.seen.state in ("skipped", *NOT_IN_AIRFLOW)

    @property
    def is_cleared(self) -> bool:
        """Report whether Airflow runs it again, though it has a result: not one whose process has yet to end."""
        if self.seen is None or self.seen.state in (*_ENDED, *NOT_IN_AIRFLOW):
            return False
        is_ending = self.state in FINISHED and self.seen.try_number <= self.try_number
        return not (is_ending and self.seen.state == "running")

    @property
    def is_computing(self) -> bool:
        """Report whether a process computes it: that goes on without the scheduler."""
        return self.state is AttemptState.RUNNING and (self.seen is None or self.seen.state == "running")

    @property
    def is_working(self) -> bool:
        """Report whether a process computes it, or another try follows the last one."""
        is_over = self.seen is not None and self.seen.state in _ENDED
        has_reason = bool(self.awaits or self.awaited)
        waits_for_time = self.state is AttemptState.WAITING and not has_reason and self.region != CLOSE
        return not is_over and (self.state in (AttemptState.RUNNING, AttemptState.RETRYING) or waits_for_time)


@dataclass(frozen=True, slots=True)
class SeenDagRun:
    """A DagRun as Airflow has it (`state` None: there is none), and whether its scheduler may go on with it."""

    state: str | None
    is_paused: bool = False
    has_scheduler: bool = True
    has_import_errors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFacts:
    """A run, its tasks in the order of the dataflow, and what keeps its closing task.

    `close_awaits` is the run that has to be closed before it. `asked` says why Airflow was not asked; empty if it was.
    `sealed` is how it was sealed, and `sealed_at` since when it is. `dag_run` is None while it is not needed.
    `has_unknown_tasks`: no run of its dataflow has begun, and `tasks` are only those that failed to. A closed run has
    `tasks` only where Airflow was asked.
    """

    run: RunId
    dag_id: str
    run_id: str
    start: datetime
    is_closed: bool = False
    was_published: bool = False
    close_awaits: RunId | None = None
    sealed: str = ""
    sealed_at: datetime | None = None
    undelivered: str = ""
    asked: str = ""
    dag_run: SeenDagRun | None = None
    has_unknown_tasks: bool = False
    tasks: tuple[TaskFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands, why and since when, the one command that goes on, and the standing of the run it waits for.

    `stopped` are the tasks that a person has to have run again, `cleared` those of a published run that Airflow runs
    again. An empty command: there is nothing to do.
    """

    run: RunId
    stand: Stand
    reason: str = ""
    since: datetime | None = None
    command: str = ""
    was_published: bool = False
    waits_for: Standing | None = None
    stopped: tuple[TaskFacts, ...] = ()
    cleared: tuple[TaskFacts, ...] = ()

    @property
    def root(self) -> Standing:
        """The standing of the run that all others in the chain wait for."""
        return self if self.waits_for is None else self.waits_for.root

    @property
    def restarted(self) -> tuple[TaskFacts, ...]:
        """The tasks of a published run that run again, now or by its command, though nothing of it is missing."""
        return self.stopped if self.stand is Stand.RED else self.cleared

    @property
    def sentence(self) -> str:
        """What is not published of the run, and why, without a period."""
        since = _since(self.since)
        if self.stand is Stand.PUBLISHED:
            return f"{self.run} is published"
        if self.stand is Stand.RED:
            return f"{self.run} is published, but red in Airflow: {self.reason}{since}"
        if self.cleared:
            return f"{self.run} is published: {self.reason}{since}"
        what = "is published, and no longer up to date" if self.was_published else "is not published"
        if self.stand is Stand.STOPPED:
            return f"{self.run} {what}, and does not go on by itself: {self.reason}{since}"
        return f"{self.run} {what}: {self.reason}{since}"

    def __str__(self) -> str:
        """Say it in one paragraph, which ends with the command."""
        return f"{self.sentence}.{self._of_others()}"

    def beside(self, told: Collection[RunId]) -> str:
        """Say it in a list in which the runs `told` have lines of their own."""
        if self.waits_for is None or self.root.run not in told:
            return str(self)
        return f"{self.sentence}.{self._through()}"

    def as_note(self) -> str:
        """Say why a task of the run waits, for its note: that first."""
        return f"{self.reason}{_since(self.since)}.{self._of_others()}"

    def _of_others(self) -> str:
        """Say how the runs stand that this one waits for, and what to do."""
        root = self.root
        last = "" if self.waits_for is None else f" {root.sentence}."
        return f"{self._through()}{last}" + (f" Next: {root.command}" if root.command else "")

    def _through(self) -> str:
        root = self.root
        return "" if self.waits_for in (None, root) else f" That one waits, too, in the end for {root.run}."

    def to_json(self) -> dict[str, Any]:
        """Return it as the commands print it (docs/plan.md)."""
        return {
            "run": self.run,
            "standing": self.stand.value,
            "reason": self.reason,
            "since": None if self.since is None else self.since.isoformat(),
            "command": self.root.command,
            "stopped": [str(each.region) for each in self.stopped],
            "cleared": [str(each.region) for each in self.cleared],
            "waits_for": None if self.waits_for is None else self.waits_for.to_json(),
        }


def standings(epochs: Iterable[EpochFacts]) -> dict[RunId, Standing]:
    """Return how each epoch stands; those that an epoch may wait for come before it."""
    found: dict[RunId, Standing] = {}
    for each in epochs:
        found[each.run] = _standing(each, found)
    return found


def is_undecided(facts: EpochFacts) -> bool:
    """Report whether the answer depends on the DagRun: no task of the run is computed, or of an open one stopped."""
    is_over = facts.sealed_at is not None or (facts.is_closed and not facts.tasks)
    if is_over or facts.asked or facts.dag_run is not None:
        return False
    return not any(each.is_computing or (each.is_stopped and not facts.is_closed) for each in facts.tasks)


def _standing(facts: EpochFacts, known: Mapping[RunId, Standing]) -> Standing:
    if facts.is_closed:
        return _closed(facts)
    if facts.sealed_at is not None:
        reason = f"it was {facts.sealed}, so that later epochs go on without it"
        return _of(facts, Stand.SEALED, reason, facts.sealed_at, f"correct the cause, then `weir clear {facts.run}`")
    stopped = tuple(each for each in facts.tasks if each.is_stopped)
    if stopped:
        return _stopped(facts, stopped)
    working = [each for each in facts.tasks if each.is_working]
    is_computing = any(each.is_computing for each in working)
    kept = None if is_computing or facts.dag_run is None else _kept_by_airflow(facts, facts.dag_run)
    if working and kept is None:
        return _working(facts, working)
    return kept or _waiting(facts, known) or _idle(facts)


def _closed(facts: EpochFacts) -> Standing:
    """Return how a closed run stands: a task of it that was cleared runs again, if the scheduler goes on with it."""
    cleared = tuple(each for each in facts.tasks if each.is_cleared)
    is_over = facts.dag_run is not None and facts.dag_run.state in (None, *OVER)
    if _is_red(facts) and (is_over or not cleared):
        return _red(facts)
    if facts.undelivered:
        return _of(facts, Stand.WAITING, facts.undelivered)
    if not cleared or is_over:
        return _of(facts, Stand.PUBLISHED)
    is_computing = any(each.is_computing for each in cleared)
    again = replace(facts, tasks=cleared)
    kept = None if is_computing or facts.dag_run is None else _kept_by_airflow(again, facts.dag_run)
    reason = f"Airflow runs {_names(cleared)} again, after a clear"
    if kept is None:
        return _of(facts, Stand.AGAIN, reason, cleared=cleared)
    return _of(facts, kept.stand, f"{reason}; but {kept.reason}", command=kept.command, cleared=cleared)


def _is_red(facts: EpochFacts) -> bool:
    has_failed = facts.dag_run is not None and facts.dag_run.state == "failed"
    return has_failed or any(each.seen is not None and each.seen.state in _GIVEN_UP for each in facts.tasks)


def _red(facts: EpochFacts) -> Standing:
    """Return what Airflow calls failed of a closed run; the command has that run again, and then all is a success."""
    left = tuple(each for each in facts.tasks if each.seen and each.seen.state not in ("success", *NOT_IN_AIRFLOW))
    ended = [each for each in left if not _may_run(each)]
    closing = tuple(each for each in facts.tasks if each.region == CLOSE)
    command = f"`weir plan {facts.run} --apply`"
    if facts.undelivered:
        mended = f"correct the cause, then {command}"
        return _of(facts, Stand.RED, facts.undelivered, command=mended, stopped=left or closing)
    if ended:
        return replace(_stopped(facts, ended), stand=Stand.RED, stopped=left)
    if left:
        return _of(
            facts, Stand.RED, f"its DagRun has failed before {_names(left)} ran again", command=command, stopped=left
        )
    reason = "its DagRun was marked as failed by hand, or a task of the DAG has failed that is not Weir's"
    return _of(facts, Stand.RED, reason, command=f"clear that one in Airflow, else {command}", stopped=closing)


# Stopped


def _stopped(facts: EpochFacts, stopped: Sequence[TaskFacts]) -> Standing:
    if any(each.region == CLOSE and each.seen is not None and each.seen.state == "missing" for each in stopped):
        return _deleted(facts)  # a closing task is created and deleted with its DagRun
    names = {each.region.name for each in stopped}
    first = [each for each in stopped if not each.upstream & names] or list(stopped)
    more = len(stopped) - len(first[:SHOWN])
    reason = "; ".join(_why_stopped(each) for each in first[:SHOWN])
    reason += f"; with that, {more} more task(s)" if more else ""
    working = [each for each in facts.tasks if each.is_working]
    reason += f" (still running: {_names(working)})" if working else ""
    since = max((each.since for each in first if each.since and each.state is AttemptState.FAILED), default=None)
    return _of(facts, Stand.STOPPED, reason, since, _command(facts, first), stopped=tuple(stopped))


def _why_stopped(task: TaskFacts) -> str:
    name, seen = _name(task), None if task.seen is None else task.seen.state
    if seen in (None, "failed"):
        return _why_failed(task)
    undone = "closed the run" if task.region == CLOSE else "committed anything"
    reasons = {
        "upstream_failed": "",
        "skipped": ": it was marked by hand, alone or with its DagRun, or a task before it skips it",
        "success": f", but it has not {undone}: it was marked by hand{_failed_before(task)}",
    }
    if seen not in reasons:
        return f"Airflow has no {name} any more, since the DAG has changed"
    return f"Airflow calls {name} {'a success' if seen == 'success' else seen}{reasons[seen]}"


def _failed_before(task: TaskFacts) -> str:
    has_failed = task.state in (AttemptState.FAILED, AttemptState.RETRYING)
    return f" after it had failed: {_what(task.error)}" if has_failed and task.error else ""


def _why_failed(task: TaskFacts) -> str:
    if task.begin_error:
        return f"{_name(task)} has failed before it was registered: {_what(task.begin_error)}"
    is_known = task.state is AttemptState.FAILED
    if is_known and (task.seen is None or task.seen.try_number <= task.try_number):
        return f"{_name(task)} has failed for good: {_what(task.error)}"
    when = "while it ran" if _was_live(task) else "before it began"
    return f"Airflow calls {_name(task)} failed: it was marked by hand {when}, or its process could not start"


def _what(error: str) -> str:
    return shortened(happened_in("", error), _ERROR)


def _was_live(task: TaskFacts) -> bool:
    return task.seen is not None and 0 < task.seen.try_number == task.try_number


def _command(facts: EpochFacts, first: Sequence[TaskFacts]) -> str:
    """Return what has the run go on; `first` are the stopped tasks that no other stopped one keeps."""
    states = {each.seen.state for each in first if each.seen is not None}
    if facts.has_unknown_tasks:
        return f"correct the cause, then clear the whole run {facts.run_id} of DAG {facts.dag_id} in Airflow"
    if states & {*NOT_IN_AIRFLOW}:
        return f"`weir run adopt {facts.run}` and `weir clear {facts.run} --apply`"
    if states == {"upstream_failed"}:
        return (
            f"a task before {_name(first[0])} that is not Weir's has failed in Airflow: clear that one of "
            f"{facts.run_id}, with its downstream tasks"
        )
    errors = [error for each in first if (error := _error(each))]
    if any(_KEPT in each for each in errors):
        return f"correct the DAG file, then `weir run adopt {facts.run}` and `weir clear {facts.run} --apply`"
    again = f"`weir plan {facts.run} --apply`"
    return (
        f"correct the cause, then {again} (if the declaration was wrong: weir run adopt, weir clear)"
        if errors
        else again
    )


def _error(task: TaskFacts) -> str:
    """Return why a task has failed, where Airflow does not tell otherwise."""
    is_red = task.seen is None or task.seen.state == "failed"
    failed = task.error if task.state is AttemptState.FAILED else ""
    return task.begin_error or failed if is_red else ""


def _deleted(facts: EpochFacts) -> Standing:
    reason = f"its DagRun {facts.run_id} was deleted in Airflow"
    return _of(
        facts,
        Stand.STOPPED,
        reason,
        command=f"{run_again(facts.dag_id, facts.start)}, which has its interval run again",
    )


def _kept_by_airflow(facts: EpochFacts, dag_run: SeenDagRun) -> Standing | None:
    """Return why the scheduler does not go on with a DagRun; None where it may."""
    if dag_run.state is None:
        return _deleted(facts)
    if not dag_run.has_scheduler:
        command = "start Airflow's scheduler (in a project of `weir init`, `./weir up`)"
        return _of(facts, Stand.STOPPED, "no scheduler of Airflow runs", command=command)
    unfinished = [each for each in facts.tasks if each.seen is not None and each.seen.state not in _ENDED]
    if dag_run.state in OVER and unfinished:
        reason = f"Airflow calls its DagRun {dag_run.state}, but has not run {_names(unfinished)}"
        return _of(facts, Stand.STOPPED, reason, command=f"`weir plan {facts.run} --apply`")
    by_dag = _kept_by_dag(facts, dag_run) if unfinished else None
    if by_dag is not None:
        return by_dag
    if dag_run.state == "queued":
        reason = f"its DagRun {facts.run_id} is queued: as many runs of the DAG as max_active_runs allows are running"
        return _of(facts, Stand.WAITING, reason)
    return None


def _kept_by_dag(facts: EpochFacts, dag_run: SeenDagRun) -> Standing | None:
    if dag_run.has_import_errors:
        command = "correct what `weir check` says of the file (in Airflow: `weir airflow dags list-import-errors`)"
        reason = f"the file of the DAG {facts.dag_id} does not import any more, so that no task of it can begin"
        return _of(facts, Stand.STOPPED, reason, command=command)
    if dag_run.is_paused:
        command = f"switch {facts.dag_id} on in Airflow (`weir airflow dags unpause {facts.dag_id}`)"
        return _of(facts, Stand.STOPPED, f"the DAG {facts.dag_id} is paused", command=command)
    return None


# Running and waiting


def _working(facts: EpochFacts, working: Sequence[TaskFacts]) -> Standing:
    first = min(working, key=lambda each: (each.since is None, each.since, each.region))
    again = f" again, after {_what(first.error)}" if first.state is AttemptState.RETRYING else ""
    more = f" and {len(working) - 1} more task(s)" if len(working) > 1 else ""
    verb = "is tried" if first.state is AttemptState.RETRYING else "runs"
    return _of(facts, Stand.RUNNING, f"{_name(first)} {verb}{again}{more}", first.since)


def _waiting(facts: EpochFacts, known: Mapping[RunId, Standing]) -> Standing | None:
    waits = sorted(_waits(facts), key=lambda each: each.order(known))
    if waits:
        first = waits[0]
        waits_for = known.get(RunId(first.run)) if first.run else None
        return _of(facts, Stand.WAITING, first.reason, first.since, waits_for=waits_for)
    cleared = [each for each in facts.tasks if each.is_to_be_cleared]
    if not cleared:
        return None
    reason = f"the clear of {_names(cleared)} is pending; the DAG weir_upkeep delivers it, if it is unpaused"
    return _of(facts, Stand.WAITING, reason, command=f"`weir plan {facts.run} --apply` delivers it at once")


@dataclass(frozen=True, slots=True)
class _Wait:
    reason: str
    since: datetime | None
    run: str = ""

    def order(self, known: Mapping[RunId, Standing]) -> tuple[bool, bool, str]:
        """Those come first that wait for what is stopped."""
        waits_for = known.get(RunId(self.run)) if self.run else None
        is_stopped = waits_for is not None and waits_for.root.stand is Stand.STOPPED
        return not is_stopped, not self.run, self.reason


def _waits(facts: EpochFacts) -> Iterable[_Wait]:
    for each in facts.tasks:
        if each.state is not AttemptState.WAITING:
            continue
        others = sorted({region for region in each.awaits if not region.is_of_own_run})
        if each.awaited:
            yield _Wait(f"{_name(each)} is {each.awaited}", each.since)
        elif others:
            yield _Wait(f"{_name(each)} waits for {_named(map(str, others))}", each.since, others[-1].run)
        elif each.region == CLOSE and facts.close_awaits is not None:
            reason = f"{_name(each)} waits until {facts.close_awaits} is closed"
            yield _Wait(reason, each.since, facts.close_awaits)
        elif each.region == CLOSE and each.error:
            yield _Wait(f"{_name(each)} waits for a target: {shortened(each.error, _ERROR)}", each.since)


def _idle(facts: EpochFacts) -> Standing:
    """Return how a run stands of which no task works, waits for another run or is stopped."""
    open_tasks = [each for each in facts.tasks if not each.is_done]
    stale = [each for each in open_tasks if each.has_result and each.region != CLOSE]
    alive = [each for each in open_tasks if each not in stale and _may_run(each)]
    if not alive:
        reason = f"the results of {_names(stale)} are lost or out of date, and no task computes them"
        reason = reason if stale else f"{CLOSE.name} has to publish it again"
        return _of(facts, Stand.STOPPED, reason, command=f"`weir plan {facts.run} --apply`")
    if facts.asked:
        reason = f"yet to run: {_names(alive)}; whether that will be is not known: {facts.asked}"
        return _of(facts, Stand.UNKNOWN, reason, command=f"`weir plan {facts.run}`, where it can ask Airflow")
    told = {each.seen.state for each in alive if each.seen is not None and each.seen.state}
    state = f" (in Airflow: {', '.join(sorted(told))})" if told else ""
    return _of(facts, Stand.RUNNING, f"yet to run: {_names(alive)}{state}")


def _may_run(task: TaskFacts) -> bool:
    return task.seen is None or task.seen.state not in _ENDED


def _of(
    facts: EpochFacts,
    stand: Stand,
    reason: str = "",
    since: datetime | None = None,
    command: str = "",
    **more: Any,
) -> Standing:
    return Standing(
        run=facts.run,
        stand=stand,
        reason=reason,
        since=since,
        command=command,
        was_published=facts.was_published,
        **more,
    )


def _names(tasks: Iterable[TaskFacts]) -> str:
    return _named(map(_name, tasks))


def _name(task: TaskFacts) -> str:
    return task.region.name if task.region == CLOSE else str(task.region)


def _named(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _since(at: datetime | None) -> str:
    return "" if at is None else f", since {at:%Y-%m-%d %H:%M:%S} UTC"
