from __future__ import annotations

import threading

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Fenced, Retryable
from weir.store.stop_file import request_stop
from weir_spark.transport.driver import stopped_by_file


@pytest.fixture
def job(jobs):
    return jobs.region(jobs.stage("numbers", ""))


@pytest.fixture
def watched(store, job):
    """Watch in a hurry: whether the job was told to end, and the context in which it runs."""
    told = threading.Event()
    return told, stopped_by_file(store, job, lambda _: told.set(), poll_seconds=0.01)


def test_a_job_that_runs_is_ended_by_the_file_of_its_attempt(store, job, watched) -> None:
    told, running = watched
    with running:
        request_stop(store, job.folder)
        assert told.wait(30)


def test_a_job_that_was_stopped_before_it_began_never_begins(store, job, watched) -> None:
    request_stop(store, job.folder)
    with pytest.raises(Fenced, check=of_kind("transport.stopped_by_file", attempt=job.attempt)), watched[1]:
        raise AssertionError("it began")


def test_the_file_of_another_attempt_ends_nothing(store, job, jobs, watched) -> None:
    told, running = watched
    with running:
        request_stop(store, jobs.region(jobs.stage("numbers", "")).folder)
        assert not told.wait(0.2)


def test_telling_twice_is_telling_once(store, job) -> None:
    request_stop(store, job.folder)
    request_stop(store, job.folder)


def test_a_store_that_does_not_answer_for_a_while_stops_no_job(store, job, monkeypatch) -> None:
    told, asked = threading.Event(), threading.Semaphore(0)
    size = type(store).size

    def fails(self, path):
        asked.release()
        raise Retryable("no answer")

    with stopped_by_file(store, job, lambda _: told.set(), poll_seconds=0.01):
        monkeypatch.setattr(type(store), "size", fails)
        assert asked.acquire(timeout=30)
        assert asked.acquire(timeout=30)
        assert not told.is_set()
        monkeypatch.setattr(type(store), "size", size)
        request_stop(store, job.folder)
        assert told.wait(30)
