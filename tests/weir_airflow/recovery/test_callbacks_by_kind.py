"""Each kind of failure: how often the callbacks of a user are called for it, and what receivers are told of it.

Attempts run under the fake Airflow; what follows a failure is Weir's own retry policy, and then the callbacks, as
Airflow calls them: with the policy's context in the task process, without one from the DAG processor after a kill.
"""

import json
from types import SimpleNamespace

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from tests.builders.ledgers import fast_folder
from tests.weir.notifications.faulty import ATTEMPTS, EVER, Faulty

from weir.coordination.values import TaskKey
from weir.execution.run_state import CLOSE
from weir.restarts.strategy import RestartChoice
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.task_ports import FailedForGood, Rescheduled
from weir.topology.regions import Topology
from weir.upkeep import RECEIVERS, settle_everywhere
from weir_airflow.dags.callbacks import quiet
from weir_airflow.dags.declaration import Declaration, TaskRecovery
from weir_airflow.recovery.retry import WeirRetryPolicy

NOWHERE = {"conn_type": "http", "host": "127.0.0.1", "port": 9, "login": "worker", "password": "x"}
"""Airflow's API does not answer: the fake Airflow clears what is pending."""

RETRY, FAILURE = "on_retry_callback", "on_failure_callback"
TOLD = ("person_needed", "failed_over", "healed")


class CallingAirflow(FakeAirflow):
    """Asks Weir's retry policy, and calls the callbacks that the tasks were given, as Airflow does."""

    def __init__(self, *args):
        super().__init__(*args)
        self.called, self.context = {RETRY: [], FAILURE: []}, {}
        self.settings = {kind: [lambda context, kind=kind: self._note(kind, context)] for kind in (RETRY, FAILURE)}
        quiet(self.settings)

    def _note(self, kind, context):
        self.called[kind].append(context["ti"].task_id)

    def _call(self, kind, context):
        for each in self.settings[kind]:
            each(context)

    def _context(self, key: TaskKey):
        task = self.tasks[key]
        of_task = {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, "map_index": key.map_index}
        request = self.request(task)
        start, end = request.interval
        declared = Declaration(
            self.flow, Topology(self.flow), TaskRecovery(RestartChoice.of(self.strategy), None, ()), ""
        )
        return {
            "ti": SimpleNamespace(**of_task, try_number=task.try_number, id=request.ti_id),
            "task": SimpleNamespace(declared=declared, weir_region=key.task_id, task_id=key.task_id),
            "dag_run": SimpleNamespace(
                run_id=key.run_id, dag_id=key.dag_id, data_interval_start=start, data_interval_end=end
            ),
        }

    def step(self, task):
        self.context = self._context(task.key)
        super().step(task)

    def _raised(self, task, ports, request, error):
        if isinstance(error, Rescheduled):  # Airflow defers or reschedules it, and calls nothing
            super()._raised(task, ports, request, error)
            return
        if isinstance(error, FailedForGood):
            task.fail(str(error))
        else:
            self.context = self._context(task.key)
            decision = WeirRetryPolicy().evaluate(error, task.try_number, task.max_tries, self.context)
            if decision.action is RetryAction.RETRY:
                self._retry(task, decision.retry_delay.total_seconds())
                return
            task.fail(decision.reason)
        self._call(FAILURE, self.context)

    def _retry(self, task, seconds):
        super()._retry(task, seconds)
        self._call(RETRY, self.context)


@pytest.fixture
def faulty(monkeypatch, airflow_home):
    with fast_folder() as folder:
        faulty = Faulty(folder, monkeypatch)
        monkeypatch.setenv("WEIR_STORE", faulty.world.store.url)
        monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
        monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps(NOWHERE))
        airflow = faulty.airflow
        faulty.take(CallingAirflow(faulty.world.services, airflow.engine, airflow.flow))
        yield faulty
        faulty.world.ledger.close()


@pytest.mark.parametrize(
    ("kind", "times", "on_retry", "on_failure", "told"),
    [
        pytest.param("raises", 2, 2, 0, (0, 0, 0), id="the user's function raises, and another try helps"),
        pytest.param("raises", EVER, ATTEMPTS, 1, (1, 0, 0), id="the user's function raises, and no try helps"),
        pytest.param("hopeless", 1, 0, 1, (1, 0, 0), id="an error that no other try repairs"),
        pytest.param("bad rows", 1, 2 * ATTEMPTS, 2, (1, 0, 0), id="both subtasks of a stage violate expectations"),
        pytest.param("killed", 2, 0, 0, (0, 0, 0), id="a process is killed"),
        pytest.param("killed", EVER, 0, 1, (1, 0, 0), id="each process is killed"),
        pytest.param("away", 3, 0, 0, (0, 0, 0), id="Spark is away"),
        pytest.param("away", EVER, 0, 1, (1, 0, 0), id="Spark stays away until its budget is used up"),
        pytest.param("changed", 2, 0, 0, (0, 0, 0), id="an input has changed"),
        pytest.param("stale", 1, 0, 0, (0, 0, 0), id="a newer try has taken over"),
        pytest.param("lost", 1, 0, 0, (0, 1, 1), id="inputs are lost"),
        pytest.param("all is lost", 1, 0, 1, (1, 0, 0), id="a plan is held back"),
        pytest.param("refused", 1, 0, 1, (1, 0, 0), id="a target refuses before anything is published"),
        pytest.param("refused once published", 1, 0, 1, (1, 0, 0), id="a target refuses what is published"),
        pytest.param("away after publication", 1, 0, 0, (0, 0, 0), id="a close waits for its target"),
    ],
)
def test_callbacks_and_events_by_kind_of_failure(faulty, kind, times, on_retry, on_failure, told):
    faulty.begin(1)
    faulty.add(kind, "weather", times)
    run_until_it_stands_still(faulty)
    settle_everywhere(faulty.world.services, RECEIVERS, context=dict).require_whole()
    called = faulty.airflow.called
    assert {name: len(called[name]) for name in called} == {RETRY: on_retry, FAILURE: on_failure}
    assert tuple(faulty.told(*TOLD).values()) == told


def run_until_it_stands_still(faulty):
    for _ in range(200):
        ready = faulty.airflow._ready()
        if ready is None or (ready.state == "up_for_reschedule" and ready.key.task_id == CLOSE.name):
            return
        faulty.airflow.time = max(faulty.airflow.time, ready.not_before or faulty.airflow.time)
        faulty.airflow.step(ready)
        faulty.airflow.deliver_clears()
    raise AssertionError(faulty.airflow.states())
