"""Sweeps of copies, of runs with a new owner or another topology, and with a ledger on PostgreSQL."""

import os
from datetime import timedelta

import pytest
from sqlalchemy import select

from weir.dataflow import Dataflow, Stage, blocking, cached, pipelined, sink, source
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.recovery.adopt import adopt
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Garbage
from weir.store.catalogue import published
from weir.store.walk import files_below
from weir.testing.fakes.airflow import Killed

TASK = "raw-clean-wide-report-delays"
EPOCH = "20130101T000000Z"
RUN = f"ladder@{EPOCH}"


def grow_old(world, days=2):
    at = world.airflow.time.timestamp()
    for path in (world.folder / "store").rglob("*"):
        os.utime(path, (at, at))
    world.airflow.time += timedelta(days=days)


def lying(world, part=""):
    return {each.path for each in files_below(world.store, ["ladder", "_sinks"]) if part in each.path}


def rows(world, model, **wanted):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(model).filter_by(**wanted)))


def with_copies(keep):
    return Dataflow(
        "ladder",
        [
            source("weather", "pipelines.ladder:weather"),
            source("raw", "pipelines.ladder:raw"),
            Stage("clean", "pipelines.ladder:clean", [pipelined("raw"), blocking("weather")]),
            Stage("wide", "pipelines.ladder:wide", [cached("clean")]),
            Stage("report", "pipelines.ladder:report", [cached("wide")]),
            sink("report", "delays"),
        ],
        keep=keep,
    )


@pytest.fixture
def struck(world):
    """Let the task with the copies be struck behind them, by one fault a try."""

    def strike(*faults, keep="2 runs"):
        left = list(faults)

        def during(key):
            if key.task_id == TASK and left:
                left.pop(0)()

        world.airflow.deploy(with_copies(keep))
        world.airflow.during = during
        world.airflow.dag_run(1)
        world.airflow.run_until_quiet()
        return world

    return strike


def kill():
    raise Killed


def test_a_copy_stays_as_long_as_its_runs_results_and_then_goes(struck):
    world = struck()
    assert lying(world, "/copy/")
    grow_old(world)
    report = sweep(world.services, is_full=True)
    assert not [each for each in report.deleted if each.kind is Garbage.COPY]
    assert any(each.reason.startswith("a copy to resume from: it is kept until") for each in report.kept)
    for day in (2, 3):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
    report = sweep(world.services, is_full=True)
    assert {each.path.split("/")[2] for each in report.deleted if each.kind is Garbage.COPY} == {"clean", "wide"}
    assert not lying(world, f"{EPOCH}/clean/copy")


def test_a_copy_goes_with_its_run_where_only_consumers_count(struck):
    world = struck(keep="on_consumed")
    report = sweep(world.services)
    assert {each.kind for each in report.deleted if "/copy/" in each.path} == {Garbage.COPY}
    assert not lying(world, "/copy/")


def test_a_copy_that_a_running_attempt_resumes_from_stays(world, struck):
    reports = []

    def gc():
        reports.append(sweep(world.services, is_full=True, older_than=timedelta(0)))

    struck(kill, gc)
    assert "a running attempt may have resumed from it" in {each.reason for each in reports[0].kept}
    assert not [each for each in reports[0].deleted if each.kind is Garbage.COPY]
    assert world.airflow.task("scheduled__2013-01-01", TASK).state == "success"


def test_of_several_copies_only_the_newest_stays(struck):
    world = struck()
    world.content["raw"] = "more rows"
    world.airflow.engine.code = "another"
    world.airflow.clear_by_hand("scheduled__2013-01-01", TASK)
    world.airflow.run_until_quiet()
    assert len({path.split("/")[5] for path in lying(world, "/clean/copy/")}) == 2
    report = sweep(world.services)
    assert {each.reason for each in report.deleted if each.kind is Garbage.COPY} == {"there is a newer copy"}
    assert len({path.split("/")[5] for path in lying(world, "/clean/copy/")}) == 1


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_on_either_database_many_runs_end_with_what_is_published(world):
    for day in (1, 2):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
    [lost] = [each for each in rows(world, ResultRow, run=RUN, stage="joined", subtask=0) if each.is_current]
    (world.folder / "store" / lost.folder / "part-0.bin").unlink()
    world.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
    world.airflow.run_until_quiet()
    grow_old(world, 91)
    report = sweep(world.services, is_full=True, clearer=world.airflow)
    assert {each.path for each in report.expired} == {RUN, "ladder@20130102T000000Z"}
    left = {path for path in lying(world) if not path.startswith("_sinks")}
    assert {path.split("/")[2] for path in left} == {"_run.json", "delays"}
    assert published(world.store, "ladder", "delays", EPOCH) is not None
    assert not sweep(world.services, is_full=True).deleted


def test_a_run_that_was_moved_to_another_topology_loses_what_the_old_one_made(world):
    world.run_first(1)
    old = {each.folder for each in rows(world, ResultRow)}
    shown = {part.folder for part in published(world.store, "ladder", "delays", EPOCH).partitions}
    adopt(world.services, RUN)
    grow_old(world)
    assert sweep(world.services, is_full=True).missing == []
    assert {path.rpartition("/")[0] for path in lying(world, "part-0.bin")} >= shown
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    grow_old(world)
    sweep(world.services, is_full=True)
    sweep(world.services, is_full=True)
    there = {path.rpartition("/")[0] for path in lying(world, "part-0.bin")}
    assert not there & (old - shown)
    assert {each.folder for each in rows(world, ResultRow) if each.state == "finished"} <= there
    assert published(world.store, "ladder", "delays", EPOCH).partitions[0].folder in there


def test_what_a_deleted_dag_run_left_goes_when_another_has_its_epoch(world):
    world.run_first(1)
    first = {each.id for each in rows(world, AttemptRow)}
    world.airflow.delete("scheduled__2013-01-01")
    world.airflow.dag_run(1, kind="manual")
    world.airflow.run_until_quiet()
    assert rows(world, RunRow)[0].run_id == "manual__2013-01-01"
    grow_old(world)
    sweep(world.services, is_full=True, clearer=world.airflow)
    current = {each.folder for each in rows(world, ResultRow) if each.is_current}
    there = {path.rpartition("/")[0] for path in lying(world, "part-0.bin")}
    assert current <= there
    shown = {part.folder for part in published(world.store, "ladder", "delays", EPOCH).partitions}
    assert {folder for folder in there if folder.rpartition("/")[2] in first} <= shown
