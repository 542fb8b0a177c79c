"""A user's error shows the user's frames; what may be a bug of Weir's keeps all."""

import traceback

import pytest

from weir.errors import Conflict, EngineLost, Internal, Misconfigured, Retryable
from weir.execution.tracebacks import with_users_frames


def of_module(name, text):
    """Return the names that a module of this name defines."""
    found = {"__name__": name}
    exec(compile(text, f"/{name.replace('.', '/')}.py", "exec"), found)  # noqa: S102
    return found


OURS = of_module(
    "weir_spark.region.region",
    """
def call(function):
    return function()
def call_within(function, guard):
    with guard():
        return call(function)
def fail_with(error):
    raise error
def refuse(function, kind):
    try:
        return call(function)
    except Exception as error:
        raise kind("refused") from error
""",
)
GUARD = of_module(
    "weir.secrecy",
    """
from contextlib import contextmanager
@contextmanager
def guard():
    try:
        yield
    except Exception:
        raise
""",
)["guard"]
USER = of_module("trips_stages", "def clean():\n    return price({})\ndef price(row):\n    return row['price']\n")


def frames(error):
    return [each.name for each in traceback.extract_tb(error.__traceback__)]


def caught(call, *given):
    """Raise through one function, as an operator does."""

    def execute():
        try:
            return call(*given)
        except Exception as error:
            with_users_frames(error)
            raise

    with pytest.raises(Exception) as raised:  # noqa: PT011  any
        execute()
    return raised.value


def test_an_error_of_a_users_function_shows_where_it_was_raised_and_nothing_of_ours():
    error = caught(OURS["call_within"], USER["clean"], GUARD)
    assert frames(error)[-3:] == ["execute", "clean", "price"]


@pytest.mark.parametrize("kind", [Misconfigured, RuntimeError])
def test_so_does_the_error_that_another_one_was_raised_from(kind):
    error = caught(OURS["refuse"], USER["clean"], kind)
    assert frames(error.__cause__) == ["clean", "price"]
    assert ("refuse" in frames(error)) == (kind is not Misconfigured)


@pytest.mark.parametrize("error", [KeyError("a bug of ours"), Internal("a rule is broken")])
def test_what_may_be_a_bug_of_weir_keeps_all_frames(error):
    assert frames(caught(OURS["call"], lambda: OURS["fail_with"](error)))[-1] == "fail_with"
    assert "call" in frames(error)


@pytest.mark.parametrize("kind", [Retryable, EngineLost, Conflict])
def test_an_error_whose_message_says_all_shows_nothing_of_ours(kind):
    error = kind("no answer")
    assert not {"fail_with", "call"} & {*frames(caught(OURS["call"], lambda: OURS["fail_with"](error)))}


def test_contexts_that_go_round_in_circles_are_looked_at_once():
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first
    assert with_users_frames(first) is first
