"""The driver of attempts: the order of its steps, and what an error of the computation becomes."""

import threading
from contextlib import contextmanager

import pytest
from sqlalchemy import select

from weir.attempts.attempt import run_attempt
from weir.attempts.failure import fail
from weir.attempts.steps import repeated
from weir.code.version import code_version
from weir.coordination.values import Awaiting
from weir.errors import Conflict, EngineLost, Fenced, InputUnreadable, Misconfigured, ResultUnavailable, Retryable
from weir.formats.codec import region_job_from_json
from weir.formats.region_job import JOB_NAME
from weir.ledger.database.tables import AttemptRow
from weir.restarts.strategy import NoRestart
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.code import archive_of_edits
from weir.testing.fakes.task_ports import FailedForGood, Rescheduled, failed_try

FIRST, LAST = "numbers", "joined-delays"


def attempt(driven, task_id):
    return run_attempt(driven.ports, driven.engine, "flow", driven.request(task_id))


def fails(driven, error, raised=None):
    """Let the consumer fail in the middle of its computation; answers what is raised."""
    driven.engine.fails = error
    with pytest.raises(type(error) if raised is None else raised) as caught:
        attempt(driven.until(LAST), LAST)
    return caught.value


def test_the_steps_of_an_attempt_are_taken_in_this_order(driven):
    summary = attempt(driven.until(LAST), LAST)
    assert driven.steps == [
        "deliver clears",
        "request",
        "prepare",
        "begin",
        "connect",
        "compute",
        "evaluate",
        "commit",
        "release",
    ]
    assert summary["rows"] == 1


def test_the_job_is_in_the_store_before_it_runs_and_the_report_is_read_from_there(driven):
    seen, store, run = [], driven.airflow.services.store, driven.engine.run

    def look(job, session_id, log):
        seen.append((region_job_from_json(store.read(f"{job.folder}/{JOB_NAME}")), job))
        run(job, session_id, log)
        seen.append(store.read(job.report))

    driven.engine.run = look
    attempt(driven.until(FIRST), FIRST)
    (written, job), report = seen
    assert written == job
    assert job.attempt.encode() in report


def fails_with_older_code(driven, error):
    """Let a first try lose its engine, deploy newer code, and let the second try fail; answers what is raised."""
    driven.airflow.deployed = archive_of_edits(driven.airflow.flow, {})
    fails(driven, EngineLost("the server went away"))
    driven.airflow.deployed = archive_of_edits(driven.airflow.flow, {"joined": 1})
    driven.next_try(LAST)
    with pytest.raises(Rescheduled):
        attempt(driven, LAST)
    driven.pass_time(10)
    driven.engine.fails = error
    with pytest.raises(type(error)) as caught:
        attempt(driven, LAST)
    return caught.value


def test_a_failure_of_older_code_names_both_versions_and_the_way_to_the_newer(driven):
    error = fails_with_older_code(driven, TypeError("joined() got an unexpected argument"))
    (note,) = error.__notes__
    (older,) = versions_of(driven)
    newer = versions_in(driven.airflow.deployed)
    assert note == (
        f"This try ran version {older[:20]} of the code; version {newer[:20]} is deployed: clear a subtask of {LAST} "
        "in Airflow to run the whole stage with it"
    )
    request = driven.airflow.request(driven.airflow.task(driven.run, LAST))
    decision = fail(driven.airflow.services, failed_try("flow", request, error, NoRestart()), lambda: driven.airflow)
    assert decision.reason.endswith(f"TypeError: joined() got an unexpected argument. {note}")


def versions_of(driven):
    with driven.airflow.services.ledger.transaction() as session:
        return set(session.scalars(select(AttemptRow.code).where(AttemptRow.region == LAST)))


def versions_in(archive):
    return code_version(archive.files, ["pipelines.numbers:joined"])


@pytest.mark.parametrize("error", [Fenced("newer"), EngineLost("away"), Conflict("changed")])
def test_of_a_failure_that_is_not_the_code_s_no_version_is_told(driven, error):
    assert not hasattr(fails_with_older_code(driven, error), "__notes__")


def test_a_failure_of_the_newest_code_tells_no_version(driven):
    driven.airflow.deployed = archive_of_edits(driven.airflow.flow, {})
    assert not hasattr(fails(driven, ValueError("bad row")), "__notes__")


def test_pending_clears_of_a_commit_are_delivered_before_results_are_released(driven):
    driven.airflow.run_until_quiet()
    change_the_source(driven)
    driven.steps.clear()
    attempt(driven, FIRST)
    assert driven.steps[-3:] == ["commit", "deliver clears", "release"]


def change_the_source(driven):
    """Let a person clear the source, which would read something else now."""
    driven.airflow.engine._world["numbers"] = "changed"
    driven.airflow.clear_by_hand(driven.run, FIRST)
    driven.next_try(FIRST)


