"""The driver of what follows a failure: booking, policy, clears, labels, note; no later step undoes a decision."""

from dataclasses import replace

import pytest

from weir.attempts.attempt import run_attempt
from weir.attempts.failing import FailedTry, book_failure, decide_failure
from weir.coordination.values import Action, FailureDecision
from weir.errors import Fenced, Internal, Misconfigured, Retryable
from weir.execution.labels import Enriched
from weir.restarts.strategy import FixedDelay

TASK = "numbers"
BUG = ValueError("bad row")


@pytest.fixture
def failed(driven):
    """A try that has failed, and is not booked yet."""
    driven.engine.fails = BUG
    with pytest.raises(ValueError, match="bad row"):
        run_attempt(driven.until(TASK).ports, driven.engine, "flow", driven.request(TASK), print)
    driven.steps.clear()
    key = driven.airflow.task(driven.run, TASK).key
    return FailedTry("flow", key, 1, BUG, FixedDelay(3, 7_000))


def stays(decision):
    return decision, ""


def none(_labels):
    return Enriched({}, ())


def test_the_steps_after_a_failure_are_taken_in_this_order(driven, failed):
    def consult(decision):
        driven.steps.append("policy")
        return decision, "; Mine agrees"

    def enrich(labels):
        driven.steps.append("enrich")
        return Enriched({"owner": "routes"}, ("slow:slow: no answer",))

    decision = book_failure(driven.ports, failed, consult, enrich)
    assert driven.steps == ["book", "policy", "deliver clears", "enrich", "label", "note"]
    assert decision.action is Action.RETRY
    assert decision.reason.endswith(
        "ValueError: bad row; Mine agrees; labels: type=application, exception=ValueError, owner=routes; "
        "failure enricher slow:slow: no answer"
    )
    note = driven.airflow.tasks[failed.key].notes[-1]
    assert note.startswith("Weir: application, tried again (owner=routes). ")
    assert note.endswith("ValueError: bad row; Mine agrees")


def test_the_answer_of_the_policy_is_the_decision(driven, failed):
    decision = book_failure(driven.ports, failed, lambda found: (replace(found, action=Action.FAIL), ""), none)
    assert decision.action is Action.FAIL
    assert "not tried again" in driven.airflow.tasks[failed.key].notes[-1]


def test_clears_and_notes_that_fail_do_not_change_the_decision(driven, failed):
    driven.airflow.reachable = False
    driven.ports.coordinator.deliver = refuses
    decision = book_failure(driven.ports, failed, stays, none)
    assert decision.action is Action.RETRY
    assert (
        "; clears remain pending: refused; labels or note are missing: Retryable: Airflow cannot be" in decision.reason
    )


def refuses(*_given):
    raise Retryable("refused")


def test_a_failure_that_was_not_booked_gets_neither_labels_nor_a_note(driven, failed):
    unknown = replace(failed, try_number=5)
    assert not book_failure(driven.ports, unknown, stays, none).attempt
    assert driven.steps == ["book", "deliver clears"]


def test_a_fenced_try_books_nothing_and_is_tried_again(driven):
    decision = decide_failure(Fenced("newer"), 990, lambda: pytest.fail("booked"))
    assert (decision.action, decision.delay_seconds, decision.reason) == (Action.RETRY, 5, "fenced: newer")


@pytest.mark.parametrize(("tries_left", "seconds"), [(999, 5), (900, 5), (899, 60), (0, 60)])
def test_a_ledger_that_does_not_answer_means_another_try_and_a_long_outage_a_longer_wait(tries_left, seconds):
    decision = decide_failure(BUG, tries_left, refuses)
    assert (decision.action, decision.delay_seconds) == (Action.RETRY, seconds)
    assert decision.reason == "Weir could not book the failure: refused"


@pytest.mark.parametrize("trouble", [Misconfigured("no ledger"), Internal("a rule is broken")], ids=str)
def test_any_other_error_of_the_booking_fails_the_task_and_names_both(trouble):
    def book():
        raise trouble

    decision = decide_failure(BUG, 999, book)
    assert (decision.action, decision.reason) == (Action.FAIL, f"{trouble} (while booking: bad row)")


def test_what_was_booked_is_the_answer():
    booked = FailureDecision(action=Action.RETRY, delay_seconds=7, reason="fixed-delay")
    assert decide_failure(BUG, 999, lambda: booked) is booked
