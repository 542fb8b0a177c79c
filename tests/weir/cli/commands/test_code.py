"""`weir code`: which code has computed what, what differs, and what a person has declared equal."""

import json

import pytest
from sqlalchemy import select
from tests.weir.command_line import typed, use

from weir.coordination.read_leases import user_name
from weir.errors import Misconfigured
from weir.ledger.database.tables import ArchiveRow, ResultRow, SameCodeRow
from weir.testing.fakes.code import archive_of_edits


def deploy(world, **edits):
    world.airflow.deployed = archive_of_edits(world.airflow.flow, edits)
    return world.airflow.deployed.fingerprint


@pytest.fixture
def edited(world, monkeypatch):
    """A day in which a person has cleared one of two subtasks after an edit; the other one was not computed since."""
    use(monkeypatch, world.folder)
    world.old = deploy(world)
    world.run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
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
    world.airflow.dag_run()
    world.airflow.run_until_quiet()
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
    ("old", "said"), [("code:", "the beginning of 2 names"), ("nothing", "no code or archive is named nothing")]
)
def test_a_name_of_no_code_or_of_several_is_refused(edited, old, said):
    with pytest.raises(Misconfigured, match=said):
        typed("code", "diff", old, edited.new)


def test_an_archive_that_is_deleted_cannot_be_compared(edited):
    with edited.ledger.transaction("ladder") as session:
        session.get_one(ArchiveRow, ("ladder", edited.old)).deleting_at = edited.airflow.now()
    with pytest.raises(Misconfigured, match=r"cannot be read: no run needs it"):
        typed("code", "diff", edited.old, edited.new)


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
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    deploy(world, totals=1)
    world.content["schema of totals"] = "other"
    world.airflow.clear_by_hand(run, "totals", 1)
    world.airflow.step(world.airflow.task(run, "totals", 1))
    with pytest.raises(Misconfigured, match="have made results of stage totals with other columns"):
        typed("code", "same", "totals", *versions(world))
    with world.ledger.transaction() as session:
        assert session.scalars(select(SameCodeRow)).all() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("total", "code:", "code:"), "no run of any dataflow writes a stage total: did you mean totals"),
        (("totals", "nothing", "code:"), "no code of stage totals of ladder is named nothing"),
        (("totals", "code:", "code:"), "code: is the beginning of 2 names"),
        (("totals", "unrecorded", "unrecorded"), "are one version"),
        (("totals", "a", "b", "--dataflow", "ladders"), "knows no dataflow ladders: did you mean ladder"),
    ],
)
def test_what_cannot_be_declared_equal_is_refused_with_advice(edited, words, said):
    with pytest.raises(Misconfigured, match=said):
        typed("code", "same", *words)
