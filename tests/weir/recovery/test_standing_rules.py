"""How an epoch stands, derived from facts alone: each state of a task, and whether it was asked for in Airflow."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from weir.errors import texts
from weir.execution.run_state import CLOSE, AttemptState
from weir.recovery.rules.standing import EpochFacts, SeenDagRun, SeenTask, Stand, TaskFacts, is_undecided, standings
from weir.topology.ids import RunId, RunRef
from weir.topology.regions import RegionId

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
A, B = RegionId("a", 0), RegionId("b", 0)


def task(region, seen=None, state=None, number=1, **more):
    """A task by its state in Airflow, if that was asked, and in the ledger."""
    found = None if seen is None else SeenTask(None if seen == "none" else seen, number)
    upstream = {A: frozenset(), B: frozenset({"a"}), CLOSE: frozenset({"b"})}[region]
    return TaskFacts(
        region=region,
        state=state,
        try_number=number if state else 0,
        since=NOON if state else None,
        upstream=upstream,
        seen=found,
        **more,
    )


def facts(*tasks, day=1, **more):
    return EpochFacts(run=RunId(f"flow@{day}"), dag_id="dag", run_id=f"run-{day}", start=NOON, tasks=tasks, **more)


DONE = {"state": AttemptState.COMMITTED, "is_done": True, "has_result": True}
ALIVE = ("none", "scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting")


def of(*tasks, **more):
    [found] = standings([facts(*tasks, **more)]).values()
    return found


@pytest.mark.parametrize("seen", ["failed", "upstream_failed", "skipped", "success", "removed"])
@pytest.mark.parametrize("state", [None, AttemptState.RUNNING, AttemptState.WAITING, AttemptState.RETRYING])
def test_what_airflow_calls_ended_and_has_no_result_has_stopped_whatever_the_ledger_last_knew(seen, state):
    found = of(task(A, "success", **DONE), task(B, seen, state), task(CLOSE, "none"))
    assert (found.stand, [each.region for each in found.stopped]) == (Stand.STOPPED, [B])
    assert found.command


@pytest.mark.parametrize("seen", ALIVE)
@pytest.mark.parametrize("state", [None, *AttemptState])
def test_what_airflow_will_run_has_not_stopped(seen, state):
    found = of(task(A, "success", **DONE), task(B, seen, state), task(CLOSE, "none"))
    assert found.stand in (Stand.RUNNING, Stand.WAITING)


@pytest.mark.parametrize("seen", ["failed", "upstream_failed"])
def test_a_finished_region_that_airflow_calls_failed_keeps_its_run_from_being_closed(seen):
    assert of(task(A, seen, **DONE), task(CLOSE, "none")).stand is Stand.STOPPED


@pytest.mark.parametrize("seen", ["skipped", "success", "removed"])
def test_a_finished_region_keeps_nothing_from_going_on_in_any_other_state(seen):
    assert of(task(A, seen, **DONE), task(CLOSE, "none")).stand is Stand.RUNNING


@pytest.mark.parametrize("seen", ["failed", "success", "skipped"])
def test_what_is_to_be_cleared_waits_for_that(seen):
    found = of(task(A, seen, is_to_be_cleared=True), task(CLOSE, "none"))
    assert (found.stand, found.stopped) == (Stand.WAITING, ())


def test_the_reason_names_the_task_that_keeps_the_others():
    given_up = (task(B, "upstream_failed"), task(CLOSE, "upstream_failed"))
    found = of(task(A, "failed", AttemptState.FAILED, error="no such column"), *given_up)
    assert "a[0]" in found.reason
    assert "no such column" in found.reason
    assert "b[0]" not in found.reason
    assert found.command.startswith(
        "correct the cause, then `weir plan flow@1 --apply` (if the declaration was wrong: "
    )
    assert len(found.stopped) == 3


def test_a_newer_try_that_failed_before_it_was_registered_is_the_reason():
    failed = task(A, "failed", AttemptState.COMMITTED, number=2, begin_error="no module pipelines")
    assert "no module pipelines" in of(failed, task(CLOSE, "upstream_failed")).reason


def test_a_task_that_no_task_of_weir_keeps_was_given_up_for_another_one():
    assert "not Weir's" in of(task(A, "upstream_failed"), task(CLOSE, "upstream_failed")).command


@pytest.mark.parametrize(
    "kind", [kind for kind, text in texts().items() if "weir run adopt" in text and "keeps its declaration" in text]
)
@pytest.mark.parametrize("place", ["error", "begin_error"])
def test_an_error_of_the_declaration_needs_an_adoption(kind, place):
    failed = task(A, "failed", AttemptState.FAILED, **{place: f"Misconfigured: {texts()[kind]}"})
    found = of(failed, task(CLOSE, "upstream_failed"))
    assert found.command == "correct the DAG file, then `weir run adopt flow@1` and `weir clear flow@1 --apply`"


def test_a_task_that_the_dag_has_no_more_needs_an_adoption():
    assert "`weir run adopt flow@1`" in of(task(A, "removed"), task(CLOSE, "none")).command


def test_without_a_closing_task_there_is_no_dag_run():
    found = of(task(A, "missing"), task(CLOSE, "missing"))
    assert "was deleted" in found.reason
    assert "airflow backfill create" in found.command


@pytest.mark.parametrize(
    ("dag_run", "stand", "has_command"),
    [
        (SeenDagRun("running"), Stand.RUNNING, False),
        (SeenDagRun("queued"), Stand.WAITING, False),
        (SeenDagRun("running", is_paused=True), Stand.STOPPED, True),
        (SeenDagRun("queued", is_paused=True), Stand.STOPPED, True),
        (SeenDagRun("running", has_scheduler=False), Stand.STOPPED, True),
        (SeenDagRun("running", has_import_errors=True), Stand.STOPPED, True),
        (SeenDagRun("queued", has_import_errors=True), Stand.STOPPED, True),
        (SeenDagRun("failed"), Stand.STOPPED, True),
        (SeenDagRun("success"), Stand.STOPPED, True),
        (SeenDagRun(None), Stand.STOPPED, True),
    ],
)
def test_where_no_task_works_the_dag_run_decides(dag_run, stand, has_command):
    before = facts(task(A, "none"), task(CLOSE, "none"))
    assert is_undecided(before)
    [found] = standings([replace(before, dag_run=dag_run)]).values()
    assert (found.stand, bool(found.command)) == (stand, has_command)


@pytest.mark.parametrize(
    ("seen", "state"), [("up_for_retry", AttemptState.RETRYING), ("deferred", AttemptState.WAITING)]
)
def test_another_try_of_a_paused_dag_does_not_come_and_one_that_computes_goes_on(seen, state):
    before = facts(task(A, seen, state), task(CLOSE, "none"))
    assert is_undecided(before)
    paused = replace(before, dag_run=SeenDagRun("running", is_paused=True))
    assert standings([paused])[RunId("flow@1")].stand is Stand.STOPPED
    assert standings([replace(before, dag_run=SeenDagRun("running"))])[RunId("flow@1")].stand is Stand.RUNNING
    computing = replace(paused, tasks=(task(A, "running", AttemptState.RUNNING), task(CLOSE, "none")))
    assert standings([computing])[RunId("flow@1")].stand is Stand.RUNNING


def test_what_a_function_has_raised_in_spark_is_the_reason():
    raised = "Traceback (most recent call last):\n  File 'x'\nValueError: no price"
    error = f"PythonException: An exception was thrown from the Python worker: {'.' * 400}{raised}"
    assert "ValueError: no price" in of(task(A, "failed", AttemptState.FAILED, error=error), task(CLOSE, "none")).reason


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        (task(A, "running", AttemptState.RUNNING), ""),
        (task(A, "failed"), ""),
        (task(A), "Airflow was not asked"),
    ],
)
def test_where_a_task_works_or_has_stopped_the_dag_run_is_not_asked_for(before, asked):
    assert not is_undecided(facts(before, task(CLOSE), asked=asked))


def test_what_was_not_asked_is_not_assumed():
    assert of(task(A), task(CLOSE), asked="Airflow: away").stand is Stand.UNKNOWN
    assert of(task(A, state=AttemptState.FAILED), task(CLOSE), asked="Airflow: away").stand is Stand.STOPPED
    assert of(task(A, state=AttemptState.RUNNING), task(CLOSE), asked="Airflow: away").stand is Stand.RUNNING


def waiting(day, on, since=NOON):
    awaits = (RegionId("a", 0, RunRef(f"flow@{on}")),)
    waits = replace(task(A, "deferred", AttemptState.WAITING, awaits=awaits), since=since)
    return facts(waits, task(CLOSE, "none"), day=day)


def test_a_wait_tells_since_when_and_how_the_awaited_run_stands_to_the_end_of_the_chain():
    stopped = facts(task(A, "failed"), task(CLOSE, "upstream_failed"))
    later = NOON + timedelta(minutes=5)
    found = standings([stopped, waiting(2, 1), waiting(3, 2, later)])[RunId("flow@3")]
    assert (found.stand, found.since, found.waits_for.run) == (Stand.WAITING, later, "flow@2")
    assert (found.root.run, found.root.stand) == ("flow@1", Stand.STOPPED)
    assert found.to_json()["command"] == found.root.command
    assert f"{found}".endswith(f"Next: {found.root.command}")
    assert found.as_note().startswith("a[0] waits for a[0] of flow@2")


def test_a_wait_for_a_run_that_goes_on_has_no_command():
    runs = facts(task(A, "running", AttemptState.RUNNING), task(CLOSE, "none"))
    found = standings([runs, waiting(2, 1)])[RunId("flow@2")]
    assert (found.stand, found.root.stand, found.root.command) == (Stand.WAITING, Stand.RUNNING, "")


def test_a_wait_for_a_data_set_tells_since_when_and_keeps_nothing_that_runs_from_being_told():
    waiting = task(A, "deferred", AttemptState.WAITING, awaited="waiting for trips.zones")
    found = of(waiting, task(B, "none"), task(CLOSE, "none"))
    assert (found.stand, found.since, found.command) == (Stand.WAITING, NOON, "")
    assert found.reason == "a[0] is waiting for trips.zones"
    found = of(waiting, task(B, "running", AttemptState.RUNNING), task(CLOSE, "none"))
    assert found.stand is Stand.RUNNING


def test_a_closing_task_waits_for_the_run_before_or_for_a_target():
    closing = task(CLOSE, "deferred", AttemptState.WAITING)
    before = facts(task(A, "failed"), task(CLOSE, "upstream_failed"))
    ordered = facts(task(A, "success", **DONE), closing, day=2, close_awaits=RunId("flow@1"))
    assert standings([before, ordered])[RunId("flow@2")].waits_for.run == "flow@1"
    away = of(task(A, "success", **DONE), replace(closing, error="lake does not answer"))
    assert away.stand is Stand.WAITING
    assert "lake does not answer" in away.reason


def test_a_closing_task_that_was_marked_has_closed_nothing():
    done = task(A, "success", **DONE)
    assert of(done, task(CLOSE, "success")).stand is Stand.STOPPED
    # It had closed the run; of its results one is out of date since.
    stale = replace(done, is_done=False)
    found = of(stale, task(CLOSE, "success", AttemptState.COMMITTED, has_result=True), was_published=True)
    assert found.stand is Stand.STOPPED
    assert "a[0]" in found.reason
    assert "published, and no longer up to date" in f"{found}"


@pytest.mark.parametrize("dag_run", [SeenDagRun("failed"), SeenDagRun("success")])
@pytest.mark.parametrize("seen", ["failed", "upstream_failed"])
def test_a_closed_run_of_which_a_task_has_failed_is_red(seen, dag_run):
    failed = task(A, seen, AttemptState.FAILED, number=2, has_result=True, is_done=True, error="no such column")
    found = of(failed, task(CLOSE, "success", **DONE), is_closed=True, dag_run=dag_run)
    assert (found.stand, [each.region for each in found.stopped], found.restarted) == (Stand.RED, [A], found.stopped)
    assert found.command


def test_a_closed_run_whose_dag_run_was_marked_as_failed_is_red_and_its_closing_task_makes_it_a_success():
    done = (task(A, "success", **DONE), task(CLOSE, "success", **DONE))
    assert is_undecided(facts(*done, is_closed=True))
    found = of(*done, is_closed=True, dag_run=SeenDagRun("failed"))
    assert (found.stand, [each.region for each in found.stopped]) == (Stand.RED, [CLOSE])
    assert of(*done, is_closed=True, dag_run=SeenDagRun("success")).stand is Stand.PUBLISHED


def test_a_closed_run_of_which_a_task_has_failed_and_another_one_runs_again_is_not_red_yet():
    tasks = (task(A, "failed", AttemptState.FAILED), task(B, "queued", **DONE), task(CLOSE, "success", **DONE))
    found = of(*tasks, is_closed=True, dag_run=SeenDagRun("running"))
    assert (found.stand, [each.region for each in found.cleared]) == (Stand.AGAIN, [B])


@pytest.mark.parametrize("seen", ["failed", "success"])
def test_a_closing_task_that_a_target_has_refused_after_the_close_is_red_and_names_the_version(seen):
    tasks = (task(A, "success", **DONE), task(CLOSE, seen, **DONE))
    found = of(*tasks, is_closed=True, undelivered="version 1 of x", dag_run=SeenDagRun("failed"))
    assert (found.stand, found.reason, [each.region for each in found.stopped]) == (
        Stand.RED,
        "version 1 of x",
        [CLOSE],
    )


def test_a_reason_says_that_it_leaves_something_out_and_ends_with_a_word():
    error = "the column price is missing; " * 30
    reason = of(task(A, "failed", AttemptState.FAILED, error=error), task(CLOSE, "none")).reason
    quoted = reason.partition("for good: ")[2]
    assert len(quoted) <= 300
    assert quoted.endswith("...")
    assert error.startswith(quoted.removesuffix("..."))
    assert error[len(quoted) - 3] == " "


def test_a_closed_run_is_published_and_waits_at_most_for_a_target():
    assert of(is_closed=True).stand is Stand.PUBLISHED
    assert of(is_closed=True, undelivered="version 1 of x is not yet in its target").stand is Stand.WAITING