def test_what_is_committed_stays_committed_where_all_that_follows_fails(driven):
    driven.airflow.run_until_quiet()
    change_the_source(driven)
    driven.airflow.reachable = False
    driven.ports.settling.release = refuses
    assert attempt(driven, FIRST)["rows"] == 1
    assert any(line.startswith("pending clears: failed, Retryable: ") for line in driven.ports.lines)
    assert "flow: failed, Retryable: refused" in driven.ports.lines


def refuses(*_given):
    raise Retryable("refused")


def test_an_attempt_does_not_depend_on_the_clears_that_it_delivers_first(driven):
    driven.ports.settling.deliver_clears = refuses
    attempt(driven.until(FIRST), FIRST)
    assert driven.ports.lines[0] == "pending clears: failed, Retryable: refused"
    assert driven.steps[-1] == "release"


def test_clears_are_delivered_also_where_the_request_cannot_be_made(driven):
    def misconfigured():
        raise Misconfigured("no connection")

    with pytest.raises(Misconfigured):
        run_attempt(driven.ports, driven.engine, "flow", misconfigured)
    assert driven.steps == ["deliver clears"]


def test_a_task_that_waits_begins_again_after_each_wait(driven):
    driven.next_try(LAST)
    answers = [Awaiting(1, "numbers are awaited"), Awaiting(2, "still")]
    begin, waits = driven.ports.coordinator.begin, []
    driven.ports.coordinator.begin = lambda *given: answers.pop(0) if answers else begin(*given)
    driven.ports.wait = waits.append
    driven.airflow.step(driven.airflow._ready())
    driven.steps.clear()
    attempt(driven, LAST)
    assert [each.seconds for each in waits] == [1, 2]
    assert driven.steps.count("request") == 1


def test_a_wait_may_end_the_process(driven):
    driven.next_try(FIRST)
    driven.ports.coordinator.begin = lambda *_: Awaiting(60, "a repair is under way")
    with pytest.raises(Rescheduled, match="a repair"):
        attempt(driven, FIRST)


@pytest.fixture
def killed(driven):
    """The first try was killed while it computed, and the second one is about to begin."""
    driven.engine.fails = Killed()
    with pytest.raises(Killed):
        attempt(driven.until(FIRST), FIRST)
    driven.engine.fails = None
    driven.ports.wait = lambda awaiting: driven.pass_time(awaiting.seconds)
    driven.next_try(FIRST)
    driven.steps.clear()
    return driven


def test_the_work_of_an_earlier_try_is_stopped_before_anything_is_computed(killed):
    attempt(killed, FIRST)
    assert killed.steps.index("interrupt") < killed.steps.index("connect")
    assert len({work.attempt for work in killed.engine.interrupted}) == 1


def test_a_server_that_is_gone_with_the_earlier_work_is_no_reason_to_fail(killed):
    killed.engine.is_away = True
    assert attempt(killed, FIRST)["rows"] == 1
    assert "That server does not answer: the server is away" in killed.ports.lines


def test_what_an_earlier_try_has_committed_is_adopted_and_nothing_is_computed(driven):
    driven.until(FIRST)
    attempt(driven, FIRST)
    driven.next_try(FIRST)
    driven.steps.clear()
    assert "adopted" in attempt(driven, FIRST)
    assert driven.steps == ["deliver clears", "request", "prepare", "begin"]


def test_a_task_that_was_killed_too_often_gets_a_note_and_fails_for_good(driven):
    driven.airflow.strategy = NoRestart()
    driven.engine.fails = Killed()
    with pytest.raises(Killed):
        attempt(driven.until(FIRST), FIRST)
    task = driven.next_try(FIRST)
    with pytest.raises(FailedForGood, match="ended without a result"):
        attempt(driven, FIRST)
    assert task.notes[-1].startswith("Weir: its process was killed; not tried again. ")


def test_an_attempt_has_heartbeats_from_its_computation_to_its_commit(driven):
    steps = driven.steps

    def heartbeats(_beat):
        @contextmanager
        def around():
            steps.append("first heartbeat")
            yield
            steps.append("last heartbeat")

        return around()

    driven.ports.heartbeats = heartbeats
    attempt(driven.until(FIRST), FIRST)
    assert steps[steps.index("first heartbeat") :] == [
        "first heartbeat",
        "compute",
        "evaluate",
        "commit",
        "last heartbeat",
        "release",
    ]


REFUSAL = Conflict("an input has changed")


def refuses_heartbeats(driven, refusal=REFUSAL):
    """Let the commit be refused from now on, as far as heartbeats know."""

    def heartbeat(_begun):
        raise refusal

    driven.ports.coordinator.heartbeat = heartbeat


@pytest.mark.parametrize("error", [Fenced("stopped"), ValueError("cancelled"), InputUnreadable("gone")], ids=repr)
def test_an_attempt_that_a_heartbeat_stops_raises_why_whatever_its_engine_raises(driven, error):
    refuses_heartbeats(driven)

    def stopped(*_given):
        driven.ports.beat()
        assert driven.engine.is_stopped
        raise error

    driven.until(LAST)
    driven.engine.run = stopped
    with pytest.raises(Conflict) as caught:
        attempt(driven, LAST)
    assert caught.value is REFUSAL
    assert caught.value.__cause__ is error
    assert "check inputs" not in driven.steps
    assert any(
        "is stopped, since it could not be committed: an input has changed" in line for line in driven.ports.lines
    )


