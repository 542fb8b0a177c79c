"""The local stack's executor: its workers are its slots, and an idle scheduler looks for work less often."""

from types import SimpleNamespace

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey

from weir_dev.stack import local_executor
from weir_dev.stack.local_executor import PAUSE_SECONDS, SETTLED_SECONDS, LocalExecutor


@pytest.fixture
def executor():
    made = LocalExecutor(parallelism=1)
    made.start()
    yield made
    made.end()


def task(name, weight=1):
    """A task instance of some run; a worker answers that it cannot run it."""
    key = TaskInstanceKey("dag", name, "run")
    of_task = SimpleNamespace(id=name, key=key, priority_weight=weight)
    return SimpleNamespace(
        key=key, ti=of_task, running_state=None, success_state="ended", failure_state="ended", display_name=name
    )


def test_the_scheduler_is_paused_only_after_a_while_without_a_task(monkeypatch, executor):
    now, pauses = [executor._busy_at], []
    monkeypatch.setattr(local_executor, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pauses.append))
    executor.sync()
    assert pauses == []
    now[0] += SETTLED_SECONDS + 1
    executor.sync()
    assert pauses == [PAUSE_SECONDS]

    executor.running.add("a task")
    executor.sync()
    executor.running.clear()
    executor.sync()
    assert pauses == [PAUSE_SECONDS]
    now[0] += SETTLED_SECONDS + 1
    executor.sync()
    assert pauses == [PAUSE_SECONDS] * 2


def test_what_comes_later_waits_for_a_worker_where_its_weight_still_counts(executor):
    """Airflow's own hands over all of it: the closing task of a complete run would stand at the end of the queue."""
    first, region, closing = task("first"), task("region"), task("weir_close", weight=1_000_000)
    executor.queued_tasks |= {one.key: one for one in (first, region)}
    executor.trigger_tasks(1)
    assert (executor.running, executor.slots_available) == ({first.key}, -1)
    executor.queued_tasks[closing.key] = closing
    ended = []
    while len(ended) < 3:
        executor.heartbeat()
        ended += executor.get_event_buffer()
        assert len(executor.running) <= 1
    assert ended == [first.key, closing.key, region.key]
    assert executor.slots_available == 1


def test_what_its_workers_have_is_no_orphan(executor):
    own, waiting, strange = task("own"), task("waiting"), task("strange")
    executor.queued_tasks |= {one.key: one for one in (own, waiting)}
    executor.trigger_tasks(1)
    assert executor.try_adopt_task_instances([own.ti, waiting.ti, strange.ti]) == [strange.ti]


@pytest.mark.parametrize(("end", "runs_on"), [("success", True), ("failed", False)])
def test_a_try_that_is_resumed_before_its_first_process_has_ended_is_still_running(executor, end, runs_on):
    """One that has missed its heartbeats is running no more, whatever its processes will report."""
    resumed = task("resumed")
    for _ in range(2):
        executor.queued_tasks[resumed.key] = resumed
        executor._process_workloads([resumed])
    executor.change_state(resumed.key, end)
    assert executor.has_task(resumed.ti) is runs_on
    executor.change_state(resumed.key, end)
    assert not executor.has_task(resumed.ti)
