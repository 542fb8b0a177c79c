"""The gauges of a dataflow: each byte at rest has a keeper, and what is left of nothing is told as 0."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select
from tests.weir.keeping import aircraft
from tests.weir.notifications import receiving
from tests.weir.sinks.file_target import FileTarget
from tests.weir.small_dataflow import ladder

from weir.dataflow import Dataflow, callback, sink, target
from weir.execution.metrics import (
    AT_REST,
    CHECKPOINT_AGE,
    CHECKPOINT_BYTES,
    CHECKPOINT_NEW_BYTES,
    CHECKPOINT_SECONDS,
    DELIVERY_LAG,
    NOTIFICATION_LAG,
    PENDING_CLEARS,
    SCRUB_AGE,
    SCRUB_RATIO,
)
from weir.integrity.verify import mark_verified
from weir.ledger.database.tables import CheckpointRow, PendingClearRow, ResultRow, RunRow
from weir.ledger.leases import take_leases
from weir.retention.sizes import bytes_at_rest
from weir.telemetry.gauges import gauges_everywhere

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FILE_TARGET = "tests.weir.sinks.file_target:FileTarget"


def gauge(world, metric):
    """How a gauge stands, by the values of its tags after the dataflow's name."""
    found, kept = gauges_everywhere(world.services)
    assert kept.failed == {}
    return {tuple(each.tags.values())[1:]: each.value for each in found if each.metric is metric}


def at_rest(world):
    """The bytes by keeper, without those that keep nothing; all of them are the bytes at rest."""
    found = {tag: value for (tag,), value in gauge(world, AT_REST).items()}
    with world.ledger.transaction() as session:
        assert sum(found.values()) == bytes_at_rest(session, "ladder")
    return {tag for tag, value in found.items() if value}


def test_bytes_at_rest_have_keepers_from_the_first_commit_to_the_release(world):
    world.airflow.deploy(Dataflow("ladder", world.airflow.flow.stages, keep="1 day"))
    world.airflow.dag_run(1)
    assert gauge(world, AT_REST) == {}  # the ledger does not know it yet
    for _ in range(5):
        world.airflow.step(world.airflow._ready())
    assert at_rest(world) == {"run"}
    world.airflow.run_until_quiet()
    assert at_rest(world) == {"policy", "version"}
    world.airflow.time += DAY + HOUR
    world.airflow.release("ladder")
    assert at_rest(world) == {"version"}


def test_a_lease_a_quarantine_and_a_damage_keep_bytes_too(done):
    with done.ledger.transaction("ladder") as session:
        numbers = {
            row.stage: row.id for row in session.scalars(select(ResultRow).where(ResultRow.is_current)) if row.bytes
        }
        take_leases(session, [numbers["totals"]], "a reader", done.services.now())
        session.get_one(ResultRow, numbers["routes"]).state = "quarantined"
        damaged = session.get_one(ResultRow, numbers["joined"])
        damaged.state, damaged.fault = "lost", "damaged"
    assert at_rest(done) == {"reader", "quarantine", "policy", "version"}


def test_a_state_is_kept_for_checkpoints_of_which_the_newest_has_its_age_and_sizes(world):
    world.airflow.deploy(aircraft(retained_checkpoints=2))
    for day in (1, 2, 3):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
    world.airflow.time += HOUR
    assert "checkpoint" in at_rest(world)
    with world.ledger.transaction() as session:
        newest = session.scalars(select(CheckpointRow).order_by(CheckpointRow.number)).all()[-1]
    assert gauge(world, CHECKPOINT_BYTES) == {(): newest.full_bytes}
    assert gauge(world, CHECKPOINT_NEW_BYTES) == {(): newest.incremental_bytes}
    assert gauge(world, CHECKPOINT_AGE)[()] >= 3600
    assert gauge(world, CHECKPOINT_SECONDS)[()] >= 0


def test_pending_clears_are_counted_until_they_are_delivered(done):
    assert gauge(done, PENDING_CLEARS) == {(): 0}
    done.lose("joined", 1)
    done.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
    done.airflow.reachable = False
    done.airflow.step(done.airflow.task("scheduled__2013-01-01", "totals", 0))
    with done.ledger.transaction() as session:
        owed = len(session.scalars(select(PendingClearRow).where(PendingClearRow.settled_at.is_(None))).all())
    assert gauge(done, PENDING_CLEARS) == {(): owed}
    assert owed > 0


def test_the_scrub_shows_how_much_it_has_read_and_how_old_the_oldest_look_is(done):
    assert gauge(done, SCRUB_RATIO) == {(): 0}
    done.airflow.time += DAY
    assert gauge(done, SCRUB_AGE)[()] >= DAY.total_seconds()
    with done.ledger.transaction("ladder") as session:
        half = session.scalars(select(ResultRow.id).where(ResultRow.stage == "joined")).all()
        mark_verified(session, half, done.services.now())
    assert 0 < gauge(done, SCRUB_RATIO)[()] < 1


def test_a_version_that_waits_for_its_target_has_a_lag_and_one_that_is_there_has_none(world, tmp_path, monkeypatch):
    def go_away(step):
        if step == "commit":
            (tmp_path / "away").touch()

    stages = ladder().stages
    world.airflow.deploy(
        Dataflow("ladder", [*stages[:-1], sink("report", "delays", to=[target(FILE_TARGET, folder=str(tmp_path))])])
    )
    monkeypatch.setattr(FileTarget, "step", staticmethod(go_away))
    run = world.airflow.dag_run(1)
    close = world.airflow.task(run, "weir_close")
    while close.state != "up_for_reschedule":
        world.airflow.step(world.airflow._ready())
    world.airflow.time += HOUR
    assert gauge(world, DELIVERY_LAG)["delays",] >= 3600
    monkeypatch.undo()
    (tmp_path / "away").unlink()
    world.airflow.run_until_quiet()
    assert gauge(world, DELIVERY_LAG) == {("delays",): 0}


def test_a_notification_that_its_receiver_has_not_got_has_a_lag(world):
    told = callback("tests.weir.notifications.receiving:tell", receiver="on call")
    world.airflow.deploy(Dataflow("ladder", ladder().stages, notify=[told]))
    receiving.reset()
    receiving.away.add("tell")
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    world.airflow.time += HOUR
    assert gauge(world, NOTIFICATION_LAG)["on call",] >= 3600
    receiving.reset()
    world.airflow.clear_by_hand("scheduled__2013-01-01", "weir_close")
    world.airflow.run_until_quiet()
    assert gauge(world, NOTIFICATION_LAG) == {("on call",): 0}


def test_a_dataflow_whose_run_cannot_be_read_keeps_no_other_from_its_gauges(done):
    with done.ledger.transaction("ladder") as session:
        session.get_one(RunRow, "ladder@20130101T000000Z").pinned = {"version": 999}
    found, kept = gauges_everywhere(done.services)
    assert (found, list(kept.failed)) == ([], ["ladder, gauges"])
