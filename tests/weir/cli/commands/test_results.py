"""`weir results`: what a person reads of what was computed."""

import json
from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir import command_line
from tests.weir.command_line import use

from weir.coordination.read_leases import leased_reading
from weir.errors import Misconfigured
from weir.ledger.database.tables import ResultRow
from weir.retention.release import delete_released, release
from weir.testing.fakes.airflow import Killed

RUN = "ladder@20130101T000000Z"
NAME = "scheduled__2013-01-01"


@pytest.fixture
def world(world, monkeypatch):
    use(monkeypatch, world.folder)
    return world


@pytest.fixture
def done(world):
    world.run_first(1)
    return world


def typed(*words):
    return command_line.typed("results", *words)


def asked(*words):
    """The stages of the one run that is told, by name."""
    said = json.loads(typed(*words, "--json"))
    assert said["version"] == 1
    [run] = said["runs"]
    return {each["stage"]: each for each in run["stages"]}


def test_each_result_of_a_run_is_told_with_its_readers_and_why_it_stays(done):
    told = typed(RUN)
    assert f"{RUN} ({NAME} of dag): closed 2026-01-01" in told
    assert "clean: 2 finished; 2 rows, 160 bytes at rest" in told
    [line] = [line for line in told.splitlines() if line.startswith("    delays[0]")]
    assert "(plain) of t0001-" in line
    assert ": finished; 1 rows, 80 bytes, digest v2:k:big" in line
    assert "read by weir_close[0] (t0001-" in told
    assert "published in delays v1" in told
    assert "kept: it is version 1 of delays" in told
    assert "kept: it is kept until 2 runs of later epochs are closed" in told
    assert typed(NAME) == told


def test_why_a_result_is_not_written_as_its_readers_declare_is_told(done):
    assert "written as" not in typed(RUN)
    done.airflow.dag_run(2)
    done.airflow.run_until_quiet()
    later = "ladder@20130102T000000Z"
    why = f"it had 160 bytes in {RUN}, and up to 16.8 MB are filtered when they are read"
    assert f"    written as plain: {why}" in typed(later).splitlines()
    told = asked(later)
    assert told["clean"]["written_as"] == {"layouts": ["plain"], "reason": why}
    assert told["delays"]["written_as"] is None


def test_one_stage_is_told_alone(done):
    assert asked(RUN, "--stage", "joined").keys() == {"joined"}
    assert "joined: 2 finished" in typed(RUN, "--stage", "joined")
    assert "clean" not in typed(RUN, "--stage", "weather")
    with pytest.raises(Misconfigured, check=of_kind("ledger.stage_unknown", dataflow="ladder", stage="raw")):
        typed("ladder", "--stage", "raw")


def test_a_dataflow_is_told_by_run_and_stage(done):
    done.airflow.dag_run(2)
    done.airflow.run_until_quiet()
    told = typed("ladder")
    assert told == typed()
    lines = [line for line in told.splitlines() if "finished" in line]
    assert len(lines) == 12
    assert lines[0].replace("│", " ").split()[:2] == RUN.split("@")[::-1]
    assert "clean" in lines[0]
    assert "2 finished" in lines[0]
    assert "20130102T000000Z" in lines[6]


def test_who_read_which_attempt_is_told(done):
    first = asked(RUN)
    done.content["joined"] = "other"
    done.airflow.clear_by_hand(NAME, "joined", 0)
    done.airflow.run_until_quiet()
    second = asked(RUN)
    before = {each["attempt"] for each in first["joined"]["results"]}
    [old] = [each for each in second["joined"]["results"] if not each["is_current"]]
    [new] = [each for each in second["joined"]["results"] if each["attempt"] not in before]
    assert {each["region"] for each in old["consumers"]} == {"totals", "routes"}
    assert {each["region"] for each in new["consumers"]} == {"totals", "routes"}
    assert {each["attempt"] for each in old["consumers"]}.isdisjoint(each["attempt"] for each in new["consumers"])
    assert old["state"] == "released"
    assert old["reason"] == "it was recomputed, and the old result is not read"
    assert old["data_deleted_at"] is not None
    assert old["is_valid"] is None
    assert new["is_valid"] is True
    assert new["try_number"] == 2


