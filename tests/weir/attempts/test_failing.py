"""The driver of what follows a failure: booking, policy, clears, labels, note; no later step undoes a decision."""

from dataclasses import astuple, replace

import pytest
from sqlalchemy import select

from weir.attempts.attempt import run_attempt
from weir.attempts.failing import Users, decide_failure, without_ledger
from weir.attempts.failure import PolicyAnswer
from weir.errors import Fenced, Internal, Misconfigured, Retryable
from weir.execution.labels import Enriched
from weir.ledger.database.tables import AttemptRow, FailedBeginRow
from weir.restarts.answer import Action, Budgets
from weir.restarts.delays import AIRFLOW_RETRIES
from weir.restarts.strategy import DEFAULT_FAILURES, FixedDelay
from weir.testing.fakes.task_ports import failed_try

TASK = "numbers"
BUG = ValueError("bad row")
LEAK = RuntimeError("cannot connect to postgresql://etl:hunter2@db/x, password=geheim")


@pytest.fixture
def failed(driven):
    """A try that has failed, and is not booked yet."""
    driven.engine.fails = BUG
    with pytest.raises(ValueError, match="bad row"):
        run_attempt(driven.until(TASK).ports, driven.engine, "flow", driven.request(TASK))
    driven.steps.clear()
    task = driven.airflow.task(driven.run, TASK)
    return failed_try("flow", driven.airflow.request(task), BUG, FixedDelay(3, 7_000))


class Say(Users):
    """Users whose policy and enrichers are functions of a test."""

    def __init__(self, answer=None, label=None):
        self.answer, self.label = answer or super().answer, label or super().label


def booked(driven):
    """The state and the labels of the newest attempt of the task, by the ledger."""
    with driven.airflow.services.ledger.transaction() as session:
        row = session.scalars(select(AttemptRow).where(AttemptRow.region == TASK).order_by(AttemptRow.try_number))
        newest = row.all()[-1]
        return newest.state, newest.labels


def test_the_steps_after_a_failure_are_taken_in_this_order(driven, failed):
    def consult(_decision):
        assert booked(driven)[0] == "retrying"
        driven.steps.append("policy")
        return PolicyAnswer(None, "Mine agrees")

    def enrich(labels):
        assert booked(driven)[1] == labels
        driven.steps.append("enrich")
        return Enriched({"owner": "routes"}, ("slow:slow: no answer",))

    decision = decide_failure(driven.ports, failed, Say(consult, enrich))
    assert driven.steps == ["policy", "deliver clears", "enrich", "note"]
    assert booked(driven)[1]["owner"] == "routes"
    assert decision.action is Action.RETRY
    assert decision.reason.endswith(
        "ValueError: bad row; Mine agrees; labels: type=application, exception=ValueError, owner=routes; "
        "failure enricher slow:slow: no answer"
    )
    note = driven.airflow.tasks[failed.key].notes[-1]
    assert note.startswith("Weir: ValueError: bad row; tried again in 7 s.")
    assert "Mine agrees" in note
    assert note.endswith("(application, owner=routes)")


def test_the_answer_of_the_policy_is_the_decision(driven, failed):
    decision = decide_failure(driven.ports, failed, Say(lambda _decision: PolicyAnswer(Action.FAIL, "mine")))
    assert decision.action is Action.FAIL
    assert decision.reason.startswith("mine; restart strategy fixed-delay")
    assert "not tried again" in driven.airflow.tasks[failed.key].notes[-1]


def test_clears_and_notes_that_fail_do_not_change_the_decision(driven, failed):
    driven.airflow.reachable = False
    driven.ports.settling.deliver_clears = refuses
    decision = decide_failure(driven.ports, failed, Users())
    assert decision.action is Action.RETRY
    assert "; pending clears: failed, Retryable: refused; labels or note are missing: Retryable: " in decision.reason


def refuses(*_given):
    raise Retryable("refused")


def test_a_failure_before_the_try_was_registered_has_a_note_and_no_labels_of_the_users(driven, failed):
    unknown = replace(failed, try_number=5)
    assert not decide_failure(driven.ports, unknown, Say(label=lambda _labels: pytest.fail("enriched"))).attempt
    assert driven.steps == ["deliver clears", "note"]
    (note,) = driven.airflow.tasks[failed.key].notes
    assert note.startswith("Weir: ValueError: bad row; tried again")
    assert note.endswith("(application)")


def test_a_failure_that_another_process_has_booked_leaves_its_note_alone(driven, failed):
    decide_failure(driven.ports, failed, Users())
    driven.steps.clear()
    assert not decide_failure(driven.ports, failed, Users()).attempt
    assert driven.steps == ["deliver clears"]


