"""A task that is killed stops its Spark work, and never hangs in doing so."""

from __future__ import annotations

import threading

import pytest

from weir.dataflow import Dataflow, sink, source


class Work:
    """An engine whose `stop` takes as long as the test wants."""

    def __init__(self):
        self.is_asked, self.may_stop, self.thread = threading.Event(), threading.Event(), None

    def stop(self):
        self.thread = threading.current_thread()
        self.is_asked.set()
        self.may_stop.wait(60)


@pytest.fixture
def task():
    from weir_airflow import dataflow_dag

    dag = dataflow_dag(Dataflow("brook", [source("spring", "m:spring"), sink("spring", "mouth")]))
    return dag.task_dict["spring-mouth"]


def test_a_kill_before_anything_runs_does_nothing(task):
    task.on_kill()


def test_a_kill_stops_the_engine_from_another_thread(task):
    work = Work()
    work.may_stop.set()
    task.on_engine(work)
    task.on_kill()
    assert work.is_asked.is_set()
    assert work.thread is not threading.main_thread()


def test_a_kill_gives_up_waiting_before_the_supervisor_does(task, monkeypatch):
    monkeypatch.setattr("weir_airflow.tasks.operators.STOP_SECONDS", 0.05)
    work = Work()
    task.on_engine(work)
    task.on_kill()
    assert work.is_asked.is_set()
    assert work.thread.is_alive()
    work.may_stop.set()
    work.thread.join(60)