def test_what_was_released_says_when_and_why_and_what_it_was(done):
    rows = {each["attempt"]: each for each in asked(RUN)["clean"]["results"]}
    release(done.services, "ladder", is_reclaiming=True)
    delete_released(done.services, "ladder")
    told = typed(RUN)
    assert "released on 2026-01-01 00:00:10 UTC: every consumer has committed a result made from it" in told
    assert "clean: 2 released; 2 rows, 0 bytes at rest" in told
    assert "every consumer has committed a result made from it" in typed("ladder")
    for each in asked(RUN)["clean"]["results"]:
        assert each["digest"] == rows[each["attempt"]]["digest"]
        assert each["rows"] == 1


def test_the_whole_story_is_told_in_order(done):
    release(done.services, "ladder", is_reclaiming=True)
    delete_released(done.services, "ladder")
    done.airflow.clear_by_hand(NAME, "joined", 0)
    done.airflow.run_until_quiet()
    told = typed(RUN, "--stage", "joined", "--story")
    part = told[told.index("joined[0]") : told.index("joined[1]")]
    places = [
        part.index(each)
        for each in (
            "writing: by try 1 of joined",
            "finished: committed",
            "released: every consumer",
            "its data files are deleted",
            "superseded: recomputed by t0003-",
            "in ladder/20130101T000000Z/joined/",
        )
    ]
    assert places == sorted(places)
    story = [each["state"] for each in asked(RUN)["joined"]["results"][0]["story"]]
    assert story == ["writing", "finished", "released", "superseded"]


def test_attempts_that_write_or_were_abandoned_are_told(world):
    world.airflow.dag_run()
    failing = iter([ValueError("bad row"), Killed()])

    def fail(_key):
        error = next(failing, None)
        if error is not None:
            raise error

    world.airflow.during = fail
    task = world.airflow.task(NAME, "weather")
    world.airflow.step(task)
    world.airflow.step(task)
    told = typed(RUN)
    [abandoned] = [line for line in told.splitlines() if "abandoned on" in line]
    assert "weather[0] by t0001-" in abandoned
    assert abandoned.endswith("ValueError: bad row")
    [writing] = [line for line in told.splitlines() if "writing since" in line]
    assert "weather[0] by t0002-" in writing
    assert "weather: 1 abandoned, 1 writing; 0 rows" in told
    stage = asked(RUN)["weather"]
    assert stage["results"] == []
    assert [each["state"] for each in stage["unfinished"]] == ["abandoned", "writing"]
    assert asked(RUN, "--stage", "weather") == {"weather": stage}


def test_whoever_reads_now_is_told(done):
    done.airflow.time = datetime.now(UTC)  # by which the command judges leases, too
    with done.ledger.transaction() as session:
        joined = list(session.scalars(select(ResultRow.id).where(ResultRow.stage == "joined")))
    with leased_reading(done.services, "ladder", joined, "a notebook") as lease:
        assert f"being read by {lease.holder}" in (told := typed(RUN, "--stage", "joined"))
        assert f"kept: {lease.holder} reads it, under lease until" in told
        assert asked(RUN)["joined"]["results"][0]["read_now_by"] == [lease.holder]
    assert "being read by" not in typed(RUN)


def test_a_stale_result_is_told_to_be_stale(done):
    done.content["joined"] = "other"
    done.airflow.clear_by_hand(NAME, "joined", 0)
    done.airflow.step(done.airflow.task(NAME, "joined", 0))
    assert "totals: 2 finished, stale" in typed(RUN)
    assert {each["is_valid"] for each in asked(RUN)["totals"]["results"]} == {False}
    assert "joined: " in typed(RUN)
    assert "recomputed" in typed(RUN)


def test_a_run_that_is_to_be_pinned_anew_is_told_too(done):
    command_line.typed("run", "adopt", RUN)
    assert "joined: 2 finished, recomputed" in typed(RUN)


def test_a_name_that_is_not_known_is_refused(done):
    with pytest.raises(
        Misconfigured, check=of_kind("ledger.run_unknown", name="flights", where="the ledger knows no run or dataflow")
    ):
        typed("flights")


def test_where_nothing_was_run_nothing_is_told(world):
    assert typed() == "No result is there: no region has committed yet. `weir runs` lists the runs\n"
