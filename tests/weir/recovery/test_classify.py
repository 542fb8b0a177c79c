"""What a failure counts against."""

import errno

import pytest

from weir.errors import (
    Conflict,
    Corrupt,
    DiskFull,
    Fenced,
    Internal,
    Misconfigured,
    ResultUnavailable,
    Retryable,
    WeirError,
)
from weir.recovery.classify import FailureClass, classify
from weir.store.errors import NotFound


class AnalysisException(Exception):
    """As Spark's."""


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
