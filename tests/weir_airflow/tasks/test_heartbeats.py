"""A task's heartbeats are taken beside its computation, and stop the engine of whatever transport without waiting."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest


class Work:
    """An engine that ends when it is stopped, and answers a stop when the test wants."""

    def __init__(self):
        self.is_stopped, self.may_answer = threading.Event(), threading.Event()

    def run(self, job, session_id, log):
        assert self.is_stopped.wait(60)

    def stop(self):
        self.is_stopped.set()
        self.may_answer.wait(60)


@pytest.fixture
def engine():
    from weir_airflow.tasks.ports import SparkEngine

    return SparkEngine(SimpleNamespace(), None, lambda _engine: None)


def test_a_stop_ends_the_work_and_does_not_wait_for_the_answer(engine):
    engine._engine = work = Work()
    running = threading.Thread(target=engine.run, args=(None, "session", print))
    running.start()
    engine.stop()
    running.join(60)
    assert not running.is_alive()
    assert not work.may_answer.is_set()
    work.may_answer.set()


def test_an_engine_that_was_never_connected_has_nothing_to_stop(engine):
    engine.stop()
    assert engine._engine is None


def test_heartbeats_are_taken_in_a_thread_of_the_tasks_process(monkeypatch):
    from weir_airflow.tasks import ports

    monkeypatch.setattr(ports, "HEARTBEAT_SECONDS", 0.001)
    threads, beaten = set(), threading.Event()

    def beat():
        threads.add(threading.current_thread().name)
        beaten.set()

    with ports.AirflowTask(SimpleNamespace(), print, SimpleNamespace()).heartbeats(beat):
        assert beaten.wait(60)
    assert threads == {"weir-heartbeat"}