def test_the_first_refusal_is_why_an_attempt_was_stopped(driven):
    def stopped(*_given):
        refuses_heartbeats(driven)
        driven.ports.beat()
        refuses_heartbeats(driven, Fenced("a newer attempt is registered"))
        driven.ports.beat()
        raise Fenced("stopped")

    driven.until(LAST)
    driven.engine.run = stopped
    with pytest.raises(Conflict) as caught:
        attempt(driven, LAST)
    assert caught.value is REFUSAL


def test_a_heartbeat_after_the_computation_leaves_the_refusal_to_the_commit(driven):
    commit = driven.ports.coordinator.commit

    def commit_after_a_heartbeat(*given):
        refuses_heartbeats(driven)
        driven.ports.beat()
        return commit(*given)

    driven.ports.coordinator.commit = commit_after_a_heartbeat
    assert attempt(driven.until(LAST), LAST)["rows"] == 1
    assert not driven.engine.is_stopped


def test_a_heartbeat_that_gets_no_answer_stops_nothing(driven):
    run = driven.engine.run

    def beats(*given):
        refuses_heartbeats(driven, Retryable("the ledger is away"))
        driven.ports.beat()
        run(*given)

    driven.until(LAST)
    driven.engine.run = beats
    assert attempt(driven, LAST)["rows"] == 1
    assert any("failed; the next one is soon: the ledger is away" in line for line in driven.ports.lines)


def test_heartbeats_are_taken_by_a_thread_until_the_block_ends():
    beaten, threads = threading.Semaphore(0), set()

    def beat():
        threads.add(threading.current_thread())
        beaten.release()

    with repeated(beat, 0.001, print):
        for _ in range(3):
            assert beaten.acquire(timeout=30)
    [thread] = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_a_heartbeat_that_raises_anything_is_logged_and_the_next_one_comes():
    beaten, lines = threading.Semaphore(0), []

    def beat():
        beaten.release()
        raise RuntimeError("a bug, password=geheim")

    with repeated(beat, 0.001, lines.append):
        for _ in range(3):
            assert beaten.acquire(timeout=30)
    assert lines[0] == "A heartbeat failed; the next one is soon: RuntimeError: a bug, password=***"
    assert len(lines) >= 3


# What an error of the computation becomes


@pytest.mark.parametrize(
    "error",
    [Fenced("newer"), Conflict("changed"), EngineLost("gone"), Retryable("away")],
    ids=lambda e: type(e).__name__,
)
def test_what_is_fenced_or_away_is_raised_as_it_is_and_no_input_is_suspected(driven, error):
    assert fails(driven, error) is error
    assert "check inputs" not in driven.steps


@pytest.mark.parametrize("error", [ValueError("bug"), Misconfigured("no scipy")], ids=str)
def test_any_other_error_is_raised_as_it_is_where_all_inputs_are_as_recorded(driven, error):
    assert fails(driven, error) is error
    assert driven.steps[-1] == "check inputs"


def test_any_other_error_is_that_of_an_input_where_one_is_lost(driven):
    def lose_and_fail(*_given):
        for path in lost_files(driven):
            driven.airflow.services.store.delete(path)
        raise error

    error = ValueError("No such file")
    driven.until(LAST)
    driven.engine.run = lose_and_fail
    with pytest.raises(ResultUnavailable) as caught:
        attempt(driven, LAST)
    assert caught.value.__cause__ is error
    assert [loss.stage for loss in caught.value.losses] == ["numbers"]


def lost_files(driven):
    below = walk(driven.airflow.services.store, "flow/20130101T000000Z/numbers")
    return [path for path in below if path.endswith("part-0.bin")]


def walk(store, folder):
    for name, size in store.entries(folder):
        if size is None:
            yield from walk(store, f"{folder}/{name}")
        else:
            yield f"{folder}/{name}"


def test_an_input_that_could_not_be_read_and_is_there_costs_a_try_of_the_environment(driven):
    raised = fails(driven, InputUnreadable("numbers[0] could not be read"))
    assert type(raised) is InputUnreadable
    assert str(raised).startswith("numbers[0] could not be read. By now it is there, as recorded")


def test_an_input_that_could_not_be_read_and_is_gone_is_lost(driven):
    def lose_and_fail(*_given):
        for path in lost_files(driven):
            driven.airflow.services.store.delete(path)
        raise InputUnreadable("numbers[0] could not be read")

    driven.until(LAST)
    driven.engine.run = lose_and_fail
    with pytest.raises(ResultUnavailable):
        attempt(driven, LAST)


def test_a_store_that_does_not_answer_about_the_inputs_is_away(driven):
    driven.ports.coordinator.check_inputs = refuses
    assert type(fails(driven, ValueError("bug"), raised=Retryable)) is Retryable


def test_a_kill_makes_no_input_suspected(driven):
    assert isinstance(fails(driven, Killed()), Killed)
    assert "check inputs" not in driven.steps
