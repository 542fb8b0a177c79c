"""The keeper of a local stack: in what order it starts the components."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from weir_dev.stack.airflow_components import API_SERVER, DAG_PROCESSOR, SCHEDULER, TRIGGERER
from weir_dev.stack.airflow_environment import SPARK
from weir_dev.stack.keeper import Keeper
from weir_dev.stack.processes import Program, stop
from weir_dev.stack.state import StackRequest


@pytest.fixture
def keeper(tmp_path):
    made = Keeper(StackRequest(folder=tmp_path, dags=(tmp_path,), plugins=tmp_path, cache=tmp_path))
    yield made
    assert stop(made._state.processes, grace_seconds=1.0) == []


def test_a_scheduler_starts_when_tasks_find_an_api_server_and_spark(keeper, tmp_path):
    asked, too_early = Counter(), []

    def program(name):
        def is_ready():
            asked[name] += 1
            too_early.append(keeper._state.process(SCHEDULER) is not None)
            return asked[name] > 2

        command, folder = ("/bin/sleep", "60"), tmp_path / name
        return Program(
            name=name,
            command=command,
            environment=dict(os.environ),
            folder=folder,
            log=folder / "log",
            grace_seconds=1.0,
            is_ready=is_ready,
        )

    keeper._launch(program(SPARK))
    keeper._start_airflow([program(name) for name in (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)])
    assert (asked[SPARK], asked[API_SERVER]) == (3, 3)
    assert not any(too_early)
    assert {one.name for one in keeper._state.processes} == {SPARK, API_SERVER, DAG_PROCESSOR, TRIGGERER, SCHEDULER}
