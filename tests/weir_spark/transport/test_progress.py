"""Progress in a task's log: seldom, only what has changed, and below the line that says what is computed."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from weir_spark.transport.driver import polled
from weir_spark.transport.progress import INTERVAL_SECONDS, ProgressLog


def stage(tasks: int, completed: int, read: int = 0) -> SimpleNamespace:
    """One of Spark's stages, as Connect reports it."""
    return SimpleNamespace(num_tasks=tasks, num_completed_tasks=completed, num_bytes_read=read)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def log(lines: list[str], clock: Clock) -> ProgressLog:
    return ProgressLog(lines.append, clock)


def test_many_updates_become_few_lines_that_say_the_stage_and_the_share_of_the_tasks(log, lines, clock) -> None:
    log.log("writing joined (plain)")
    for second in range(1, 100):
        clock.now = float(second)
        log([stage(100, second, second * 10**6), stage(100, 0)], 2, "operation", done=False)
    assert len(lines) == 1 + 99 // INTERVAL_SECONDS
    assert lines[1] == "writing joined (plain): 15 % of Spark's tasks are done (30 of 200), 2 running, 30.0 MB read"


def test_of_a_stage_that_takes_some_seconds_only_its_begin_and_end_are_logged(log, lines, clock) -> None:
    for number in range(50):
        log.log(f"writing s{number} (plain)")
        clock.now += 5
        log([stage(10, 5)], 2, "operation", done=False)
        log.log(f"wrote s{number} (plain): 10 rows")
    assert len(lines) == 100


def test_unchanged_progress_is_not_logged_again_and_neither_is_the_end(log, lines, clock) -> None:
    for second in range(0, 600, 3):
        clock.now = float(second)
        log([stage(10, 5)], 2, "operation", done=False)
        log(None, 0, "operation", done=False)
        log([stage(10, 10)], 0, "operation", done=True)
    assert len(lines) == 1


def test_a_line_that_says_what_has_ended_does_not_begin_the_next(log, lines, clock) -> None:
    log.log("wrote joined (plain): 10 rows")
    clock.now = INTERVAL_SECONDS
    log([stage(2, 1)], 1, "operation", done=False)
    assert lines[1].startswith("50 % ")


def test_the_driver_of_a_submitted_region_asks_its_own_tracker(log, lines, clock) -> None:
    told = threading.Event()

    def info(number: int) -> SimpleNamespace | None:
        return None if number else SimpleNamespace(numTasks=4, numCompletedTasks=1, numActiveTasks=2)

    def active() -> list[int]:
        if lines:
            told.set()
        return [0, 1]

    clock.now = INTERVAL_SECONDS
    with polled(SimpleNamespace(getActiveStageIds=active, getStageInfo=info), log, every_seconds=0.001):
        assert told.wait(10)
    assert lines == ["25 % of Spark's tasks are done (1 of 4), 2 running"]


def test_a_session_that_has_ended_ends_the_polling_alone(log, lines) -> None:
    asked = threading.Event()

    def active() -> list[int]:
        asked.set()
        raise ConnectionError("the JVM is gone")

    with polled(SimpleNamespace(getActiveStageIds=active), log, every_seconds=0.001):
        assert asked.wait(10)
    assert lines == []
