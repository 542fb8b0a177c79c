"""One simulation: a coordinator, a ledger, a store and an Airflow, and the events that happen to them.

Invariant: the same scene and the same events give the same outcome.
"""

from __future__ import annotations

import uuid
from itertools import count
from typing import Final

from weir.coordination.airflow import ClearAnswer
from weir.coordination.read_leases import claimed
from weir.coordination.services import Services
from weir.ledger.leases import drop_leases
from weir.restarts.recovery_settings import RecoverySettings
from weir.restarts.strategy import ExponentialDelay
from weir.settings import EXPECTATIONS
from weir.store.store import Store
from weir.testing.fakes.dag import FakeTask
from weir.testing.simulator.actors import Chore, bring_back, damage, go_back, housekeeper, make_savepoint
from weir.testing.simulator.airflow import Api, SimulatedAirflow, Unexpected
from weir.testing.simulator.dataflows import Scene, rescaled, suite_folder
from weir.testing.simulator.engine import SimulatedEngine
from weir.testing.simulator.events import Event, Verb
from weir.testing.simulator.ledger import SimulatedLedger
from weir.testing.simulator.process import NO_FATE, Fate, Process
from weir.testing.simulator.store import Condition, MemoryFiles
from weir.testing.simulator.witness import Broken, Witness, require
from weir.topology.regions import Topology

PATIENT: Final = ExponentialDelay(attempts_before_reset=10_000)

MOST_RUNS: Final = 3


