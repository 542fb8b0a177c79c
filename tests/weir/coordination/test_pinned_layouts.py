"""The layouts of a run are chosen when it is pinned, recorded with it, and kept by whatever reads it later."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.small_dataflow import ladder

from weir.assembly import coordinator_of
from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.formats.codec import from_json
from weir.formats.manifest import OF_RESULT, OF_STORED_ROWS, digest_version
from weir.formats.run_record import RunRecord
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.runs import topology_of
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.testing.fakes.airflow import interval_of
from weir.topology.partitions import PLAIN, Layout

BY_K = Layout(("k",), 128).id
EPOCHS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z")


def growing(parallelism=2):
    stages = [source("day", "pipelines.ladder:day")]
    read = {"day": blocking("day", by="k"), "before": previous("history", by="k", schema="k bigint")}
    stages.append(Stage("history", "pipelines.ladder:history", read, parallelism=parallelism))
    return Dataflow("ladder", [*stages, sink("history", "known")], keep="60 days")


@pytest.fixture
def days(world):
    world.airflow.deploy(growing())
    return world


def run_day(world, day):
    run = world.airflow.dag_run(day)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    return run


def results(world, day, stage):
    """The layouts and the versions of digests of the current results of a stage."""
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(
            ResultRow.run == f"ladder@{EPOCHS[day - 1]}", ResultRow.stage == stage, ResultRow.is_current
        )
        rows = list(session.scalars(query))
    return {row.layout for row in rows}, {digest_version(row.digest) for row in rows}


def pinned(world, day):
    with world.ledger.transaction() as session:
        return session.get_one(RunRow, f"ladder@{EPOCHS[day - 1]}").pinned


def pin_as_an_older_weir(world, day):
    """Pin the run of a day to its dataflow alone, before anything of it begins."""
    run, interval = world.airflow.dag_run(day), timedelta(days=day - 1)
    with world.ledger.transaction("ladder") as session:
        first = session.get_one(RunRow, f"ladder@{EPOCHS[0]}")
        row = RunRow(
            id=f"ladder@{EPOCHS[day - 1]}",
            dataflow="ladder",
            epoch=EPOCHS[day - 1],
            interval_start=first.interval_start + interval,
            interval_end=first.interval_end + interval,
            dag_id=first.dag_id,
            run_id=run,
            task_prefix="",
            pinned=world.airflow.flow.to_json(),
            parameters={},
            predecessor=first.epoch,
            created_at=world.airflow.time,
            is_record_due=True,
        )
        assert row.interval_start == interval_of(run)[0]
        session.add(row)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_result_that_was_small_in_the_run_before_is_written_plain(days):
    run_day(days, 1)
    assert results(days, 1, "day") == results(days, 1, "history") == ({BY_K}, {OF_RESULT})
    run_day(days, 2)
    assert results(days, 2, "day") == results(days, 2, "history") == ({PLAIN.id}, {OF_RESULT})


def test_the_choice_and_its_reason_are_in_the_ledger_and_in_the_record_of_the_run(days):
    run_day(days, 1)
    run_day(days, 2)
    chosen = topology_of(pinned(days, 2)).chosen
    assert set(chosen) == {"day", "history"}
    assert chosen["history"].reason.startswith(f"it had 160 bytes in ladder@{EPOCHS[0]}, and up to 16.8 MB are")
    record = from_json(RunRecord, days.store.read(f"ladder/{EPOCHS[1]}/_run.json"))
    assert record.pinned == pinned(days, 2)


def test_what_is_small_is_the_deployments_choice(days):
    days.airflow.deploy(growing(parallelism=3))
    days.airflow.coordinator = coordinator_of(replace(days.services, small_result=100))
    run_day(days, 1)
    run_day(days, 2)
    assert results(days, 2, "day")[0] == {PLAIN.id}  # 80 bytes
    assert results(days, 2, "history")[0] == {BY_K}


def test_a_rebuilt_ledger_knows_the_layouts(days):
    for day in (1, 2):
        run_day(days, day)
    before = results(days, 2, "history")
    days.lose_ledger()
    rebuild(days.services, "ladder")
    assert results(days, 2, "history") == before
    run_day(days, 3)
    assert results(days, 2, "history") == before


def test_a_run_that_an_older_weir_has_pinned_goes_on_in_its_layouts_with_its_digests(days):
    run_day(days, 1)
    pin_as_an_older_weir(days, 2)
    days.airflow.run_until_quiet()
    assert results(days, 2, "history") == results(days, 2, "day") == ({BY_K}, {OF_STORED_ROWS})
    again = next(task for task in days.airflow.tasks.values() if task.key.run_id.endswith("02"))
    days.airflow.clear_by_hand(again.key.run_id, "day")
    days.airflow.run_until_quiet()
    assert set(days.airflow.executed(again.key.run_id).values()) == {1, 2}  # what reads it is spared
    run_day(days, 3)
    assert results(days, 3, "history") == ({PLAIN.id}, {OF_RESULT})


def test_a_run_that_is_pinned_again_writes_what_later_runs_have_read(days):
    run = run_day(days, 1)
    later = run_day(days, 2)
    adopt(days.services, f"ladder@{EPOCHS[0]}")
    days.airflow.clear_run_by_hand(run)
    days.airflow.run_until_quiet()
    assert results(days, 1, "history")[0] == {BY_K}
    assert set(days.airflow.executed(later).values()) == {1}
    days.content["day"] = "new"
    days.airflow.clear_by_hand(run, "day")
    days.airflow.run_until_quiet()
    assert 2 in days.airflow.executed(later).values()


def test_consumers_with_one_subtask_have_nothing_redistributed_in_the_first_run(world):
    flow = ladder()
    alone = [
        stage if stage.name != "totals" else Stage("totals", stage.function, stage.exchanges) for stage in flow.stages
    ]
    world.airflow.deploy(Dataflow("ladder", alone))
    run_day(world, 1)
    assert results(world, 1, "joined")[0] == {PLAIN.id}
    assert results(world, 1, "clean")[0] == {BY_K}
