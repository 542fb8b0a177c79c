"""A small dataflow whose steps are written down in the order in which a driver takes them."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from tests.builders.ledgers import fast_folder, new_ledger
from tests.weir.keeping import aircraft

from weir.assembly import coordinator_of
from weir.attempts.coordinator import Coordinator
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Retryable
from weir.settling import Settling
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine
from weir.testing.fakes.stores import store_in_memory
from weir.testing.fakes.task_ports import FakeTaskEngine, FakeTaskPorts

FLOW = Dataflow(
    "flow",
    [
        source("numbers", "pipelines.numbers:numbers"),
        Stage("joined", "pipelines.numbers:joined", [blocking("numbers")]),
        sink("joined", "delays"),
    ],
)


class Steps(Coordinator):
    """A coordinator that writes its steps down."""

    def __init__(self, services, steps):
        super().__init__(services, coordinator_of(services).rooms)
        self.steps = steps

    def begin(self, *given):
        self.steps.append("begin")
        return super().begin(*given)

    def check_inputs(self, *given):
        self.steps.append("check inputs")
        return super().check_inputs(*given)

    def evaluate(self, *given):
        self.steps.append("evaluate")
        return super().evaluate(*given)

    def commit(self, *given):
        self.steps.append("commit")
        return super().commit(*given)

    def close(self, *given):
        self.steps.append("close")
        return super().close(*given)

    def plan_compaction(self, *given):
        self.steps.append("plan")
        return super().plan_compaction(*given)

    def enter_compacted(self, *given):
        self.steps.append("enter")
        return super().enter_compacted(*given)


class StepsOfSettling(Settling):
    """What settles a dataflow, and writes down what is due."""

    def __init__(self, services, airflow, steps):
        super().__init__(services, lambda: airflow)
        self.steps = steps

    def deliver_clears(self, *given):
        self.steps.append("deliver clears")
        super().deliver_clears(*given)

    def release(self, *given):
        self.steps.append("release")
        super().release(*given)

    def tell(self, *given):
        self.steps.append("notify")
        super().tell(*given)


class Engine(FakeTaskEngine):
    """An engine that writes its steps down, and may fail in the middle of a computation."""

    def __init__(self, store, engine, steps):
        super().__init__(store, lambda job: engine.run(job, self._during))
        self.steps, self.fails, self.interrupted = steps, None, []
        self.is_away = False

    def prepare(self):
        self.steps.append("prepare")

    def connect(self):
        self.steps.append("connect")

    def interrupt(self, work):
        self.steps.append("interrupt")
        self.interrupted.append(work)
        if self.is_away:
            raise Retryable("the server is away")

    def run(self, job, session_id, log):
        self.steps.append("compute")
        super().run(job, session_id, log)

    def _during(self):
        if self.fails is not None:
            raise self.fails


class Airflow(FakeAirflow):
    """An Airflow whose notes are steps, too; of `slow_requests` no answer comes in time."""

    slow_requests = 0

    def annotate(self, key, note):
        if self.slow_requests:
            self.slow_requests -= 1
            raise Retryable("no answer in time")
        self.steps.append("note")
        super().annotate(key, note)


@dataclass
class Driven:
    """What a driver is given: ports and an engine, all of whose steps are in `steps`."""

    airflow: FakeAirflow
    ports: FakeTaskPorts
    engine: Engine
    run: str
    steps: list[str] = field(default_factory=list)

    def request(self, task_id):
        """Say what the next try of a task is; its making is a step."""

        def asked():
            self.steps.append("request")
            return self.asked(task_id)

        return asked

    def asked(self, task_id):
        task = self.airflow.task(self.run, task_id)
        task.state = "running"
        return self.airflow.request(task)

    def next_try(self, task_id):
        """Count a try, as the scheduler does; answer its task instance."""
        task = self.airflow.task(self.run, task_id)
        task.try_number += 1
        return task

    def pass_time(self, seconds):
        """Let time go by."""
        self.airflow.time += timedelta(seconds=seconds)

    def until(self, task_id):
        """Run all before a task, by the fake's own tasks, and begin its first try; `steps` are empty then."""
        while self.airflow._ready().key.task_id != task_id:
            self.airflow.step(self.airflow._ready())
        self.next_try(task_id)
        self.steps.clear()
        return self


@contextmanager
def drive(flow):
    """Drive the tasks of a dataflow's first run."""
    with fast_folder() as folder:
        store, steps = store_in_memory(folder / "store"), []
        ledger = new_ledger(folder / "ledger.db")
        services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
        airflow = Airflow(services, FakeEngine(store, {}), flow)
        airflow.steps = steps
        ports = FakeTaskPorts(airflow, Steps(services, steps), StepsOfSettling(services, airflow, steps))
        yield Driven(airflow, ports, Engine(store, airflow.engine, steps), airflow.dag_run(), steps)
        ledger.close()


@pytest.fixture
def driven():
    with drive(FLOW) as found:
        yield found


@pytest.fixture
def keeping():
    """A dataflow that keeps state in at most three runs: the fourth day's compaction has something to merge."""
    with drive(aircraft(1, {"runs": 3})) as found:
        yield found
