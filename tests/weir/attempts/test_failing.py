"""The driver of what follows a failure: booking, policy, clears, labels, note; no later step undoes a decision."""

from dataclasses import astuple, replace

import pytest
from sqlalchemy import select

from weir.attempts.attempt import run_attempt
from weir.attempts.failing import Users, book_failure, decide_failure
from weir.coordination.values import Action, FailureDecision
from weir.errors import Fenced, Internal, Misconfigured, Retryable
from weir.execution.labels import Enriched
from weir.ledger.database.tables import FailedBeginRow
from weir.restarts.answer import Budgets
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

    def __init__(self, decide=None, label=None):
        self.decide, self.label = decide or super().decide, label or super().label


def test_the_steps_after_a_failure_are_taken_in_this_order(driven, failed):
    def consult(decision):
        driven.steps.append("policy")
        return decision, "; Mine agrees"

    def enrich(labels):
        driven.steps.append("enrich")
        return Enriched({"owner": "routes"}, ("slow:slow: no answer",))

    decision = book_failure(driven.ports, failed, Say(consult, enrich))
    assert driven.steps == ["book", "policy", "deliver clears", "enrich", "label", "note"]
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
    decision = book_failure(driven.ports, failed, Say(lambda found: (replace(found, action=Action.FAIL), "")))
    assert decision.action is Action.FAIL
    assert "not tried again" in driven.airflow.tasks[failed.key].notes[-1]


def test_clears_and_notes_that_fail_do_not_change_the_decision(driven, failed):
    driven.airflow.reachable = False
    driven.ports.settling.deliver_clears = refuses
    decision = book_failure(driven.ports, failed, Users())
    assert decision.action is Action.RETRY
    assert "; pending clears: failed, Retryable: refused; labels or note are missing: Retryable: " in decision.reason


def refuses(*_given):
    raise Retryable("refused")


def test_a_failure_before_the_try_was_registered_has_a_note_and_no_labels_of_the_users(driven, failed):
    unknown = replace(failed, try_number=5)
    assert not book_failure(driven.ports, unknown, Say(label=lambda _labels: pytest.fail("enriched"))).attempt
    assert driven.steps == ["book", "deliver clears", "note"]
    (note,) = driven.airflow.tasks[failed.key].notes
    assert note.startswith("Weir: ValueError: bad row; tried again")
    assert note.endswith("(application)")


def test_a_failure_that_another_process_has_booked_leaves_its_note_alone(driven, failed):
    book_failure(driven.ports, failed, Users())
    driven.steps.clear()
    assert not book_failure(driven.ports, failed, Users()).attempt
    assert driven.steps == ["book", "deliver clears"]


def test_a_note_that_airflow_does_not_take_at_once_is_left_at_the_second_request(driven, failed):
    driven.airflow.slow_requests = 1
    book_failure(driven.ports, failed, Users())
    (note,) = driven.airflow.tasks[failed.key].notes
    assert note.startswith("Weir: ValueError: bad row; tried again")


def test_a_fenced_try_books_nothing_and_is_tried_again():
    decision = decide_failure(Fenced("newer"), 990, lambda: pytest.fail("booked"), lambda _note: pytest.fail("noted"))
    assert (decision.action, decision.delay_seconds, decision.reason) == (Action.RETRY, 5, "fenced: newer")


@pytest.mark.parametrize(("tries_left", "seconds"), [(999, 5), (900, 5), (899, 60), (0, 60)])
def test_a_ledger_that_does_not_answer_means_another_try_and_a_long_outage_a_longer_wait(tries_left, seconds):
    notes = []
    decision = decide_failure(BUG, tries_left, refuses, notes.append)
    assert (decision.action, decision.delay_seconds) == (Action.RETRY, seconds)
    assert decision.reason == "Weir could not book the failure: refused"
    text = "Weir could not book the failure: refused. The failure was: bad row"
    assert notes == [f"Weir: ValueError: bad row; tried again in {seconds} s. {text}"]


def test_the_tries_that_airflow_grants_outlast_all_budgets_and_then_half_a_day_without_a_ledger():
    """Past them Airflow fails the task, whatever Weir decides (decision 104)."""
    budgeted = sum(astuple(Budgets())) + DEFAULT_FAILURES
    left = range(AIRFLOW_RETRIES - budgeted)
    assert sum(decide_failure(BUG, each, refuses, [].append).delay_seconds for each in left) > 12 * 3_600


@pytest.mark.parametrize("trouble", [Misconfigured("no ledger"), Internal("a rule is broken")], ids=str)
def test_any_other_error_of_the_booking_fails_the_task_and_names_both(trouble):
    def book():
        raise trouble

    notes = []
    decision = decide_failure(BUG, 999, book, notes.append)
    assert (decision.action, decision.reason) == (Action.FAIL, f"{trouble} (while booking: bad row)")
    assert notes[0].startswith(f"Weir: ValueError: bad row; not tried again. {trouble}")


def test_a_note_that_cannot_be_left_does_not_change_the_decision_about_an_unbooked_failure():
    decision = decide_failure(BUG, 999, refuses, refuses)
    assert decision.action is Action.RETRY
    assert decision.reason.endswith("; no note was left at the task instance: refused")


def test_what_was_booked_is_the_answer():
    booked = FailureDecision(action=Action.RETRY, delay_seconds=7, reason="fixed-delay")
    assert decide_failure(BUG, 999, lambda: booked, lambda _note: pytest.fail("noted")) is booked


def is_told_without_secrets(text):
    return "cannot connect to postgresql://etl:***@db/x, password=***" in text and "hunter2" not in text


def test_a_secret_of_a_failure_before_the_try_was_registered_is_in_no_ledger_note_or_log(driven, failed):
    decision = book_failure(driven.ports, replace(failed, try_number=5, error=LEAK), Users())
    assert is_told_without_secrets(decision.reason)
    assert is_told_without_secrets(driven.airflow.tasks[failed.key].notes[-1])
    with driven.airflow.services.ledger.transaction() as session:
        assert is_told_without_secrets(session.scalar(select(FailedBeginRow.error)))


@pytest.mark.parametrize("trouble", [Retryable("no ledger"), Internal("a rule is broken")], ids=str)
def test_a_secret_of_a_failure_that_could_not_be_booked_is_in_no_note_or_log(trouble):
    def book():
        raise trouble

    notes = []
    decision = decide_failure(LEAK, 999, book, notes.append)
    assert is_told_without_secrets(notes[0])
    assert "hunter2" not in decision.reason
    assert "geheim" not in decision.reason


def test_a_secret_that_the_length_of_a_note_would_cut_is_not_in_it():
    notes = []
    decide_failure(
        RuntimeError("x" * 880 + " postgresql://etl:" + "hunter2" * 20 + "@db/x"), 999, refuses, notes.append
    )
    assert "hunter2" not in notes[0]


def test_a_secret_in_the_answer_of_a_policy_is_in_no_note_or_log(driven, failed):
    decision = book_failure(driven.ports, failed, Say(lambda found: (found, "; Mine failed: password=geheim")))
    assert decision.reason.count("; Mine failed: password=***") == 1
    assert driven.airflow.tasks[failed.key].notes[-1].endswith("; Mine failed: password=*** (application)")
