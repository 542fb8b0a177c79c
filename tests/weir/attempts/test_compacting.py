"""The driver of compactions: an engine only where something is to be merged, and errors are the task's own."""

import pytest

from weir.attempts.compacting import run_compaction
from weir.errors import EngineLost
from weir.formats.codec import region_job_from_json
from weir.formats.region_job import JOB_NAME
from weir.state.compaction import CompactionRequest

TASK, REGION = "weir_compact-aircraft-known", "aircraft-known"


def reach(driven, day):
    """Run all days up to one, but for the compaction of the last."""
    for each in range(1, day + 1):
        driven.run = driven.airflow.dag_run(each)
        if each == day:
            driven.airflow.task(driven.run, TASK).state = "running"
        driven.airflow.run_until_quiet()
    driven.steps.clear()


def compact(driven, day):
    reach(driven, day)
    request = CompactionRequest(driven.airflow.flow.name, f"201301{day:02d}T000000Z", driven.run, REGION)
    return run_compaction(driven.ports, driven.engine, request)


def test_the_steps_of_a_compaction_are_taken_in_this_order(keeping):
    (line,) = compact(keeping, 4)["merged"]
    assert keeping.steps == ["plan", "connect", "compute", "enter"]
    assert keeping.ports.lines == [line]


def test_the_job_of_a_compaction_is_in_the_store_before_it_runs(keeping):
    store, run, seen = keeping.airflow.services.store, keeping.engine.run, []

    def look(job, session_id, log):
        seen.append(region_job_from_json(store.read(f"{job.folder}/{JOB_NAME}")) == job)
        run(job, session_id, log)

    keeping.engine.run = look
    compact(keeping, 4)
    assert seen == [True]


def test_where_nothing_is_to_be_merged_no_engine_is_asked(keeping):
    assert compact(keeping, 1) == {"merged": []}
    assert keeping.steps == ["plan"]


def test_an_error_of_a_compaction_is_the_tasks_own_and_books_no_failure(keeping):
    keeping.engine.fails = EngineLost("gone")
    with pytest.raises(EngineLost):
        compact(keeping, 4)
    assert keeping.steps == ["plan", "connect", "compute"]
