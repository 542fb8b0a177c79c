"""An Airflow whose processes overlap, whose API goes away, and whose users clear, mark and delete.

Invariant: Airflow heeds a process only while it runs the current try.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from tests.simulator.engine import is_broken
from tests.simulator.process import Process, StageFailed

from weir.code.archive import Archive
from weir.coordination.airflow import ClearAnswer, ClearItem
from weir.coordination.settled import CLEARS, Due, Settled
from weir.coordination.values import BeginRequest, Begun, TaskKey
from weir.errors import Conflict, Internal, Retryable, WeirError
from weir.execution.run_state import CLOSE
from weir.formats.region_job import RegionReport
from weir.notifications.delivery import AirflowContext, deliver
from weir.restarts.answer import Action
from weir.retention.release import release
from weir.state.compaction import CompactionRequest, ToCompact
from weir.testing.fakes.airflow import FakeAirflow, Killed
from weir.testing.fakes.code import archive_of_edits
from weir.testing.fakes.dag import FakeTask
from weir.testing.fakes.task_ports import (
    FailedForGood,
    FakeTaskEngine,
    FakeTaskPorts,
    Rescheduled,
    Skipped,
    TaskCoordinator,
    TaskSettling,
    answer_failure,
    run_task,
)
from weir.topology.regions import region_compacted


class Api(Enum):
    """The condition of Airflow's API."""

    UP = "up"
    AWAY = "away"
    ANSWERS = "answers"
    """It executes requests, and its answers are lost."""
    SLOW = "slow"
    """Requests time out, and are executed later."""


class _Moment(NamedTuple):
    """What Airflow's database had once; `seen` is what persons had done by then."""

    seen: tuple[object, ...]
    tasks: dict[TaskKey, FakeTask]
    owners: dict[TaskKey, Process]


_UNLABELLED = re.compile("labels or note are missing: (?!Retryable|Misconfigured|LedgerBehind)")


class Unexpected(BaseException):
    """The coordinator raised what it must never raise; no `except Exception` of the drivers keeps this."""


class SimulatedCoordinator(TaskCoordinator):
    """The coordinator for one task; errors that the drivers only log are checked, too."""

    def __init__(self, airflow: SimulatedAirflow, key: TaskKey) -> None:
        super().__init__(airflow, key)
        self._simulated = airflow

    def heartbeat(self, begun: Begun) -> None:
        """Take a heartbeat, and report why it stops the attempt."""
        with self._watched():
            try:
                super().heartbeat(begun)
            except Conflict:
                self._simulated.on_stop(begun)
                raise

    def plan_compaction(self, request: CompactionRequest) -> ToCompact | None:
        """Plan a compaction."""
        with self._watched():
            return super().plan_compaction(request)

    def enter_compacted(self, begun: ToCompact, report: RegionReport | None) -> list[str]:
        """Enter a compaction."""
        with self._watched():
            return super().enter_compacted(begun, report)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._simulated.require_expected(error)
            raise


class SimulatedSettling(TaskSettling):
    """What settles a dataflow for one task; errors that the drivers only log are checked, too."""

    def __init__(self, airflow: SimulatedAirflow) -> None:
        super().__init__(airflow, airflow)
        self._simulated = airflow
        self._context = airflow.context

    def settle(self, dataflow: str | None, due: Due) -> Settled:
        """Settle, and check what fails."""
        settled = super().settle(dataflow, due)
        for error in settled.failed.values():
            self._simulated.require_expected(error)
        return settled


