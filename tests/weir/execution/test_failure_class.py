"""What a failure counts against."""

import errno

import pytest

from weir.errors import (
    Conflict,
    Corrupt,
    DiskFull,
    EngineLost,
    Fenced,
    Internal,
    Misconfigured,
    QualityFailed,
    QuotaExceeded,
    ResultUnavailable,
    Retryable,
    StoreFull,
    SuppressRestarts,
    WeirError,
)
from weir.execution.failure_class import (
    FailureCause,
    FailureClass,
    cause_of,
    classify,
    hopeless_cause,
    raised_by_worker,
)
from weir.store.errors import NotFound


class AnalysisException(Exception):
    """As Spark's."""


class PySparkException(Exception):
    """As pyspark's."""


class PythonException(PySparkException):
    """As pyspark's, for what a Python worker has raised: Weir sees its text only."""


class ParseException(AnalysisException):
    """As Spark's, which is an AnalysisException too."""


def raised_from(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (Fenced("x"), FailureClass.FENCED),
        (ResultUnavailable(()), FailureClass.BACKTRACK),
        (Corrupt(()), FailureClass.BACKTRACK),
        (Conflict("x"), FailureClass.CONFLICT),
        (Retryable("x"), FailureClass.ENVIRONMENT),
        (DiskFull("x"), FailureClass.ENVIRONMENT),
        (EngineLost("x"), FailureClass.ENGINE),
        (SuppressRestarts("x"), FailureClass.FATAL),
        (OSError(errno.EIO, "x"), FailureClass.APPLICATION),
        (Misconfigured("x"), FailureClass.FATAL),
        (Internal("x"), FailureClass.APPLICATION),
        (NotFound("x"), FailureClass.APPLICATION),
        (WeirError("x"), FailureClass.APPLICATION),
        (ValueError("bad row"), FailureClass.APPLICATION),
        (KeyboardInterrupt(), FailureClass.APPLICATION),
        (SyntaxError("x"), FailureClass.FATAL),
        (ModuleNotFoundError("x"), FailureClass.FATAL),
        (AnalysisException("no such column"), FailureClass.FATAL),
        (ParseException("x"), FailureClass.FATAL),
    ],
)
def test_each_error_has_a_budget(error, failure):
    assert classify(error) is failure


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (QualityFailed("x", is_final=True), FailureCause.REFUSED),
        (QualityFailed("x", is_final=False), FailureCause.REFUSED),
        (StoreFull("x"), FailureCause.STORE_FULL),
        (DiskFull("x"), None),
        (QuotaExceeded("x"), None),
        (ValueError("QualityFailed: StoreFull"), None),
    ],
)
def test_a_refusal_and_a_full_store_are_causes_of_their_own(error, cause):
    assert cause_of(error) is cause


def raised_by(text):
    try:
        exec(text, {"errno": errno})  # noqa: S102
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError(f"{text} raised nothing")


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("spark.rang(3)", FailureClass.FATAL),
        ("errno.EBADX", FailureClass.FATAL),
        ("def late():\n  for row in []:\n    last = row\n  return last\nlate()", FailureClass.APPLICATION),
        ("row = None\nrow.upper()", FailureClass.APPLICATION),
        ("'x' + 1", FailureClass.APPLICATION),
    ],
)
def test_a_name_that_does_not_exist_is_hopeless_and_what_depends_on_rows_is_not(text, failure):
    error = raised_by(text)
    assert classify(error) is failure
    assert hopeless_cause(error) == (type(error).__name__ if failure is FailureClass.FATAL else None)


def test_what_no_retry_can_help_is_found_along_the_causes():
    wrapped = raised_from(RuntimeError("stage failed"), raised_from(OSError("x"), AnalysisException("no column")))
    assert classify(wrapped) is FailureClass.FATAL


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_the_environments_fault_whoever_writes_to_it(number):
    assert classify(OSError(number, "x")) is FailureClass.ENVIRONMENT
    assert classify(raised_from(ValueError("x"), OSError(number, "x"))) is FailureClass.ENVIRONMENT


def test_weirs_own_word_counts_more_than_its_cause():
    assert classify(raised_from(Retryable("server gone"), AnalysisException("x"))) is FailureClass.ENVIRONMENT


def test_a_cause_that_is_its_own_cause_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert classify(one) is FailureClass.APPLICATION


def test_what_was_handled_on_the_way_does_not_count():
    error = ValueError("x")
    error.__context__ = AnalysisException("caught, and something else went wrong later")
    assert classify(error) is FailureClass.APPLICATION


TRACEBACK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/pipelines/delays.py", line 36, in plain
    return late(x)
           ~~~~^^^
{raised}
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("raised", "name", "failure"),
    [
        ("ZeroDivisionError: integer division or modulo by zero", "ZeroDivisionError", FailureClass.APPLICATION),
        ("KeyboardInterrupt", "KeyboardInterrupt", FailureClass.APPLICATION),
        ("ModuleNotFoundError: No module named 'scipy'", "ModuleNotFoundError", FailureClass.FATAL),
        ("weir.errors.SuppressRestarts: the month\nis closed", "SuppressRestarts", FailureClass.FATAL),
        ("delays.check.<locals>.SuppressRestarts: closed", "SuppressRestarts", FailureClass.FATAL),
        ("ValueError: SuppressRestarts: ModuleNotFoundError: x", "ValueError", FailureClass.APPLICATION),
    ],
)
def test_what_a_python_worker_has_raised_is_known_by_its_text(raised, name, failure):
    error = PythonException(TRACEBACK.format(raised=raised))
    assert (raised_by_worker(error), classify(error)) == (name, failure)
    assert hopeless_cause(error) == (name if failure is FailureClass.FATAL else None)


def chained(how):
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nImportError: no scipy'
    second = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nRuntimeError: cannot'
    return PythonException(f"{first}\n\n{how}\n\n{second}\n")


def test_a_cause_in_a_python_worker_counts_and_what_was_handled_there_does_not():
    caused = chained("The above exception was the direct cause of the following exception:")
    handled = chained("During handling of the above exception, another exception occurred:")
    assert (classify(caused), classify(handled)) == (FailureClass.FATAL, FailureClass.APPLICATION)
    assert raised_by_worker(caused) == raised_by_worker(handled) == "RuntimeError"


def test_a_traceback_in_an_error_that_is_not_sparks_is_only_text():
    error = RuntimeError(TRACEBACK.format(raised="ModuleNotFoundError: No module named 'x'"))
    assert (classify(error), raised_by_worker(error)) == (FailureClass.APPLICATION, None)


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", FailureClass.FATAL),
        ("TABLE_OR_VIEW_NOT_FOUND", FailureClass.FATAL),
        ("PATH_NOT_FOUND", FailureClass.APPLICATION),
        ("UNABLE_TO_INFER_SCHEMA", FailureClass.APPLICATION),
    ],
)
def test_an_analysis_error_about_data_that_may_come_is_not_hopeless(condition, failure):
    error = AnalysisException("x")
    error.getCondition = lambda: condition
    assert classify(error) is failure
