"""An Airflow without Airflow: task instances with states, tries and clears, run one by one in this process.

Invariant: states, tries and `max_tries` move as Airflow 3.3.2 moves them (a clear raises `max_tries`, nothing else
does; a try number grows when a task instance is scheduled; a reschedule keeps it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

from weir.assembly import coordinator_of
from weir.attempts.failing import Users
from weir.code.archive import Archive
from weir.coordination.airflow import ClearAnswer, ClearItem, OpenRun, SeenDag, SeenRun
from weir.coordination.services import Services
from weir.coordination.settled import Due, Settled
from weir.coordination.values import BeginRequest, DeliveredClear, TaskKey
from weir.dataflow import Dataflow
from weir.errors import Retryable
from weir.execution.airflow_words import MISSING, UNSUCCESSFUL
from weir.execution.failure_words import noted
from weir.execution.run_state import CLOSE
from weir.ledger.runs import PreviousRun
from weir.restarts.answer import Action
from weir.restarts.strategy import RestartStrategy
from weir.settling import Settling
from weir.testing.fakes.dag import FakeDag, FakeTask, interval_of
from weir.testing.fakes.engine import FakeEngine
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
from weir.topology.regions import Topology
from weir.upkeep import CLEARS

FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed"})
FAILED = frozenset({"failed", "upstream_failed"})
ENDED = FINISHED | {"removed"}
DAILY = "0 0 * * *"
SCHEDULABLE = (None, "up_for_retry", "up_for_reschedule")


class Killed(BaseException):
    """Raised by a test in the middle of an attempt: the process has died, and no handler runs."""


class FakeAirflow:
    """The DagRuns of one dataflow. `during` is called in the middle of each computation."""

    def __init__(self, services: Services, engine: FakeEngine, flow: Dataflow) -> None:
        self.services, self.engine, self.flow = services, engine, flow
        self.dag_id = "dag"
        self.cadence: str | None = DAILY
        self.coordinator = coordinator_of(services)
        self.strategy: RestartStrategy = RestartStrategy.default()
        self.users = Users()
        self.deployed: Archive | None = None
        """The code that the processes of tasks have; None: they record none."""
        self.tasks: dict[TaskKey, FakeTask] = {}
        self.clear_numbers: dict[str, int] = {}
        self.queued: set[str] = set()
        self.marks: dict[str, str] = {}
        """The states of DagRuns that a person has marked, until something of them is cleared."""
        self.run_notes: dict[str, str] = {}
        self.incarnations: dict[str, int] = {}
        """How often a DagRun of an id was deleted: its task instances get other ids then."""
        self.during: Callable[[TaskKey], None] = lambda _key: None
        self.after_commit: Callable[[TaskKey], None] = lambda _key: None
        self.collects = True
        """True if results that are no longer needed are released after each commit."""
        self.reachable = True
        self.is_paused, self.has_scheduler, self.has_import_errors = False, True, False
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self._processes: dict[TaskKey, list[FakeTaskPorts]] = defaultdict(list)
        self._newest_dag: tuple[Dataflow, str, FakeDag] | None = None

    def now(self) -> datetime:
        """Return the time of the fake clock; each try advances it by a second, and a wait of all tasks to its end."""
        return self.time

    def dag_run(self, day: int = 1, *, is_queued: bool = False, kind: str = "scheduled") -> str:
        """Start the DagRun of a day, counted from the 1st of January 2013 on, or queue it; return its run id."""
        run_id = f"{kind}__{date(2013, 1, 1) + timedelta(days=day - 1)}"
        self._verify_integrity(run_id)
        if is_queued:
            self.queued.add(run_id)
        return run_id

    def delete(self, run_id: str) -> None:
        """Delete a DagRun; one that is created again, also under the same id, counts its tries from 1."""
        self.tasks = {key: task for key, task in self.tasks.items() if key.run_id != run_id}
        self.clear_numbers.pop(run_id, None)
        self.marks.pop(run_id, None)
        self.run_notes.pop(run_id, None)
        self.incarnations[run_id] = self.incarnations.get(run_id, 0) + 1

    def start(self, dag_id: str, run_id: str) -> str:  # noqa: ARG002 - there is one DAG
        """Set a queued run running."""
        if not any(key.run_id == run_id for key in self.tasks):
            return MISSING
        found = "queued" if run_id in self.queued else "running"
        self.queued.discard(run_id)
        return found

    def exists(self, dag_id: str, run_id: str) -> bool | None:  # noqa: ARG002 - there is one DAG
        """Report whether there is such a DagRun; None while Airflow cannot be reached."""
        return any(key.run_id == run_id for key in self.tasks) if self.reachable else None

    def deploy(self, flow: Dataflow) -> None:
        """Change the DAG file. Running DagRuns follow at once, finished ones when a task instance is cleared."""
        self.flow = flow
        unfinished = {key.run_id for key, task in self.tasks.items() if task.state not in FINISHED | {"removed"}}
        for run_id in unfinished:
            self._verify_integrity(run_id)

    def _verify_integrity(self, run_id: str) -> None:
        """Add the instances of new tasks, mark those that the DAG no longer has as removed, restore others."""
        dag = self._dag()
        mine = [task for key, task in self.tasks.items() if key.run_id == run_id]
        for task in mine:
            if not dag.has(task.key):
                task.state = "removed"
            elif task.state == "removed":
                task.state = None
            task.upstream = dag.upstream.get(task.key.task_id, task.upstream)
            task.pipeline = dag.pipeline.get(task.key.task_id, frozenset())
        for key in dag.created(run_id, {task.key for task in mine}):
            self.tasks.setdefault(key, dag.new_task(key))

    def _runnable(self) -> list[FakeTask]:
        """Return what may run now or after its delay; Airflow first adds the missing indexes of such a mapped task."""
        dag, seen = self._dag(), set[tuple[str, str]]()
        found = [task for task in self.tasks.values() if self._may_run(task)]
        for task in [each for each in found if dag.is_mapped(each.key.task_id)]:
            mapped = (task.key.run_id, task.key.task_id)
            for key in dag.expanded(*mapped) if mapped not in seen else ():
                if key not in self.tasks:
                    self.tasks[key] = dag.new_task(key)
                    found += [self.tasks[key]] if self._may_run(self.tasks[key]) else []
            seen.add(mapped)
        return found

    def _dag(self) -> FakeDag:
        flow, dag_id, dag = self._newest_dag or (None, None, None)
        if dag is None or flow is not self.flow or dag_id != self.dag_id:
            dag = FakeDag(self.flow, self.dag_id)
            self._newest_dag = (self.flow, self.dag_id, dag)
        return dag

    def _may_run(self, task: FakeTask) -> bool:
        is_due = task.state in SCHEDULABLE and task.key.run_id not in self.queued
        return is_due and self._upstream_done(task)

    def run_until_quiet(self, most: int = 500) -> None:
        """Run whatever may run until nothing may; raises AssertionError if that never comes."""
        for _ in range(most):
            ready = self._ready()
            if ready is None:
                return
            self.time = max(self.time, ready.not_before or self.time)
            self.step(ready)
        raise AssertionError(f"no end after {most} tries: {self.states()}")

    def states(self) -> dict[str, str | None]:
        """Return the states by readable name."""
        return {f"{key.run_id}/{key.task_id}[{key.map_index}]": task.state for key, task in self.tasks.items()}

    def task(self, run_id: str, task_id: str, map_index: int = -1) -> FakeTask:
        """Return one task instance."""
        return self.tasks[TaskKey(self.dag_id, run_id, task_id, map_index)]

    def executed(self, run_id: str) -> dict[str, int]:
        """Return the number of executed tries, by task instance."""
        return {
            f"{key.task_id}[{max(key.map_index, 0)}]": len(task.runs)
            for key, task in self.tasks.items()
            if key.run_id == run_id
        }

    def _ready(self) -> FakeTask | None:
        return min(self._runnable(), key=lambda task: task.not_before or self.time, default=None)

    def _upstream_done(self, task: FakeTask) -> bool:
        """Apply the trigger rule: none_failed, and all_done for a compaction."""
        upstream = [other for key, other in self.tasks.items() if task.waits_for(key)]
        done = ENDED if task.is_compaction else ENDED - FAILED
        return all(other.state in done or (task.is_compaction and self._is_cut_off(other)) for other in upstream)

    def _is_cut_off(self, task: FakeTask) -> bool:
        """Report whether Airflow calls it upstream_failed, which the fake does not write down: it may run later."""
        upstream = [other for key, other in self.tasks.items() if task.waits_for(key)]
        is_cut = any(other.state in FAILED or self._is_cut_off(other) for other in upstream)
        return task.state is None and not task.is_compaction and is_cut

    def state_of(self, run_id: str) -> str:
        """Return the state of a DagRun: a person's mark, or by its tasks, of which the leaves decide."""
        mine = [task for key, task in self.tasks.items() if key.run_id == run_id and task.state != "removed"]
        if not mine:
            return MISSING
        if run_id in self.marks or run_id in self.queued:
            return self.marks.get(run_id, "queued")
        if any(task.state not in FINISHED and not self._is_cut_off(task) for task in mine):
            return "running"
        inner = frozenset().union(*(task.upstream for task in mine))
        leaves = [task for task in mine if task.key.task_id not in inner]
        return "failed" if any(task.state in FAILED or self._is_cut_off(task) for task in leaves) else "success"

    def step(self, task: FakeTask) -> None:
        """Run one try of one task instance, as the operator and the retry policy do."""
        if task.state != "up_for_reschedule":
            task.try_number += 1
        task.state, task.not_before = "running", None
        task.runs.append(task.try_number)
        self.time += timedelta(seconds=1)
        request = self.request(task)
        ports = FakeTaskPorts(self, TaskCoordinator(self, task.key), TaskSettling(self, self))

        def during() -> None:
            self.during(task.key)
            engine.require_running()

        engine = FakeTaskEngine(self.services.store, lambda job: self.engine.run(job, during))
        self._processes[task.key].append(ports)
        try:
            run_task(ports, engine, self.flow.name, request)
        except Killed:
            self._retry(task, 0)
        except Exception as error:  # noqa: BLE001 - as Airflow does
            self._raised(task, ports, request, error)
        else:
            if task.state == "running":
                task.state = "success"
        finally:
            self._processes[task.key].pop()

    def heartbeat(self, key: TaskKey) -> None:
        """Take a heartbeat of the process that runs a task instance; `during` may call this."""
        self._processes[key][-1].beat()

    def _raised(self, task: FakeTask, ports: FakeTaskPorts, request: BeginRequest, error: Exception) -> None:
        if task.state != "running":
            return  # cleared meanwhile
        if isinstance(error, Rescheduled):
            task.state = "up_for_reschedule"
            task.not_before = self.time + timedelta(seconds=error.awaiting.seconds)
            task.waits_on = error.awaiting.reason
        elif isinstance(error, FailedForGood):
            task.fail(str(error))
        elif isinstance(error, Skipped):
            task.state = "skipped"
        else:
            decision = answer_failure(ports, self.flow.name, request, error, self.strategy, self.users)
            if task.state != "running":
                return
            if decision.action is Action.FAIL:
                task.fail(decision.reason)
            else:
                self._retry(task, decision.delay_seconds)

    def request(self, task: FakeTask) -> BeginRequest:
        """Build the request of a task's process."""
        return BeginRequest(
            key=task.key,
            try_number=task.try_number,
            max_tries=task.max_tries,
            ti_id=self.ti_id(task),
            dataflow=self.flow,
            task_prefix="",
            interval=interval_of(task.key.run_id),
            session_url="sc://nowhere",
            clear_number=self.clear_numbers.get(task.key.run_id, 0),
            parameters=self.flow.parameters,
            previous=self._previous(task.key.run_id) if Topology(self.flow).follows_previous else None,
            restart=self.strategy,
            is_backfill=task.key.run_id.startswith("backfill__"),
            cadence=self.cadence,
            deployed=None if task.key.task_id == CLOSE.name else self.deployed,
        )

    def ti_id(self, task: FakeTask) -> str:
        """Return the id of the present try of a task instance."""
        return f"ti-{task.key.run_id}-{self.incarnations.get(task.key.run_id, 0)}-{task.try_number}"

    def _previous(self, run_id: str) -> PreviousRun | None:
        days = {key.run_id[-10:]: key.run_id for key in self.tasks if key.run_id[-10:] < run_id[-10:]}
        earlier = days[max(days)] if days else None
        if earlier is None:
            return None
        are_backfill = all(each.startswith("backfill__") for each in (run_id, earlier))
        return PreviousRun(self.dag_id, earlier, interval_of(earlier), are_backfill and earlier in self.queued)

    def _retry(self, task: FakeTask, seconds: float) -> None:
        if task.state == "running" and task.try_number <= task.max_tries:
            task.state, task.not_before = "up_for_retry", self.time + timedelta(seconds=seconds)
        elif task.state == "running":
            task.state = "failed"

    # What a person does, and what Weir asks for

    def clear_by_hand(self, run_id: str, task_id: str, map_index: int = -1) -> None:
        """Clear one task instance without its downstream, as a person does in the UI."""
        self._clear(self.task(run_id, task_id, map_index))

    def clear_run_by_hand(self, run_id: str) -> None:
        """Clear all task instances of a run."""
        for task in [task for key, task in self.tasks.items() if key.run_id == run_id]:
            self._clear(task)

    def mark_run_by_hand(self, run_id: str, state: str) -> None:
        """Mark a DagRun: what is running gets its state, what has not run is skipped, what has ended stays."""
        for task in [task for key, task in self.tasks.items() if key.run_id == run_id and task.state not in ENDED]:
            task.state = state if task.state in ("running", "up_for_reschedule") else "skipped"
            task.not_before = None
        self.marks[run_id] = state

    def deliver_clears(self, dataflow: str | None = None) -> list[DeliveredClear]:
        """Deliver pending clears, as upkeep does. Raises what fails."""
        return self._settle(dataflow, CLEARS).clears

    def release(self, dataflow: str) -> None:
        """Release and delete the results that no run of a dataflow needs any more. Raises what fails."""
        self._settle(dataflow, Due(runs=None))

    def _settle(self, dataflow: str | None, due: Due) -> Settled:
        settled = Settling(self.coordinator.services, lambda: self).settle(dataflow, due)
        for error in settled.failed.values():
            raise error
        return settled

    def _clear(self, task: FakeTask) -> None:
        """As a person does: the run counts it, and the task instance only if it is not running."""
        self.clear_numbers[task.key.run_id] = self.clear_numbers.get(task.key.run_id, 0) + 1
        self._reset(task)

    def _reset(self, task: FakeTask) -> None:
        if task.state != "running":
            task.max_tries = task.try_number + task.retries
        task.state, task.not_before = None, None
        self.marks.pop(task.key.run_id, None)
        self._verify_integrity(task.key.run_id)

    def clear(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Compare, then clear. Raises Retryable while Airflow cannot be reached."""
        self._require_reachable()
        answers = []
        for item, answer in zip(wanted, self.inspect(wanted), strict=True):
            task = self.tasks.get(TaskKey(item.dag_id, item.run_id, item.task_id, item.map_index))
            matches = item.expected_try in (None, answer.try_number)
            clearable = FINISHED if item.is_skipped else FINISHED - {"skipped"}
            if task is None or not matches or task.state not in clearable:
                answers.append(answer)
                continue
            self._reset(task)
            task.notes.append(noted(item.note, self.note(task.key)))
            answers.append(ClearAnswer(item, answer.state, answer.try_number, cleared=True))
        return answers

    def note(self, key: TaskKey) -> str:
        """Return the newest note; the reason of a failure, which is kept beside notes, is none. Raises Retryable."""
        self._require_reachable()
        task = self.tasks.get(key)
        return "" if task is None else next((each for each in reversed(task.notes) if each != task.failed_because), "")

    def seen_run(self, dag_id: str, run_id: str) -> SeenRun | None:  # noqa: ARG002 - there is one DAG
        """Return state and note of a DagRun. Raises Retryable."""
        self._require_reachable()
        state = self.state_of(run_id)
        return None if state == MISSING else SeenRun(state, self.run_notes.get(run_id, ""))

    def seen_dag(self, dag_id: str) -> SeenDag | None:  # noqa: ARG002 - there is one DAG
        """Return whether the DAG is paused, whether a scheduler runs, and whether its file imports."""
        self._require_reachable()
        return SeenDag(self.is_paused, self.has_scheduler, self.has_import_errors)

    def pause(self, dag_id: str, *, is_paused: bool) -> None:  # noqa: ARG002 - there is one DAG
        """Pause or unpause the DAG: its tasks run as before. Raises Retryable."""
        self._require_reachable()
        self.is_paused = is_paused

    def clear_run(self, dag_id: str, run_id: str) -> int:  # noqa: ARG002 - there is one DAG
        """Clear all task instances of a DagRun, and return how many. Raises Retryable."""
        self._require_reachable()
        self.clear_run_by_hand(run_id)
        return sum(key.run_id == run_id for key in self.tasks)

    def open_runs(self, dag_id: str, zone: str = "UTC") -> list[OpenRun]:  # noqa: ARG002 - there is one DAG
        """Return the DagRuns that are no success. Raises Retryable."""
        self._require_reachable()
        states = {run: self.state_of(run) for run in sorted({key.run_id for key in self.tasks})}
        return [OpenRun(run, state, interval_of(run)) for run, state in states.items() if state in UNSUCCESSFUL]

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:  # noqa: ARG002 - there is one DAG
        """Set a DagRun's note. Raises Retryable."""
        self._require_reachable()
        self.run_notes[run_id] = note

    def annotate(self, key: TaskKey, note: str) -> None:
        """Keep the note, also where Airflow would replace an earlier one. Raises Retryable."""
        self._require_reachable()
        if key in self.tasks:
            self.tasks[key].notes.append(note)

    def _require_reachable(self) -> None:
        if not self.reachable:
            raise Retryable.of("testing.airflow_unreachable")

    def inspect(self, wanted: Iterable[ClearItem]) -> list[ClearAnswer]:
        """Answer the states."""
        found = []
        for item in wanted:
            task = self.tasks.get(TaskKey(item.dag_id, item.run_id, item.task_id, item.map_index))
            state, number = (MISSING, 0) if task is None else (task.state, task.try_number)
            ti_id = "" if task is None else self.ti_id(task)
            found.append(ClearAnswer(item, state, number, cleared=False, ti_id=ti_id))
        return found
