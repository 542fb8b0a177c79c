import pytest

from weir.errors import (
    Conflict,
    DiskFull,
    EngineLost,
    Fenced,
    InputUnreadable,
    Internal,
    Misconfigured,
    Retryable,
    StoreFull,
    SuppressRestarts,
)
from weir.execution.failure_class import FailureClass, classify
from weir.formats.region_failure import JobFailed, error_of, failure_of


class AnalysisException(Exception):
    """As pyspark names what the same code meets again, but for some conditions."""

    def __init__(self, message, condition=None):
        super().__init__(message)
        self.condition = condition

    def getCondition(self):  # noqa: N802 - pyspark's name
        return self.condition


def test_a_failure_is_described_without_secrets():
    def connect():
        raise ValueError("cannot reach mysql://me:hush@db")

    try:
        connect()
    except ValueError as error:
        failure = failure_of(error, "t0001-a")
    assert "mysql://me:***@db" in failure.message
    assert "hush" not in f"{failure.message}{failure.traceback}"


@pytest.mark.parametrize(
    "kind", [Retryable, DiskFull, StoreFull, EngineLost, InputUnreadable, Misconfigured, Fenced, Conflict, Internal]
)
def test_an_error_of_weir_is_the_same_in_the_task_as_in_its_job(kind):
    raised = error_of(failure_of(kind("why"), "t0001-a"))
    assert (type(raised), str(raised)) == (kind, "why")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        AnalysisException("x"),
        AnalysisException("no such path", "PATH_NOT_FOUND"),
        SyntaxError("x"),
        SuppressRestarts("x"),
        Retryable("x"),
        EngineLost("x"),
        OSError("x"),
    ],
)
def test_a_failure_has_one_class_for_the_restart_strategy_in_both_processes(error):
    assert classify(error_of(failure_of(error, "t0001-a"))) is classify(error)


def fails(error, cause=None):
    raise error from cause


def raised_by_the_task(error, cause=None):
    """What the task raises where the job has raised `error`."""
    with pytest.raises(type(error)) as caught:
        fails(error, cause)
    return error_of(failure_of(caught.value, "t0001-a"))


def test_an_error_below_a_cause_that_no_retry_can_help_stays_hopeless():
    raised = raised_by_the_task(RuntimeError("could not load"), ModuleNotFoundError("no scipy"))
    assert classify(raised) is FailureClass.FATAL
    assert "no scipy" in str(raised)


@pytest.mark.parametrize("error", [SuppressRestarts("the month is closed"), AnalysisException("no column")])
def test_a_hopeless_error_keeps_its_name_too(error):
    raised = raised_by_the_task(error)
    assert isinstance(raised, Misconfigured)
    assert type(raised).__name__ == type(error).__name__


def test_an_application_s_error_keeps_its_name_and_the_end_of_its_traceback():
    raised = raised_by_the_task(LookupError("no such day"))
    assert isinstance(raised, JobFailed)
    assert type(raised).__name__ == "LookupError"
    assert "no such day" in str(raised)
    assert "raise error from cause" in str(raised)


def test_a_message_of_any_length_keeps_its_head_and_its_end():
    message = failure_of(ValueError("a" + "x" * 100_000 + "z"), "t0001-a").message
    assert len(message) < 5_000
    assert (message[0], message[-1]) == ("a", "z")
