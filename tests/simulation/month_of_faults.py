"""A month of a dataflow whose days meet faults, and a person who comes when one is needed and told so.

Invariant: what the person and the schedule do is drawn from the seed, and what is expected of the product follows from
what Airflow and the store show: a run that stands still without being a success, and the time of a first pointer.
"""

from __future__ import annotations

import random
from datetime import timedelta

from tests.weir.notifications import receiving
from tests.weir.notifications.faulty import EVER, TASKS, Faulty

from weir.dataflow import EventKind
from weir.recovery.questions import Question, apply_answer, ask
from weir.store.catalogue import published
from weir.upkeep import release_and_deliver

DAYS = 30
MOST_VISITS = 10
NEEDED, MISSED = EventKind.PERSON_NEEDED.value, EventKind.DEADLINE_MISSED.value
ONCE_OR_TWICE = ("killed", "raises", "away", "changed")
UNTIL_MENDED = ("killed", "raises", "hopeless", "bad rows", "refused", "refused once published")
KINDS = (*ONCE_OR_TWICE, *UNTIL_MENDED, "lost", "lost", "all is lost", "slow", "very slow")


class Month:
    """The days of one seed: how often a person was needed so far, and what was told."""

    def __init__(self, folder, seed, patch):
        self.draw, self.faulty = random.Random(seed), Faulty(folder, patch)
        self.world, self.airflow = self.faulty.world, self.faulty.airflow
        self.needed = {NEEDED: 0, MISSED: 0}
        self.story = []

    def live_a_day(self, day):
        """Let a day be computed, with its faults; whenever it stands still, and at its end, what was told is yielded.

        A person comes later to one that stands still.
        """
        run = self.faulty.begin(day)
        self.began = self.published = None
        self._add_faults()
        for _ in range(MOST_VISITS):
            self._run_until_quiet()
            if self.airflow.state_of(run) == "success":
                break
            self.needed[NEEDED] += 1
            self.story.append(f"{run} stands still at {self.airflow.time}")
            self._upkeep()
            yield self.faulty.told(NEEDED)[NEEDED], self.needed[NEEDED]
            self.airflow.time += timedelta(minutes=self.draw.choice([10, 60, 300, 600]))
            self._upkeep()
            self._mend(run)
        if self.began <= self.faulty.deadline < self.published:
            self.needed[MISSED] += 1
        self._upkeep()
        yield self.faulty.told(NEEDED, MISSED), self.needed

    def recoveries(self):
        """The recoveries that were told, and those of which the end was told."""
        events = [event for _, event in receiving.got]
        begun = [event["id"] for event in events if event["kind"] == "failed_over"]
        return begun, [event["details"]["failed_over"] for event in events if event["kind"] == "healed"]

    def _add_faults(self):
        self.faulty.faults.clear()
        for _ in range(self.draw.choice([0, 0, 1, 1, 2])):
            kind, task = self.draw.choice(KINDS), self.draw.choice(TASKS)
            times = self.draw.choice([1, 2]) if kind in ONCE_OR_TWICE else 1
            times = EVER if kind in UNTIL_MENDED and self.draw.random() < 0.5 else times
            self.story.append(f"{self.faulty.run_id}: {task}: {kind} ({times})")
            if kind in ("slow", "very slow"):
                hours = self.draw.choice([1, 2, 5]) if kind == "slow" else 7
                self.faulty.faults[task] = 1, lambda hours=hours: self._pass(hours)
            else:
                self.faulty.add(kind, task, times)

    def _pass(self, hours):
        self.airflow.time += timedelta(hours=hours)

    def _upkeep(self):
        self.airflow.deliver_clears()
        release_and_deliver(self.world.services, dict)

    def _run_until_quiet(self):
        while (ready := self.airflow._ready()) is not None:
            self.airflow.time = max(self.airflow.time, ready.not_before or self.airflow.time)
            self.began = self.began or self.airflow.time + timedelta(seconds=1)
            self.airflow.step(ready)
            epoch = self.faulty.run_id.partition("@")[2]
            if self.published is None and published(self.world.store, "ladder", "delays", epoch) is not None:
                self.published = self.airflow.time
            if self.draw.random() < 0.2:
                self._upkeep()

    def _mend(self, run):
        """A person mends all that has shown, and has what has failed run again, by Airflow or by `weir plan`."""
        failed = [task for key, task in self.airflow.tasks.items() if key.run_id == run and task.state == "failed"]
        self.faulty.mend(failed)
        is_held_back = any("nothing was restarted" in task.failed_because for task in failed)
        if is_held_back or self.draw.random() < 0.3:
            asked = Question(self.faulty.run_id)
            apply_answer(self.world.services, ask(self.world.services, asked, lambda: self.airflow))
            self.airflow.deliver_clears()
        for task in failed:
            if task.state == "failed":
                self.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)
