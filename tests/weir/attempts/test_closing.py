"""The driver of the close of a run: what is published is announced, then results are released."""

import pytest

from weir.attempts.closing import run_close
from weir.coordination.values import Awaiting
from weir.errors import ResultUnavailable, Retryable
from weir.testing.fakes.task_ports import Rescheduled

CLOSE = "weir_close"


def close(driven, announce):
    return run_close(driven.ports, "flow", driven.request(CLOSE), announce)


def test_the_steps_of_a_close_are_taken_in_this_order(driven):
    driven.until(CLOSE)
    announced = []
    summary = close(driven, lambda asked, given: (driven.steps.append("announce"), announced.append(given)))
    assert driven.steps == ["deliver clears", "request", "close", "announce", "release", "notify"]
    assert announced == [{"delays": summary["delays"]}]
    assert summary["delays"]["version"] == 1
    (line,) = [each for each in driven.ports.lines if each.startswith("Sink delays: version 1, 1 rows")]


def test_what_is_published_already_is_not_announced(driven):
    driven.airflow.run_until_quiet()
    driven.airflow.clear_by_hand(driven.run, CLOSE)
    driven.next_try(CLOSE)
    announced = []
    close(driven, lambda asked, given: announced.append(given))
    assert announced == [{}]
    assert any(each.startswith("Sink delays: version 1, 1 rows, published: nothing") for each in driven.ports.lines)


def test_nothing_is_announced_of_a_run_that_waits_or_misses_results(driven):
    driven.until(CLOSE)
    for error in (None, ResultUnavailable(())):
        driven.ports.coordinator.close = lambda *_, error=error: raises(error)
        with pytest.raises(Rescheduled if error is None else ResultUnavailable):
            close(driven, lambda *_: pytest.fail("announced"))
    assert "release" not in driven.steps


def raises(error):
    if error is None:
        return Awaiting(60, "a repair is under way")
    raise error


def test_a_release_that_fails_does_not_undo_the_publication(driven):
    def refuses(*_given):
        raise Retryable("refused")

    driven.until(CLOSE)
    driven.ports.settling.release = refuses
    assert close(driven, lambda *_: None)["delays"]["version"] == 1
    assert driven.ports.lines[-1] == "flow: failed, Retryable: refused"


def test_receivers_that_cannot_be_told_do_not_undo_the_publication(driven):
    def refuses(*_given):
        raise Retryable("refused")

    driven.until(CLOSE)
    driven.ports.settling.tell = refuses
    assert close(driven, lambda *_: None)["delays"]["version"] == 1
    assert driven.ports.lines[-1] == "flow, notifications: failed, Retryable: refused"
