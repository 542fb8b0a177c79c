"""The plan of a change of code as a person reads it: what is not shown is counted, and nothing is said of nothing."""

from datetime import UTC, datetime

import pytest

from weir.cli.code_plan_report import MOST_LEFT, MOST_LINES, print_code_plan
from weir.code.differences import FileDifference
from weir.ledger.code import KeptCode
from weir.recovery.run_plans import LeftTask
from weir.views.code_plan import Change, CodePlan, FieldDifference, Part, StageDifference


def stage(name, change, **more):
    return StageDifference(stage=name, change=change, **more)


def told(capsys, **of):
    print_code_plan(CodePlan(dataflow="trips", file="dags/trips.py", archive="a", **of))
    return capsys.readouterr().out


STAGES = (
    stage("raw", Change.DIRECT, part=Part.FUNCTION, files=(FileDifference("jobs/raw.py", ("raw",)),)),
    stage("clean", Change.DIRECT, part=Part.MODULE, files=(FileDifference("jobs/raw.py", ("raw",)),)),
    stage("query", Change.DIRECT, part=Part.FILE, files=(FileDifference("sql/query.sql"),)),
    stage("old", Change.DIRECT, note="archive abc cannot be read"),
    stage("kept", Change.IN_TASK),
    stage("gone", Change.NEEDED),
    stage("top", Change.INDIRECT, declared=(FieldDifference("parallelism", 2, 4),)),
    stage("more", Change.DECLARED, declared=(FieldDifference("options", {"path": "a"}, {"path": "b" * 99}),)),
    stage("new", Change.ADDED),
    stage("dropped", Change.REMOVED),
)


def test_stages_are_listed_by_how_they_change_with_what_differs(capsys):
    said = told(capsys, runs=2, newest="trips@1", stages=STAGES)
    lines = said.splitlines()[1:]
    assert lines[:6] == [
        "Directly modified:",
        "  raw: its function: jobs/raw.py (raw)",
        "  clean: its module: jobs/raw.py (raw)",
        "  query: its file: sql/query.sql",
        "  old: what differs is not known: archive abc cannot be read",
        "  (Their functions are as before; what these use of their module, or it does when it is imported, is not.)",
    ]
    assert [line for line in lines if line.endswith(":")] == [
        "Directly modified:",
        "Computed in one task with what is modified:",
        "Not modified, and computed again since its result is gone and needed:",
        "Indirectly modified (computed again if an input changes):",
        "Declared otherwise:",
        "Added:",
        "Removed:",
    ]
    assert "  top: declared parallelism 2 -> 4" in lines
    assert all(len(line) < 200 for line in lines)
    assert "compared with that of trips@1." in said


def test_of_code_that_is_equal_nothing_else_is_said(capsys):
    assert told(capsys, runs=3).splitlines() == [
        "trips of dags/trips.py: all results of 3 run(s) were made by this code, or by code that is equal."
    ]
    assert told(capsys).splitlines() == [
        "trips of dags/trips.py: no run of it was found, so that nothing would run again."
    ]
    assert told(capsys, against="main").splitlines() == [
        "trips of dags/trips.py, compared with main: no stage differs."
    ]


@pytest.mark.parametrize("more", [0, 3])
def test_a_long_diff_is_cut_and_the_rest_is_counted(capsys, more):
    diff = tuple(f"+line {number}" for number in range(MOST_LINES + more))
    said = told(capsys, against="main", stages=STAGES[:1], diff=diff)
    assert said.count("+line") == MOST_LINES
    assert ("and 3 more, which --json lists" in said) == bool(more)


def test_what_cannot_run_again_or_stays_is_named(capsys):
    left = tuple(
        LeftTask(f"trips@{day}", "raw-clean", "its DagRun was deleted in Airflow") for day in range(MOST_LEFT + 1)
    )
    kept = KeptCode(
        dataflow="trips",
        task="by_zone",
        version="code:1",
        current="code:2",
        first="20130101T000000Z",
        last="20130102T000000Z",
        kept_at=datetime(2026, 1, 1, tzinfo=UTC),
        kept_by="ada",
    )
    said = told(capsys, runs=20, left=left, kept=(kept,), freed=("trips@9",))
    assert "or stay as they are." in said.splitlines()[0]
    assert "  trips@0, raw-clean: its DagRun was deleted in Airflow" in said
    assert "  and 1 more, which --json lists" in said
    assert "so that nothing is known of their code: trips@9." in said
    assert (
        "by_zone of trips: what code:1 has made of 20130101T000000Z to 20130102T000000Z stays while its code is "
        "code:2, as ada declared on 2026-01-01 00:00:00 UTC." in said
    )