class World:
    """Everything that one simulation is about."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.sources = scene, scene.sources
        self.content: dict[str, int] = {}
        self.files = MemoryFiles(self._step, self._changed, lambda: self.airflow.time)
        self.store = Store(self.files)
        self.ledger = SimulatedLedger(self._deepen, self._step, self._observe)
        numbers = count(1)
        self._suites = suite_folder(scene)
        services = Services(
            ledger=self.ledger,
            store=self.store,
            now=lambda: self.airflow.time,
            new_uuid=lambda: uuid.UUID(int=next(numbers) << 80),
            recovery=RecoverySettings(largest_plan=scene.largest_plan),
            expectations=EXPECTATIONS if self._suites is None else self._suites.name,
        )
        self.services = services
        self.engine = SimulatedEngine(self.store, self.content, scene.natures)
        self.airflow = SimulatedAirflow(services, self.engine, scene.flow)
        self.airflow.on_answer, self.airflow.collects = self._answered, scene.collects
        self.airflow.strategy = PATIENT if scene.is_patient else self.airflow.strategy
        self.witness = Witness(
            self.ledger.connection, Topology(scene.flow), self.engine, self.files.data, lambda: self.airflow.time
        )
        self.suspended: list[Process] = []
        self.pressed: set[Process] = set()
        self.notebooks: list[str] = []
        self.runs = [self.airflow.dag_run(1)]
        self.changed: set[str] = set()
        self.removed: dict[str, bytes] = {}
        self._process: Process | None = None

    # What processes meet

    def _step(self, refusal: Exception) -> None:
        if self._process is not None:
            self._process.step(refusal)

    def _deepen(self, by: int) -> None:
        if self._process is not None:
            self._process.depth += by

    def _observe(self) -> None:
        self.witness.observe()

    def _changed(self, how: str, path: str, data: bytes) -> None:
        self.witness.changed(how, path, data)

    def _answered(self, answers: list[ClearAnswer]) -> None:
        self.witness.answered(answers)

    def run(self, process: Process, fate: Fate) -> None:
        """Let a process go on until it is over or suspended."""
        self._process = self.airflow.process = process
        if self.files.condition is Condition.FULL:
            self.pressed.add(process)  # it makes room
        self.witness.is_reclaiming = process in self.pressed
        if process in self.suspended:
            self.suspended.remove(process)
        try:
            process.run(fate)
        except Unexpected as error:
            raise Broken("only_known_errors_are_raised", str(error)) from error
        finally:
            self._process = self.airflow.process = None
            self.witness.is_reclaiming = False
        if not process.is_over:
            self.suspended.append(process)

    def close(self) -> None:
        """End all processes."""
        for process in self.suspended:
            process.end()
        if self._suites is not None:
            self._suites.cleanup()

    # What happens

    def carry_out(self, event: Event) -> None:
        """Let one event happen. Raises Broken."""
        what = _WHAT[event.verb]
        what(self, event)

    def step(self, event: Event) -> None:
        """Run a task instance."""
        ready = self.airflow.ready()
        if ready:
            self.run(self.airflow.launch(ready[event.number % len(ready)]), event.fate)

    def resume(self, event: Event) -> None:
        """Let a suspended process go on."""
        if self.suspended:
            self.run(self.suspended[event.number % len(self.suspended)], event.fate)

    def lose(self, event: Event) -> None:
        """Airflow gives a suspended process up."""
        if self.suspended:
            self.airflow.lose(self.suspended[event.number % len(self.suspended)])

    def wait(self, event: Event) -> None:
        """Minutes go by."""
        self.airflow.wait(event.number)

    def start_run(self, event: Event) -> None:
        """The next day's run starts."""
        del event
        if len(self.runs) < MOST_RUNS:
            self.runs.append(self.airflow.dag_run(len(self.runs) + 1))

    def deploy(self, event: Event) -> None:
        """A region has one subtask more from now on."""
        flow = rescaled(self.airflow.flow, event.number)
        if flow is not None:
            self.witness.epochs.deploy(Topology(flow))
            self.airflow.deploy(flow)

    def recreate(self, event: Event) -> None:
        """A run is deleted and made anew."""
        run = self.runs[event.number % len(self.runs)]
        self.witness.made_anew.add(run)
        self.airflow.recreate(run)

    def _task(self, event: Event) -> FakeTask:
        tasks = sorted(
            self.airflow.tasks.values(), key=lambda task: (task.key.run_id, task.key.task_id, task.key.map_index)
        )
        return tasks[event.number % len(tasks)]

    def clear(self, event: Event) -> None:
        """A person clears a task instance that has run."""
        task = self._task(event)
        if task.try_number:
            self.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)

    def clear_down(self, event: Event) -> None:
        """With its downstream."""
        self.airflow.clear_with_downstream(self._task(event))

    def clear_run(self, event: Event) -> None:
        """A whole run."""
        self.airflow.clear_run_by_hand(self.runs[event.number % len(self.runs)])

    def mark(self, event: Event) -> None:
        """A person marks a task instance."""
        state = {Verb.SUCCEED: "success", Verb.FAIL: "failed", Verb.SKIP: "skipped"}[event.verb]
        self.airflow.mark(self._task(event), state)

    def upkeep(self, event: Event) -> None:
        """Somebody carries out what is owed."""
        del event
        self.airflow.upkeep()

    def change_airflow(self, event: Event) -> None:
        """Its API goes away or comes back."""
        self.airflow.api = Api(event.how)

    def deliver(self, event: Event) -> None:
        """What is late happens."""
        del event
        self.airflow.deliver()

    def change_store(self, event: Event) -> None:
        """It goes away or comes back."""
        self.files.condition = Condition(event.how)

    def change(self, event: Event) -> None:
        """A source would read something else now."""
        stage = self.sources[event.number % len(self.sources)]
        self.content[stage] = abs(self.content.get(stage, 0)) + 1
        self.changed.add(stage)

    def spoil(self, event: Event) -> None:
        """A source reads bad rows."""
        self.change(event)
        stage = self.sources[event.number % len(self.sources)]
        self.content[stage] *= -1

    def collect(self, event: Event) -> None:
        """Upkeep releases what nobody needs."""
        if not self.scene.collects:
            if self.scene.keeps_state:
                self.run(housekeeper(self.airflow, Chore.CHECKPOINTS), event.fate)
            return
        if event.how == "dry":
            before = self.ledger.connection.total_changes, set(self.files.data)
            self.run(housekeeper(self.airflow, Chore.DRY_SWEEP, is_reclaiming=bool(event.number % 2)), NO_FATE)
            is_same = before == (self.ledger.connection.total_changes, set(self.files.data))
            require("a_dry_sweep_changes_nothing", [] if is_same else ["the ledger or the store has changed"])
            return
        is_reclaiming = event.how == "pressed" or (event.how == "sweep" and event.number % 2 == 1)
        chore = Chore.SWEEP if event.how == "sweep" else Chore.RELEASE
        process = housekeeper(self.airflow, chore, is_reclaiming=is_reclaiming)
        if is_reclaiming:
            self.pressed.add(process)
        self.run(process, event.fate)

    def read(self, event: Event) -> None:
        """A notebook claims a result."""
        there = sorted(result.id for result in self.witness.sight.current.values() if result.state == "finished")
        if there:
            wanted = [there[event.number % len(there)]]
            with self.ledger.transaction(self.scene.flow.name) as session:
                claim = claimed(session, self.services, self.scene.flow.name, wanted, "notebook")
            self.notebooks.append(claim.holder)

    def leave(self, event: Event) -> None:
        """It is closed."""
        if self.notebooks:
            holder = self.notebooks.pop(event.number % len(self.notebooks))
            with self.ledger.transaction(self.scene.flow.name) as session:
                drop_leases(session, holder)


_WHAT: Final = {
    Verb.STEP: World.step,
    Verb.RESUME: World.resume,
    Verb.LOSE: World.lose,
    Verb.WAIT: World.wait,
    Verb.RUN: World.start_run,
    Verb.DEPLOY: World.deploy,
    Verb.RECREATE: World.recreate,
    Verb.CLEAR: World.clear,
    Verb.CLEAR_DOWN: World.clear_down,
    Verb.CLEAR_RUN: World.clear_run,
    Verb.SUCCEED: World.mark,
    Verb.FAIL: World.mark,
    Verb.SKIP: World.mark,
    Verb.UPKEEP: World.upkeep,
    Verb.AIRFLOW: World.change_airflow,
    Verb.DELIVER: World.deliver,
    Verb.STORE: World.change_store,
    Verb.DAMAGE: damage,
    Verb.RESTORE: bring_back,
    Verb.CHANGE: World.change,
    Verb.SPOIL: World.spoil,
    Verb.COLLECT: World.collect,
    Verb.READ: World.read,
    Verb.LEAVE: World.leave,
    Verb.SAVEPOINT: make_savepoint,
    Verb.GO_BACK: go_back,
    Verb.FORK: go_back,
}