def test_a_note_that_airflow_does_not_take_at_once_is_left_at_the_second_request(driven, failed):
    driven.airflow.slow_requests = 1
    decide_failure(driven.ports, failed, Users())
    (note,) = driven.airflow.tasks[failed.key].notes
    assert note.startswith("Weir: ValueError: bad row; tried again")


def unbooked(driven, error=BUG, trouble=None, tries_left=999):
    """The decision about a failure that could not be booked, and the notes that it left."""
    task = driven.airflow.task(driven.run, TASK)
    before = len(task.notes)
    decision = without_ledger(error, trouble or Retryable("refused"), tries_left, lambda: driven.airflow, task.key)
    return decision, task.notes[before:]


def test_a_fenced_try_books_nothing_and_is_tried_again(driven, failed):
    before = booked(driven)
    for decision in (
        decide_failure(driven.ports, replace(failed, error=Fenced("newer")), Users()),
        unbooked(driven, Fenced("newer"))[0],
    ):
        assert (decision.action, decision.delay_seconds, decision.reason) == (Action.RETRY, 5, "fenced: newer")
    assert booked(driven) == before
    assert driven.steps == []


@pytest.mark.parametrize(("tries_left", "seconds"), [(999, 5), (900, 5), (899, 60), (0, 60)])
def test_a_ledger_that_does_not_answer_means_another_try_and_a_long_outage_a_longer_wait(driven, tries_left, seconds):
    decision, notes = unbooked(driven, tries_left=tries_left)
    assert (decision.action, decision.delay_seconds) == (Action.RETRY, seconds)
    assert decision.reason == "Weir could not book the failure: refused"
    text = "Weir could not book the failure: refused. The failure was: bad row"
    assert notes == [f"Weir: ValueError: bad row; tried again in {seconds} s. {text}"]


def test_the_tries_that_airflow_grants_outlast_all_budgets_and_then_half_a_day_without_a_ledger(driven):
    """Past them Airflow fails the task, whatever Weir decides (decision 104)."""
    budgeted = sum(astuple(Budgets())) + DEFAULT_FAILURES
    left = range(AIRFLOW_RETRIES - budgeted)
    assert sum(unbooked(driven, tries_left=each)[0].delay_seconds for each in left) > 12 * 3_600


@pytest.mark.parametrize("trouble", [Misconfigured("no ledger"), Internal("a rule is broken")], ids=str)
def test_any_other_error_of_the_booking_fails_the_task_and_names_both(driven, trouble):
    decision, notes = unbooked(driven, trouble=trouble)
    assert (decision.action, decision.reason) == (Action.FAIL, f"{trouble} (while booking: bad row)")
    assert notes[0].startswith(f"Weir: ValueError: bad row; not tried again. {trouble}")


def test_a_note_that_cannot_be_left_does_not_change_the_decision_about_an_unbooked_failure(driven):
    driven.airflow.reachable = False
    decision, _ = unbooked(driven)
    assert decision.action is Action.RETRY
    assert "; no note was left at the task instance: " in decision.reason


def is_told_without_secrets(text):
    return "cannot connect to postgresql://etl:***@db/x, password=***" in text and "hunter2" not in text


def test_a_secret_of_a_failure_before_the_try_was_registered_is_in_no_ledger_note_or_log(driven, failed):
    decision = decide_failure(driven.ports, replace(failed, try_number=5, error=LEAK), Users())
    assert is_told_without_secrets(decision.reason)
    assert is_told_without_secrets(driven.airflow.tasks[failed.key].notes[-1])
    with driven.airflow.services.ledger.transaction() as session:
        assert is_told_without_secrets(session.scalar(select(FailedBeginRow.error)))


@pytest.mark.parametrize("trouble", [Retryable("no ledger"), Internal("a rule is broken")], ids=str)
def test_a_secret_of_a_failure_that_could_not_be_booked_is_in_no_note_or_log(driven, trouble):
    decision, notes = unbooked(driven, LEAK, trouble)
    assert is_told_without_secrets(notes[0])
    assert "hunter2" not in decision.reason
    assert "geheim" not in decision.reason


def test_a_secret_that_the_length_of_a_note_would_cut_is_not_in_it(driven):
    leak = RuntimeError("x" * 880 + " postgresql://etl:" + "hunter2" * 20 + "@db/x")
    assert "hunter2" not in unbooked(driven, leak)[1][0]


def test_a_secret_in_the_answer_of_a_policy_is_in_no_note_or_log(driven, failed):
    decision = decide_failure(
        driven.ports, failed, Say(lambda _found: PolicyAnswer(None, "Mine failed: password=geheim"))
    )
    assert decision.reason.count("; Mine failed: password=***") == 1
    assert driven.airflow.tasks[failed.key].notes[-1].endswith("; Mine failed: password=*** (application)")
