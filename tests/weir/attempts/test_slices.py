"""Asking a source's resolver what each subtask reads."""

from datetime import UTC, datetime

import pytest

from weir.attempts.job import resolve
from weir.dataflow import source
from weir.dataflow.stage import ResolveContext
from weir.errors import Misconfigured

CONTEXT = ResolveContext(
    "flow", "20130101T000000Z", (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)), 3, {"of": "all"}
)


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    """Resolve a source by the text of a module with the function `flights_of`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask(text, name="flights_of"):
        module = f"resolving_{abs(hash(text))}"
        (tmp_path / f"{module}.py").write_text(text)
        return resolve(source("flights", "m:flights", parallelism=3, resolve=f"{module}:{name}"), CONTEXT)

    return ask


def test_a_resolver_says_what_each_subtask_reads(resolved):
    text = (
        "def flights_of(ctx):\n"
        "    return [{'day': ctx.interval[0].day, 'subtask': i, **ctx.parameters} for i in range(ctx.parallelism)]\n"
    )
    assert resolved(text) == [{"day": 1, "subtask": subtask, "of": "all"} for subtask in range(3)]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("def flights_of(ctx): return [1, 2]", "flights_of", r"of source flights must return a list of 3 values"),
        ("def flights_of(ctx): return []", "flights_at", r"cannot be imported: .*flights_at"),
        ("def flights_of(): return []", "flights_of", r"must be `def flights_of\(ctx\)`"),
        ("import nowhere_to_be_found", "flights_of", r"cannot be imported: No module named"),
    ],
)
def test_what_is_wrong_with_a_resolver_is_said(resolved, text, name, said):
    with pytest.raises(Misconfigured, match=said):
        resolved(text, name)


def test_an_error_of_the_resolvers_own_passes_through(resolved):
    with pytest.raises(ZeroDivisionError):
        resolved("def flights_of(ctx): return 1 / 0")