class SimulatedAirflow(FakeAirflow):
    """The DagRuns of one dataflow, run by processes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.api = Api.UP
        self.owners: dict[TaskKey, Process] = {}
        self.late: list[list[ClearItem]] = []
        self.process: Process | None = None
        self.started = 0
        self.on_answer: Callable[[list[ClearAnswer]], None] = lambda _answers: None
        self.on_look: Callable[[list[ClearAnswer]], None] = lambda _answers: None
        self.on_stop: Callable[[Begun], None] = lambda _begun: None
        self.marked: set[TaskKey] = set()
        self.has_marked = False
        """True if a person has marked any task instance, whose DagRun may have been deleted since."""
        self.cleared: list[tuple[TaskKey, int]] = []
        """What persons have cleared: task instances, and their newest tries then."""
        self.has_code = False
        self.edits: dict[str, int] = {}
        """By stage, how often its function was edited."""
        self.edits_before: dict[str, int] = {}
        """The same before the last edit."""
        self.archives: dict[str, dict[str, int]] = {}
        """By fingerprint, the edits of an archive."""
        self.context: AirflowContext = dict
        """Returns the context that notifiers get."""
        self.forgets = False
        """True if its database may go back in time."""
        self.new_process: type[Process] = Process
        self._is_clearing = False
        self._moments: list[_Moment] = []
        self._forgotten: Counter[tuple[TaskKey, int]] = Counter()
        """By task instance and number, how often a try was lost."""

    def notify(self) -> None:
        """Tell the receivers, as upkeep does."""
        deliver(self.services, self.flow.name, self.context)

    # Processes

    def ready(self) -> list[FakeTask]:
        """Return the task instances that the scheduler may start now or after their retry delay."""
        return sorted(
            self._runnable(), key=lambda task: (task.not_before or self.time, task.key.run_id, task.key.task_id)
        )

    def launch(self, task: FakeTask, *, is_old: bool = False) -> Process:
        """Return a process for the next try of `task`; it has not begun. An old worker has the code before the last."""
        self._note_moment()
        if task.state != "up_for_reschedule":
            task.try_number += 1
        self.time = max(self.time + timedelta(seconds=1), task.not_before or self.time)
        task.state, task.not_before = "running", None
        task.runs.append(task.try_number)
        self.started += 1
        request = self._with_code(self.request(task), self.edits_before if is_old else self.edits)
        process = self.new_process(self.started, lambda mine: self._attempt(mine, task, request))
        self.owners[task.key] = process
        return process

    def _with_code(self, request: BeginRequest, edits: Mapping[str, int]) -> BeginRequest:
        task = request.key.task_id
        if not self.has_code or task == CLOSE.name or region_compacted(task) is not None:
            return request
        return replace(request, deployed=self._archive(edits))

    def _archive(self, edits: Mapping[str, int]) -> Archive:
        archive = archive_of_edits(self.flow, edits)
        self.archives[archive.fingerprint] = dict(edits)
        return archive

    def edit(self, stage: str, *, breaks: bool = False) -> None:
        """Edit the function of a stage, and deploy it; it raises from now on if that breaks it."""
        number = self.edits.get(stage, 0) + 1
        while is_broken(number) is not breaks:
            number += 1
        self.edits_before, self.edits = self.edits, {**self.edits, stage: number}

    def _attempt(self, process: Process, task: FakeTask, request: BeginRequest) -> None:
        try:
            self._try(process, task, request)
        except Killed:
            self._retry_later(process, task, 0.0)

    def _try(self, process: Process, task: FakeTask, request: BeginRequest) -> None:
        ports = FakeTaskPorts(self, SimulatedCoordinator(self, task.key), SimulatedSettling(self))
        process.beat = ports.beat

        def during() -> None:
            process.step(computes=True)
            engine.require_running()

        engine = FakeTaskEngine(self.services.store, lambda job: self.engine.run(job, during))
        try:
            run_task(ports, engine, self.flow.name, request)
            process.ask()
        except Rescheduled as rescheduled:
            process.ask()
            if self.is_heard(task, process):
                task.state = "up_for_reschedule"
                task.not_before = self.time + timedelta(seconds=rescheduled.awaiting.seconds)
        except FailedForGood as failed:
            process.ask()
            if self.is_heard(task, process):
                task.fail(str(failed))
        except Skipped:
            process.ask()
            if self.is_heard(task, process):
                task.state = "skipped"
        except Exception as error:  # noqa: BLE001 - as Airflow does
            self.require_expected(error)
            self._fail(process, task, ports, request, error)
        else:
            if self.is_heard(task, process):
                task.state = "success"

    def collect(self, runs: Sequence[str] | None, *, is_reclaiming: bool = False) -> None:
        """Release results, as an operator does; where it fails, any later process does it."""
        if not self.collects:
            return
        try:
            if is_reclaiming:
                release(self.services, self.flow.name, runs, is_reclaiming=True)
        except WeirError as error:
            self.require_expected(error)
            return
        SimulatedSettling(self).settle(self.flow.name, Due(runs=None if runs is None else tuple(runs)))

    def _fail(
        self, process: Process, task: FakeTask, ports: FakeTaskPorts, request: BeginRequest, error: Exception
    ) -> None:
        expected = self.require_expected
        decision = answer_failure(ports, self.flow.name, request, error, self.strategy, on_trouble=expected)
        if _UNLABELLED.search(decision.reason):
            raise Unexpected(decision.reason)
        process.ask()
        if decision.action is not Action.FAIL:
            self._retry_later(process, task, decision.delay_seconds)
        elif self.is_heard(task, process):
            task.fail(decision.reason)

    def require_expected(self, error: Exception) -> None:
        """Raise Unexpected if `error` must never be raised."""
        if isinstance(error, Internal) or not isinstance(error, (WeirError, StageFailed)):
            raise Unexpected(f"{type(error).__name__}: {error}") from error

    def _retry_later(self, process: Process, task: FakeTask, seconds: float) -> None:
        if self.is_heard(task, process):
            self._retry(task, seconds)

    def is_heard(self, task: FakeTask, process: Process) -> bool:
        """Report whether `process` runs the current try of `task`."""
        return task.state == "running" and self.owners.get(task.key) is process

    def lose(self, process: Process) -> None:
        """Take the try of a process for failed, as after missed heartbeats; the process may run on."""
        for key, owner in list(self.owners.items()):
            if owner is process and self.tasks[key].state == "running":
                self._retry_later(process, self.tasks[key], 0.0)
                del self.owners[key]

    # Its database

    def _note_moment(self) -> None:
        """Remember what the database has, back to what a person last did."""
        if not self.forgets:
            return
        seen = self._seen_of_persons()
        tasks = {key: replace(task, runs=[*task.runs], notes=[*task.notes]) for key, task in self.tasks.items()}
        kept = [each for each in self._moments if each.seen == seen]
        self._moments = [*kept, _Moment(seen, tasks, dict(self.owners))]

    def _seen_of_persons(self) -> tuple[object, ...]:
        deleted = tuple(sorted(self.incarnations.items()))
        return len(self.cleared), frozenset(self.marked), frozenset(self.tasks), frozenset(self.queued), deleted

    def go_back(self, tries: int) -> None:
        """Put the database back to what it was so many tries ago; processes of tries that it has lost run on."""
        seen = self._seen_of_persons()
        moments = [each for each in self._moments if each.seen == seen][-tries:]
        if not moments:
            return
        self._moments = []
        for key, before in moments[0].tasks.items():
            task = self.tasks[key]
            self._forgotten.update((key, number) for number in range(before.try_number + 1, task.try_number + 1))
            for each in fields(before):
                setattr(task, each.name, getattr(before, each.name))
        self.owners = moments[0].owners
        for task in [task for task in self.tasks.values() if task.state == "running"]:
            owner = self.owners.get(task.key)
            if owner is None or owner.is_over:
                self._retry(task, 0.0)  # no process sends a heartbeat

    def ti_id(self, task: FakeTask) -> str:
        """Return the id of the present try: one that has the number of a lost one has another id."""
        return f"{super().ti_id(task)}-{self._forgotten[task.key, task.try_number]}"

    # The API

    def clear(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Compare, then clear, as the API is just now. Raises Retryable."""
        self._step("Airflow refuses")
        if self.api is Api.AWAY:
            raise Retryable("Airflow is away")
        if self.api is Api.SLOW:
            self.late.append(list(wanted))
            raise Retryable("Airflow is slow")
        answers = self._clear_now(wanted)
        self._step("Airflow's answer is lost", is_done=True)
        if self.api is Api.ANSWERS:
            raise Retryable("Airflow's answer is lost")
        return answers

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:  # type: ignore[override]
        """Answer the states. Raises Retryable."""
        self._ask()
        if self.api is not Api.UP:
            raise Retryable("Airflow is away")
        answers = super().inspect(wanted)
        self.on_look(answers)
        return answers

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Report whether there is such a DagRun. Raises Retryable."""
        self._ask()
        if self.api is not Api.UP:
            raise Retryable("Airflow is away")
        return super().exists(dag_id, run_id)

    def note(self, key: TaskKey) -> str:
        """Return the newest note. Raises Retryable."""
        self._ask()
        if self.api is not Api.UP:
            raise Retryable("Airflow is away")
        return super().note(key)

    def annotate(self, key: TaskKey, note: str) -> None:
        """Keep the note, as the API is just now. Raises Retryable."""
        self._step("Airflow refuses")
        if self.api in (Api.AWAY, Api.SLOW):
            raise Retryable(f"Airflow is {self.api.value}")
        super().annotate(key, note)
        self._step("Airflow's answer is lost", is_done=True)
        if self.api is Api.ANSWERS:
            raise Retryable("Airflow's answer is lost")

    def deliver(self) -> None:
        """Carry out the requests that a slow API has taken."""
        late, self.late = self.late, []
        for wanted in late:
            self._clear_now(wanted)

    def _clear_now(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        was, self.api, self._is_clearing = self.api, Api.UP, True
        try:
            answers = super().clear(wanted)
        finally:
            self.api, self._is_clearing = was, False
        self.on_answer(answers)
        return answers

    def _step(self, refusal: str, *, is_done: bool = False) -> None:
        if self.process is not None:
            self.process.step(Retryable(refusal), is_done=is_done)

    def _ask(self) -> None:
        if self.process is not None and not self._is_clearing:
            self.process.ask()

    # A person

    def _clear(self, task: FakeTask) -> None:
        """As a person does, which is noted."""
        self.cleared.append((task.key, task.try_number))
        super()._clear(task)

    def mark(self, task: FakeTask, state: str) -> None:
        """Mark a task instance; Airflow then ignores its process."""
        task.state, task.not_before = state, None
        self.marked.add(task.key)
        self.has_marked = True

    def clear_with_downstream(self, task: FakeTask) -> None:
        """Clear a task instance and its downstream, as the UI does by default."""
        names, run = {task.key.task_id}, [each for each in self.tasks.values() if each.key.run_id == task.key.run_id]
        for _ in run:
            names |= {each.key.task_id for each in run if each.upstream & names}
        for each in run:
            if each is task or (each.key.task_id in names and each.key.task_id != task.key.task_id):
                self._clear(each)

    def wait(self, minutes: int) -> None:
        """Let time go by."""
        self.time += timedelta(minutes=minutes)

    def upkeep(self) -> None:
        """Deliver pending clears, as Weir's housekeeping does."""
        SimulatedSettling(self).settle(self.flow.name, CLEARS)

    def recreate(self, run_id: str) -> None:
        """Delete a DagRun, and create it again."""
        self.remove(run_id)
        self._verify_integrity(run_id)

    def remove(self, run_id: str) -> None:
        """Delete a DagRun; processes of its tasks run on, and Airflow ignores them."""
        for key in [key for key in self.tasks if key.run_id == run_id]:
            self.owners.pop(key, None)
            self.marked.discard(key)
        self.queued.discard(run_id)
        self.delete(run_id)
