"""Two processes, each with an operation: the second performs its own while the first stands still in the middle of its.

Airflow is in the process of the tests, and answers both.
"""

import multiprocessing
from dataclasses import dataclass

from sqlalchemy import text
from tests.concurrency.process import main

from weir.restarts.answer import Action

_BLOCKED = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND cardinality(pg_blocking_pids(pid)) > 0"
)


class Actor:
    """One of the two processes, as seen from here."""

    def __init__(self, url, role):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=main, args=(theirs, url, role), daemon=True)
        self._process.start()
        theirs.close()
        self.events, self.is_performing = [], False

    def begin(self, asked, place):
        self.events, self.is_performing = [], True
        self.pipe.send((asked, place))

    def go_on(self, value=None):
        self.pipe.send(value)

    def stop(self):
        self.pipe.close()
        self._process.join(30)
        self._process.kill()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How both operations ended, where the first stood still, and whether the second waited for it."""

    first: object
    second: object
    at: str
    was_blocked: bool


class Pair:
    """The two processes, and the server where they meet."""

    def __init__(self, url, admin):
        self._admin = admin
        self.actors = (Actor(url, "first"), Actor(url, "second"))

    def stop(self):
        for each in self.actors:
            each.stop()

    def perform(self, world, place, first, second, *, stop_at=None, between=None):
        """Perform both: the second while the first stands at its point `stop_at`, or after it where there is none.

        `between` is called when both have done what they had to, but still hold what they read.
        """
        one, other = self.actors
        airflow, at, was_blocked = world.airflow, "the end", False
        for actor, asked in ((one, first), (other, second)):
            if asked is not None:
                actor.begin(asked, place)
                assert self._until(airflow, actor, "ready")[0] == "ready", actor.events
        one.go_on(stop_at)
        what, said = self._until(airflow, one, "paused", "did")
        if what == "paused":
            at = said
        if second is not None:
            other.go_on()
            was_blocked = self._until_it_waits(airflow, other, place.database) if what == "paused" else False
        if what == "paused":
            one.go_on()
            self._until(airflow, one, "did")
        if second is not None and not was_blocked and what != "paused":
            self._until(airflow, other, "did")
        if was_blocked:
            self._until(airflow, other, "did")
        if between is not None:
            between()
        ends = [self._end(airflow, actor) for actor in self.actors if actor.is_performing]
        return Outcome(first=ends[0], second=ends[1] if second is not None else None, at=at, was_blocked=was_blocked)

    def _end(self, airflow, actor):
        actor.go_on()
        what, ended = self._until(airflow, actor, "ended")
        actor.is_performing = False
        return ended

    def _until_it_waits(self, airflow, actor, database):
        """Wait until a process has done its operation, and tell whether it has not: a lock of the other stops it."""
        while True:
            if actor.pipe.poll(0.01):
                if self._answer(airflow, actor)[0] == "did":
                    return False
            elif self._admin.scalar(_BLOCKED, {"name": database}):
                return True

    def _until(self, airflow, actor, *wanted):
        while True:
            event = self._answer(airflow, actor)
            if event[0] in (*wanted, "ended"):
                return event

    def _answer(self, airflow, actor):
        event = actor.pipe.recv()
        if event[0] == "airflow":
            name, args = event[1]
            actor.pipe.send(getattr(airflow, name)(*args))
        else:
            actor.events.append(event)
        return event


def tried(airflow, key):
    """The next try of a task instance, as Airflow starts it; also beside one that Airflow has given up."""
    task = airflow.tasks[key]
    if task.state != "up_for_reschedule":
        task.try_number += 1
    task.state, task.not_before = "running", None
    task.runs.append(task.try_number)
    return airflow.request(task)


def settle(airflow, asked, ended):
    """Let Airflow know how a try has ended."""
    if asked.request is None:
        return
    task = airflow.tasks[asked.request.key]
    if (task.state, task.try_number) != ("running", asked.request.try_number):
        return
    if ended.how == "done":
        task.state = "success"
    elif ended.how == "rescheduled":
        task.state = "up_for_reschedule"
    elif ended.how == "failed" or ended.decision is None or ended.decision[0] is Action.FAIL:
        task.fail(ended.said)
    else:
        airflow._retry(task, ended.decision[1])
