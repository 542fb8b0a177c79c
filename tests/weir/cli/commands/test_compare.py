"""`weir compare`, as a person types it, where no Spark is needed; and how what Spark has found is printed."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, use
from tests.weir.small_dataflow import World, ladder

from weir.cli.commands.compare import print_result
from weir.dataflow.digest_rule import DigestRule
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.formats.programs import ComparisonAnswer, ComparisonToMake, RepeatedKey, RowsCompared, RowsToCompare
from weir.ledger.database.tables import ResultRow
from weir.ledger.results import transition
from weir.reading.availability import Unreadable
from weir.reading.comparison_rules import ColumnDifference, OtherType, column_difference
from weir.reading.pairs import ComparedResult, Pair, Pairs
from weir.retention.release import delete_released, release
from weir.views.comparison import (
    Comparison,
    DifferingRow,
    Outcome,
    ResultComparison,
    RowDifference,
    comparison,
    result_comparison,
)

FIRST, SECOND = "ladder@20130101T000000Z", "ladder@20130102T000000Z"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two runs with equal results, in the environment's ledger and store; no Spark is found."""
    world = World(tmp_path, ladder())
    world.run_first(1, 2)
    use(monkeypatch, tmp_path, columns=100)
    monkeypatch.setattr("sys.executable", "/no/python")
    return world


def answered(*words):
    done = invoked("compare", *words, "--json")
    return json.loads(done.stdout)["comparison"], done.exit_code


def test_runs_with_equal_digests_are_equal_without_spark(world):
    found, code = answered(FIRST, "scheduled__2013-01-02")
    assert (code, found["a"], found["b"]) == (0, FIRST, SECOND)
    assert [each["a"] for each in found["results"]] == ["clean", "weather", "joined", "totals", "routes", "delays"]
    assert {(each["outcome"], each["by_digest"], each["problem"]) for each in found["results"]} == {
        ("equal", True, None)
    }
    delays = found["results"][-1]
    assert (delays["version_a"], delays["rows_a"], delays["rows_b"], delays["rows"]) == (1, 1, 1, None)
    told = invoked("compare", FIRST, SECOND)
    assert (told.exit_code, told.stdout.count("equal, by digest")) == (0, 6)
    assert f"A is {FIRST}, B is {SECOND}" in told.stdout


def test_published_versions_are_compared(world):
    found, code = answered("ladder.delays@2013-01-01#1", "ladder.delays@2013-01-02")
    assert (code, [each["a"] for each in found["results"]]) == (0, ["delays"])
    assert "delays v1" in invoked("compare", "ladder.delays@2013-01-01", SECOND).stdout


def test_results_whose_rows_are_gone_differ_by_their_digests(world):
    world.content["totals"] = "other"
    world.airflow.dag_run(3)
    world.airflow.run_until_quiet()
    release(world.services, "ladder", is_reclaiming=True)
    assert "totals" in {each.stage for each in delete_released(world.services, "ladder")}
    found, code = answered(FIRST, "ladder@2013-01-03", "--stage", "totals")
    [totals] = found["results"]
    assert (code, totals["outcome"], totals["rows"], totals["rows_a"]) == (1, "differ", None, 2)
    assert "it was released" in totals["problem"]
    assert answered(FIRST, "ladder@2013-01-03", "--stage", "joined")[1] == 0


def test_what_cannot_be_compared_is_told_and_has_an_exit_code_of_its_own(world):
    with world.ledger.transaction("ladder") as session:
        query = select(ResultRow).where(ResultRow.run == SECOND, ResultRow.stage == "totals", ResultRow.subtask == 1)
        transition(session, session.scalar(query), PartitionState.QUARANTINED, "in doubt", world.airflow.time)
    found, code = answered(FIRST, SECOND)
    assert {each["a"]: each["outcome"] for each in found["results"]} == {
        **dict.fromkeys(["clean", "weather", "joined", "routes", "delays"], "equal"),
        "totals": "not compared",
    }
    assert code == 2
    told = invoked("compare", FIRST, SECOND)
    assert (told.exit_code, "  the rows were not compared: " in told.stdout) == (2, True)
    with pytest.raises(Unreadable, match="quarantined"):
        invoked("compare", FIRST, SECOND, "--stage", "totals")


NO_MORE = RowsCompared(key=None, repeated=(), rows_a=1, rows_b=1, only_a=0, only_b=0, changed=0, columns={})
KEYED = RowsCompared(
    key=("zone",),
    repeated=(RepeatedKey(("day",), 3, 4), RepeatedKey(("zone",), 1, 0)),
    rows_a=8,
    rows_b=9,
    only_a=2,
    only_b=3,
    changed=1,
    columns={"fare": 1, "trips": 0},
)
ROWS = [
    {"rows_a": 1, "rows_b": 1, "a": {"zone": "n", "fare": 1.5}, "b": {"zone": "n", "fare": None}, "columns": ["fare"]},
    {"rows_a": 2, "rows_b": 0, "a": {"zone": "s", "fare": 2.5}, "b": None, "columns": []},
    {"rows_a": 0, "rows_b": 1, "a": None, "b": {"zone": None, "fare": 0.0}, "columns": []},
]
A, B = {"zone": "string", "fare": "double"}, {"Zone": "string", "fare": "double", "day": "date"}


