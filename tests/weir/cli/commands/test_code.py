"""`weir code`: which code has computed what, what differs, and what a person has declared equal."""

import json

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use

from weir.coordination.read_leases import user_name
from weir.errors import Misconfigured
from weir.ledger.database.code_tables import ArchiveRow, SameCodeRow
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.testing.fakes.code import archive_of_edits


def deploy(world, **edits):
    world.airflow.deployed = archive_of_edits(world.airflow.flow, edits)
    return world.airflow.deployed.fingerprint


@pytest.fixture
def edited(world, monkeypatch):
    """A day in which a person has cleared one of two subtasks after an edit; the other one was not computed since."""
    use(monkeypatch, world.folder)
    world.old = deploy(world)
    world.run = world.run_first(1)
    world.new = deploy(world, totals=1)
    world.airflow.clear_by_hand(world.run, "totals", 1)
    world.airflow.step(world.airflow.task(world.run, "totals", 1))
    return world


def rows(world, stage):
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.stage == stage, ResultRow.is_current).order_by(ResultRow.subtask)
        return list(session.scalars(query))


def versions(world):
    """The old and the new version of the stage that was edited."""
    old, new = rows(world, "totals")
    return old.versions[0], new.versions[0]


def listed(*words):
    return json.loads(typed("code", *words, "--json"))


def test_each_version_is_listed_by_epoch_and_region_with_its_archive_and_what_it_made(edited):
    found = [each for each in listed("ladder")["versions"] if each["region"] == "totals"]
    old, new = versions(edited)
    assert [(each["version"], each["archive"], each["generation"], each["subtasks"]) for each in found] == [
        (old, edited.old, 1, 1),
        (new, edited.new, 2, 1),
    ]
    assert {each["epoch"] for each in found} == {"20130101T000000Z"}
    assert found[0]["since"] < found[1]["since"]
    assert listed() == listed("ladder")
    told = typed("code", "ladder")
    assert old[:20] in told
    assert new[:20] in told
    assert old not in told


def test_results_from_before_versions_were_recorded_are_listed_as_such(world, monkeypatch):
    use(monkeypatch, world.folder)
    world.run_first(1)
    found = {each["region"]: each for each in listed()["versions"]}
    assert found["raw-clean"]["subtasks"] == 2
    assert {(each["version"], each["archive"], each["generation"]) for each in found.values()} >= {("code", None, None)}


def test_the_sources_that_differ_are_shown_by_version_or_archive(edited):
    old, new = versions(edited)
    told = typed("code", "diff", old[:20], new[:20])
    lines = told.splitlines()
    assert lines[:2] == ["--- old/pipelines/ladder.py", "+++ new/pipelines/ladder.py"]
    assert [line for line in lines[2:] if line[0] in "+-"] == ["-    return 0", "+    return 1"]
    assert typed("code", "diff", edited.old[:12], edited.new[:12]) == told
    assert typed("code", "diff", old, edited.old) == ""


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("code:", of_kind("recovery.name_ambiguous")),
        ("nothing", of_kind("recovery.name_unknown", name="nothing", what="code or archive")),
    ],
)
def test_a_name_of_no_code_or_of_several_is_refused(edited, old, said):
    with pytest.raises(Misconfigured, check=said):
        typed("code", "diff", old, edited.new)


def test_an_archive_that_is_deleted_cannot_be_compared(edited):
    with edited.ledger.transaction("ladder") as session:
        session.get_one(ArchiveRow, ("ladder", edited.old)).deleting_at = edited.airflow.now()
    with pytest.raises(Misconfigured, check=of_kind("views.archive_unreadable")):
        typed("code", "diff", edited.old, edited.new)


def why(world, task, *words):
    return typed("why", task, "--run", world.run, *words)


def test_why_names_the_one_code_of_a_task_and_the_attempt_that_opened_its_generation(edited):
    told = why(edited, "joined")
    [joined] = {tuple(each.versions) for each in rows(edited, "joined")}
    first = min(rows(edited, "joined"), key=lambda row: row.state_at)
    line = f"  code of joined: {joined[0][:20]}, archive {edited.old[:16]}, generation 1, opened by {first.attempt}"
    assert told.splitlines().count(line) == 2  # at each subtask
    assert f"    code {joined[0][:20]} (generation 1), archive {edited.old[:16]}" in told
    [task, _] = json.loads(why(edited, "joined", "--json"))["tasks"]
    assert task["region"] == "joined[0]"
    assert task["code"] == [
        {
            "stage": "joined",
            "version": joined[0],
            "archive": edited.old,
            "generation": 1,
            "opened_by": first.attempt,
            "by_subtask": {},
        }
    ]
    assert "try 1 (first): committed" in task["events"][0]["text"]


def test_why_names_no_generation_where_none_is_recorded(edited):
    """A try of the DagRun's time before it was restored, or rebuilt from the store, has none."""
    with edited.ledger.transaction("ladder") as session:
        for row in session.scalars(select(AttemptRow)):
            row.generation = None
    assert "None" not in why(edited, "joined")


def test_why_says_where_a_stage_is_of_several_codes_and_of_which_one_it_is_afterwards(edited):
    old, new = versions(edited)
    assert f"code of totals: several, so that it is not valid: [0] {old[:20]}, [1] {new[:20]}" in why(edited, "totals")
    opener = rows(edited, "totals")[1].attempt
    edited.airflow.run_until_quiet()
    line = f"code of totals: {new[:20]}, archive {edited.new[:16]}, generation 2, opened by {opener}"
    assert why(edited, "totals").count(line) == 2


