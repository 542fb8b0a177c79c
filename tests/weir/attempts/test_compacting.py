"""The driver of compactions: an engine only where something is to be merged, and no error ever fails the task."""

import pytest

from weir.attempts.compacting import run_compaction
from weir.errors import EngineLost, Internal
from weir.formats.codec import region_job_from_json
from weir.formats.region_job import JOB_NAME
from weir.restarts.delays import MOST_KILLS
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


def compact(driven, day, kills=0):
    reach(driven, day)
    return again(driven, day, kills)


def again(driven, day, kills=0):
    request = CompactionRequest(driven.airflow.flow.name, f"201301{day:02d}T000000Z", driven.run, REGION)
    return run_compaction(driven.ports, driven.engine, request, driven.airflow.task(driven.run, TASK).key, kills)


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


@pytest.mark.parametrize("error", [EngineLost("gone"), Internal("a rule is broken"), MemoryError("too much")], ids=repr)
def test_an_error_of_a_compaction_is_logged_noted_and_left_to_the_next_epoch(keeping, error):
    keeping.engine.fails = error
    found = compact(keeping, 4)
    assert keeping.steps == ["plan", "connect", "compute", "note"]
    assert found["merged"] == []
    (note,) = keeping.airflow.task(keeping.run, TASK).notes
    assert f"not compacted: {type(error).__name__}: {error}. The next epoch's compaction does the work" in note
    assert "Traceback" in keeping.ports.lines[0]
    keeping.engine.fails = None
    assert len(compact(keeping, 5)["merged"]) == 1


def test_a_compaction_whose_process_is_killed_time_and_again_is_left_to_the_next_epoch(keeping):
    found = compact(keeping, 4, MOST_KILLS + 1)
    assert "its process was killed 3 times" in found["note"]
    assert keeping.steps == ["note"]


def test_a_compaction_that_succeeds_after_a_kill_withdraws_the_note_of_an_earlier_try(keeping):
    reach(keeping, 4)
    keeping.airflow.task(keeping.run, TASK).notes.append("Weir: not compacted: EngineLost: gone")
    again(keeping, 4, MOST_KILLS)
    assert keeping.airflow.task(keeping.run, TASK).notes[-1] == ""


def test_an_airflow_that_does_not_answer_fails_no_compaction(keeping):
    keeping.engine.fails, keeping.airflow.reachable = EngineLost("gone"), False
    assert compact(keeping, 4)["merged"] == []
    assert keeping.ports.lines[-1] == "No note was left at the task instance: Airflow cannot be reached"


def test_a_secret_in_the_error_of_a_compaction_is_in_no_note_or_summary(keeping):
    keeping.engine.fails = RuntimeError("cannot connect to postgresql://etl:hunter2@db/x")
    found = compact(keeping, 4)
    (note,) = keeping.airflow.task(keeping.run, TASK).notes
    assert found["note"] == note == keeping.ports.lines[-1]
    assert "cannot connect to postgresql://etl:***@db/x" in note
