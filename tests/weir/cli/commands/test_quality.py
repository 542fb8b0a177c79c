"""What a person reads of checks: over epochs, of a run, and pages."""

import json

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.checking import NOT_NULL, UNIQUE, gated, violate
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import expectations
from weir.errors import Misconfigured

RUNS = [f"gated@2013010{day}T000000Z" for day in range(1, 4)]


@pytest.fixture(scope="module")
def three_days():
    """Rows that are right on the first day, that warn on the second, and that are refused on the third."""
    with fast_folder() as folder:
        world = World(folder / "world", gated(expectations("clean_rows")))
        violate(world, set(), {UNIQUE}, {NOT_NULL, UNIQUE})
        yield Saved(world, folder / "saved")


@pytest.fixture(autouse=True)
def days(three_days, tmp_path, monkeypatch):
    three_days.go_on(tmp_path)
    use(monkeypatch, tmp_path)


def lines_of(output):
    return [line for line in output.splitlines() if "gated" in line]


def test_a_line_for_each_check_the_newest_last_and_the_verb_may_be_left_out():
    found = lines_of(typed("quality", "gated"))
    assert [next(word for word in ("passed", "warned", "failed") if word in line) for line in found] == [
        "passed",
        "warned",
        "failed",
    ]
    assert all("clean[0]" in line and "clean_rows" in line and "t0001-" in line for line in found)
    assert f"{NOT_NULL}(k): 1 of 1 rows" in found[-1]
    assert typed("quality", "history", "gated") == typed("quality") == typed("quality", "gated")


def test_the_history_of_one_expectation_says_what_was_found_in_each_epoch():
    found = lines_of(typed("quality", "gated", "--expectation", NOT_NULL, "--column", "k"))
    assert ["met" in line for line in found] == [True, True, False]
    assert "VIOLATED" in found[2]
    assert '1 of 1 rows, such as "bad"' in found[2]
    assert "warns" in lines_of(typed("quality", "--expectation", UNIQUE))[1]
    assert lines_of(typed("quality", "gated", "--column", "other")) == []


def test_it_is_narrowed_to_epochs_stages_suites_and_violations():
    def epochs(*words):
        return [each["run"] for each in json.loads(typed("quality", *words, "--json"))["checks"]]

    assert epochs("--epochs", "2") == RUNS[1:]
    assert epochs("--violations") == RUNS[1:]
    assert epochs("--violations", "--epochs", "1") == RUNS[2:]
    assert epochs("--stage", "clean", "--suite", "clean_rows") == RUNS
    assert epochs("--stage", "totals") == epochs("--suite", "weir") == []


def test_json_has_all_of_a_check_and_of_an_expectation():
    check = json.loads(typed("quality", "gated", "--json"))["checks"][-1]
    assert (check["outcome"], check["why"], check["policy"], check["stage"]) == ("failed", "fresh", "fail", "clean")
    assert check["digest"]
    lines = json.loads(typed("quality", "--expectation", NOT_NULL, "--violations", "--json"))["expectations"]
    assert [(each["epoch"], each["type"], each["unexpected"]) for each in lines] == [("20130103T000000Z", NOT_NULL, 1)]


def test_of_a_run_each_expectation_is_told():
    said = typed("quality", "show", RUNS[1])
    assert "clean_rows warned (fresh, policy fail; 1 rows" in said
    assert f'met       {NOT_NULL}(column="k")' in said
    assert f'warns     {UNIQUE}(column="k"): 1 of 1 rows' in said
    assert [each["run"] for each in json.loads(typed("quality", "show", RUNS[1], "--json"))["checks"]] == [RUNS[1]]


def test_an_unknown_dataflow_and_an_unknown_run_are_refused():
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="other")):
        typed("quality", "other")
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown")):
        typed("quality", "show", "gated@2014")