def pair(name="zones", a=A, b=B, *, asks=True, **more):
    rows = RowsToCompare(files=(), spark_schema="", columns=tuple(a))
    asked = ComparisonToMake(a=rows, b=rows, keys=(), is_key_named=False, rule=DigestRule(), shown=3)
    of = [ComparedResult(run=run, stage=name, version=2, rows=8) for run in (FIRST, SECOND)]
    known = {"rule": DigestRule(), "columns": column_difference(a, b), "asked": asked if asks else None}
    return Pair(a=of[0], b=of[1], **(known | more))


def test_what_differs_is_printed_by_the_key(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    print_result(result_comparison(pair(rule=DigestRule({"fare": 2}, ())), (ComparisonAnswer(KEYED), ROWS)))
    assert capsys.readouterr().out == PRINTED


PRINTED = """\
zones v2:
  compared as its digest is made: fare rounded to 2 places
  columns only in B: day date
  column zone of A is spelled Zone in B
  the key (day) is not unique: 3 of its values are repeated in A, 4 in B
  the key (zone) is not unique: 1 of its values are repeated in A, 0 in B. Rows with these are never changed
  compared by the key (zone)
  6 of 11 rows differ, 54.55%
  changed: fare in 1
┏━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━┓
┃ zone ┃ in          ┃ values            ┃
┡━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━┩
│ n    │ both        │ fare: 1.5 -> null │
│ s    │ A (2 times) │ fare: 2.5         │
│ null │ B           │ fare: 0.0         │
└──────┴─────────────┴───────────────────┘
These are the first; --limit shows more.
"""


@pytest.mark.parametrize(
    ("pair", "answer", "outcome"),
    [
        (pair(b=A), ComparisonAnswer(KEYED), Outcome.DIFFER),
        (pair(b=A), ComparisonAnswer(NO_MORE), Outcome.EQUAL),
        (pair(), ComparisonAnswer(NO_MORE), Outcome.DIFFER),
        (pair(b=A), ComparisonAnswer(error="Spark could not"), Outcome.NOT_COMPARED),
        (pair(b=A, is_equal=False), ComparisonAnswer(error="Spark could not"), Outcome.DIFFER),
        (pair(b={"other": "date"}, asks=False), None, Outcome.DIFFER),
        (pair(columns=None, asks=False, problem="released"), None, Outcome.NOT_COMPARED),
        (pair(columns=None, asks=False, problem="released", is_equal=False), None, Outcome.DIFFER),
        (pair(columns=None, asks=False, is_equal=True), None, Outcome.EQUAL),
    ],
)
def test_results_are_equal_if_columns_and_rows_are(pair, answer, outcome):
    found = result_comparison(pair, None if answer is None else (answer, []))
    assert found.outcome is outcome
    assert (found.problem is not None) == bool(pair.problem or (answer is not None and answer.error))


def test_a_difference_counts_more_than_what_was_not_compared():
    unread = pair("unread", columns=None, asks=False, problem="released")
    equal = pair("equal", columns=None, asks=False, is_equal=True)
    differing = pair("differing", a=A, b=A)

    def outcome(*pairs):
        return comparison(Pairs(run_a="a", run_b="b", pairs=pairs), [(ComparisonAnswer(KEYED), ROWS)]).outcome

    assert outcome(equal) is Outcome.EQUAL
    assert outcome(equal, unread) is Outcome.NOT_COMPARED
    assert outcome(unread, differing, equal) is Outcome.DIFFER


def test_answers_belong_to_the_pairs_that_ask_for_them():
    pairs = (pair("a", asks=False, problem="gone", columns=None), pair("b", a=A, b=A), pair("c", a=A, b=A))
    answers = [(ComparisonAnswer(error="first"), []), (ComparisonAnswer(KEYED), ROWS)]
    found = comparison(Pairs(run_a="a", run_b="b", pairs=pairs), answers)
    assert [each.problem for each in found.results] == ["gone", "first", None]
    assert found.results[2].rows.share == pytest.approx(6 / 11)


def test_a_column_of_another_type_is_named(capsys):
    print_result(result_comparison(pair(b={"zone": "string", "fare": "decimal(9,2)"}), (ComparisonAnswer(KEYED), [])))
    assert "column fare is double in A and decimal(9,2) in B: its values were not compared" in capsys.readouterr().out
    assert column_difference(A, {**A, "fare": "date"}).types == (OtherType("fare", "double", "date"),)


def test_a_trial_has_a_key_only_to_compare():
    with pytest.raises(Misconfigured, check=of_kind("cli.key_in_vain")):
        invoked("try", "dag.py", "clean", "--key", "k")
    with pytest.raises(Misconfigured, check=of_kind("trials.not_comparable")):
        invoked("try", "dag.py", "clean", "--compare", "--samples", "samples")


def test_the_page_has_all_fields_of_the_document():
    page = (Path(__file__).parents[4] / "docs" / "compare.md").read_text()
    told = {name.removesuffix("[]") for name in re.findall(r"`((?:comparison|results\[\])[\w.\[\]]*)`", page)}
    of = {
        "comparison": Comparison,
        "results[]": ResultComparison,
        "results[].columns": ColumnDifference,
        "results[].rows": RowDifference,
    }
    known = {f"{name}.{each.name}" for name, kind in of.items() for each in fields(kind)}
    assert told - {"comparison", "results"} == known
    for kind in (DifferingRow, OtherType, RepeatedKey):
        assert {each.name for each in fields(kind)} <= set(re.findall(r"`(\w+)`", page))