def test_why_names_a_code_that_made_all_results_where_another_one_makes_some_of_them_alike(world, monkeypatch):
    use(monkeypatch, world.folder)
    deploy(world)
    world.run = world.run_first(1)
    [(old,)] = {tuple(each.versions) for each in rows(world, "totals")}
    deploy(world, routes=1)  # another function of the module: totals computes the same
    world.airflow.clear_by_hand(world.run, "totals", 1)
    world.airflow.run_until_quiet()
    assert [len(each.versions) for each in rows(world, "totals")] == [1, 2]
    assert f"code of totals: {old[:20]}, " in why(world, "totals")
    told = typed("results", "ladder@20130101T000000Z", "--stage", "totals")
    assert f"code {' = '.join(each[:20] for each in rows(world, 'totals')[1].versions)} (generation 2)" in told


def test_results_have_their_code_in_full_as_json(edited):
    [run] = json.loads(typed("results", "ladder@20130101T000000Z", "--stage", "totals", "--json"))["runs"]
    found = [each for each in run["stages"][0]["results"] if each["is_current"]]
    old, new = versions(edited)
    assert [(each["code"], each["archive"], each["generation"], each["versions"]) for each in found] == [
        (old, edited.old, 1, [old]),
        (new, edited.new, 2, [new]),
    ]


def test_a_failover_names_the_code_of_what_it_has_cleared(edited):
    edited.airflow.run_until_quiet()
    typed("plan", "ladder@20130101T000000Z", "--lost", "totals[0]", "--apply")
    typed("plan", "ladder@20130101T000000Z", "--lost", "weather", "--code", "newest", "--apply")
    [code] = {each.versions[0] for each in rows(edited, "totals")}
    told = typed("failovers")
    assert f"  code: totals {code[:20]} (generation 2)" in told
    assert "  code: what is deployed when they run" in told
    assert ", to run the newest code: pending" in why(edited, "weather")
    recorded = json.loads(typed("failovers", "--json"))["failovers"][0]["plan"]["steps"]
    [step] = [each for each in recorded if each["kind"] == "rerun"]
    assert step["code"] == {"version": code, "archive": edited.new, "generation": 2}


def test_versions_that_are_declared_equal_count_as_one_and_who_waits_goes_on(edited):
    old, new = versions(edited)
    reader = edited.airflow.task(edited.run, "report-delays")
    edited.airflow.clear_by_hand(edited.run, "report-delays")
    edited.airflow.step(reader)
    assert reader.state == "up_for_reschedule"
    told = typed("code", "same", "totals", old[:20], new[:20])
    assert f"{old[:20]} and {new[:20]} are equal for stage totals of ladder, as {user_name()} declared on" in told
    assert "2 result(s) count as made by both now" in told
    assert [each.versions for each in rows(edited, "totals")] == [sorted((old, new))] * 2
    edited.airflow.step(reader)
    assert reader.state == "success"
    assert edited.airflow.executed(edited.run)["totals[0]"] == 1
    [equal] = listed("ladder")["equal"]
    assert (equal["stage"], equal["one"], equal["other"], equal["declared_by"]) == ("totals", old, new, user_name())
    assert "are equal for stage totals" in typed("code", "ladder")


def test_a_second_declaration_changes_nothing(edited):
    old, new = versions(edited)
    typed("code", "same", "totals", old, new, "--dataflow", "ladder")
    assert "0 result(s) count" in typed("code", "same", "totals", new, old)
    with edited.ledger.transaction() as session:
        assert len(session.scalars(select(SameCodeRow)).all()) == 1


def test_versions_whose_results_have_other_columns_are_not_equal(world, monkeypatch):
    use(monkeypatch, world.folder)
    deploy(world)
    run = world.run_first(1)
    deploy(world, totals=1)
    world.content["schema of totals"] = "other"
    world.airflow.clear_by_hand(run, "totals", 1)
    world.airflow.step(world.airflow.task(run, "totals", 1))
    with pytest.raises(Misconfigured, check=of_kind("recovery.versions_not_equal", stage="totals")):
        typed("code", "same", "totals", *versions(world))
    with world.ledger.transaction() as session:
        assert session.scalars(select(SameCodeRow)).all() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("total", "code:", "code:"), of_kind("ledger.stage_unknown")),
        (("totals", "nothing", "code:"), of_kind("recovery.name_unknown")),
        (("totals", "code:", "code:"), of_kind("recovery.name_ambiguous")),
        (("totals", "a", "b", "--dataflow", "ladders"), of_kind("ledger.dataflow_unknown", name="ladders")),
    ],
)
def test_what_cannot_be_declared_equal_is_refused_with_advice(edited, words, said):
    with pytest.raises(Misconfigured, check=said):
        typed("code", "same", *words)


def test_one_version_is_not_declared_equal_to_itself(edited):
    old, _ = versions(edited)
    with pytest.raises(Misconfigured, check=of_kind("recovery.versions_are_one")):
        typed("code", "same", "totals", old, old)


def test_a_run_that_was_open_for_its_code_alone_is_closed_by_the_declaration(edited):
    edited.airflow.run_until_quiet()
    with edited.ledger.transaction("ladder") as session:
        first, _ = session.scalars(select(ResultRow).where(ResultRow.stage == "totals", ResultRow.is_current))
        [new] = first.versions
        first.versions = ["code:of another edit"]
        session.scalars(select(RunRow)).one().closed_at = None
        attempt = session.get_one(AttemptRow, first.attempt)
        attempt.code = "code:of another edit"
    typed("code", "same", "totals", "code:of another edit", new)
    with edited.ledger.transaction() as session:
        assert session.scalars(select(RunRow)).one().closed_at is not None
