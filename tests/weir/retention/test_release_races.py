"""Results are published or read at the very moment in which others are released."""

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.checking import NOT_NULL, in_one_plan, results, run, with_suites, write_suite

from weir.dataflow import Dataflow, Stage, blocking, expectations, previous, sink, source
from weir.ledger.database.tables import PublicationRow, ResultRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.retention import release
from weir.retention.sweep import sweep
from weir.sinks import publishing
from weir.store.catalogue import published
from weir.testing.fakes.engine import FakeEngine

EPOCH = "20130101T000000Z"


def keeping(world, **life):
    flow = world.airflow.flow
    world.airflow.flow = Dataflow(flow.name, flow.stages, **life)
    return world


def files_published(world):
    """The sizes of all files that readers see."""
    pointer = published(world.store, "ladder", "delays", EPOCH)
    return [world.store.size(f"{part.folder}/{name}") for part in pointer.partitions for name in part.files]


@pytest.fixture
def spark_like(monkeypatch):
    """No name of a file is ever used twice, as by Spark."""
    write = FakeEngine._write

    def named_anew(self, stage, output, content, *more):
        report = write(self, stage, output, content, *more)
        old, new = report.files[0].name, f"part-{uuid.uuid4().hex}.bin"
        self._store.create(f"{output.folder}/{new}", self._store.read(f"{output.folder}/{old}"))
        self._store.delete(f"{output.folder}/{old}")
        return replace(report, files=(replace(report.files[0], name=new),))

    monkeypatch.setattr(FakeEngine, "_write", named_anew)


@pytest.mark.usefixtures("spark_like")
def test_what_is_made_again_while_it_is_to_be_published_is_published_as_it_is_then(world, monkeypatch):
    run, write, done = world.airflow.dag_run(1), publishing._Publication.write, []

    def made_again_before(*args):
        if not done:
            task = next(task for key, task in world.airflow.tasks.items() if "report" in key.task_id)
            world.airflow.clear_by_hand(run, task.key.task_id, task.key.map_index)
            done.append(world.airflow.step(task))
        return write(*args)

    monkeypatch.setattr(publishing._Publication, "write", made_again_before)
    world.airflow.run_until_quiet()
    assert done
    assert set(world.airflow.states().values()) == {"success"}
    assert files_published(world)


def test_a_closing_task_that_was_given_up_publishes_anew(world, monkeypatch):
    keeping(world, keep_failed="6 hours", keep="end_of_run")
    world.airflow.dag_run(1)
    create, slept = publishing._create, []

    def asleep(services, pointer):
        if not slept:
            slept.append(pointer.version)
            world.airflow.time += timedelta(hours=7)
            world.airflow.release("ladder")
        return create(services, pointer)

    monkeypatch.setattr(publishing, "_create", asleep)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    world.airflow.time += timedelta(hours=2)
    world.airflow.release("ladder")
    sweep(world.services)
    assert files_published(world)
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(PublicationRow).order_by(PublicationRow.version)))
    assert [row.published_at is not None for row in rows] == [False, True]
    assert [row.expired_at is not None for row in rows] == [True, False]


def test_what_was_released_before_its_publication_was_decided_is_computed_and_published_anew(world, monkeypatch):
    keeping(world, keep_failed="6 hours", keep="end_of_run")
    world.airflow.dag_run(1)
    write, slept = publishing._Publication.write, []

    def asleep(*args):
        if not slept:
            slept.append(True)
            world.airflow.time += timedelta(hours=7)
            world.airflow.release("ladder")
        return write(*args)

    monkeypatch.setattr(publishing._Publication, "write", asleep)
    world.airflow.run_until_quiet()
    assert slept
    assert set(world.airflow.states().values()) == {"success"}
    assert files_published(world)


def test_an_attempt_with_a_heartbeat_is_running_however_long(world):
    keeping(world, keep_failed="6 hours")
    world.airflow.dag_run(1)
    working = []

    def long(key):
        if key.task_id == "weather" and not working:
            working.append(key)
            for _ in range(7):
                world.airflow.time += timedelta(hours=1)
                world.airflow.heartbeat(key)
                world.airflow.release("ladder")
                sweep(world.services, is_full=True)

    world.airflow.during = long
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert all(tries == 1 for tries in world.airflow.executed("scheduled__2013-01-01").values())


@pytest.mark.parametrize("life", ["failed", "deleted"])
def test_the_last_history_stays_though_the_epoch_after_it_was_given_up(world, life):
    flow = Dataflow(
        "ladder",
        [
            source("day", "m:day"),
            Stage("history", "m:history", [blocking("day"), previous("history", schema="k bigint")]),
            Stage("known", "m:known", [blocking("history")]),
            sink("known", "known_set"),
        ],
        keep="end_of_run",
    )
    world.airflow.deploy(flow)
    for day in (1, 2):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()

    def a_bug(key):
        if key.task_id.startswith("history"):
            raise ValueError("a bug")

    world.airflow.during = a_bug
    third = world.airflow.dag_run(3)
    world.airflow.run_until_quiet()
    if life == "deleted":
        world.airflow.delete(third)
        sweep(world.services, clearer=world.airflow)
    world.airflow.time += timedelta(days=15)
    sweep(world.services, clearer=world.airflow, is_reclaiming=True)
    with world.ledger.transaction() as session:
        there = select(ResultRow.run).where(ResultRow.stage == "history", ResultRow.state == "finished")
        assert list(session.scalars(there)) == ["ladder@20130102T000000Z"]


def test_what_a_ledger_that_is_built_again_calls_finished_is_not_deleted(world, monkeypatch):
    keeping(world, keep="on_consumed")
    world.airflow.collects = False
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    release.release(world.services, "ladder")
    before, delete = [], release._delete_data

    def after_rebuild(services, deleted):
        if not before:
            before.append(rebuild(services))
        delete(services, deleted)

    monkeypatch.setattr(release, "_delete_data", after_rebuild)
    release.delete_released(world.services, "ladder")
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(ResultRow).where(ResultRow.state == "finished")))
    assert before
    assert rows
    assert all(row.deleted_at is None and len(world.store.list(row.folder)) > 1 for row in rows)


def test_what_an_adopted_run_had_made_goes(world):
    world.run_first(1)
    adopt(world.services, f"ladder@{EPOCH}")
    world.airflow.release("ladder")
    with world.ledger.transaction() as session:
        left = {row.stage for row in session.scalars(select(ResultRow).where(ResultRow.state == "finished"))}
    assert left == {"delays"}


def test_what_a_gate_refused_of_an_adopted_run_goes(world):
    write_suite(with_suites(world), "clean_rows", NOT_NULL)
    world.airflow.engine.violated["clean"] = {NOT_NULL}
    run(world, in_one_plan(expectations("clean_rows")))
    assert [row.state for row in results(world, "delays")] == ["quarantined"]
    adopt(world.services, f"gated@{EPOCH}")
    world.airflow.release("gated")
    assert [row.deleted_at is not None for row in results(world, "delays")] == [True]
