"""The record of a run is in the store before an attempt of it computes, and no transaction waits for the store."""

import errno
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.weir.restoring import aircraft, keep_savepoints, restore, run_days, spoil
from tests.weir.small_dataflow import World, ladder

from weir.coordination.run_records import record_of, write_records
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Retryable
from weir.formats.codec import from_json
from weir.formats.run_record import RunRecord
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import CADENCE, ZONE
from weir.recovery.adopt import adopt
from weir.retention.sweep import sweep
from weir.snapshots.savepoint import SavepointRequest, create
from weir.testing.fakes.airflow import DAILY
from weir.testing.fakes.stores import FailingStore
from weir.topology.layouts import pinned_json
from weir.upkeep import RESULTS, settle_everywhere, sweep_everywhere

RUN = "ladder@20130101T000000Z"
DAY = timedelta(days=1)
PATH = "ladder/20130101T000000Z/_run.json"


def stored(world):
    return from_json(RunRecord, world.store.read(PATH))


def known(world):
    with world.ledger.transaction() as session:
        row = session.get_one(RunRow, RUN)
        return record_of(session, row), row.is_record_due


@contextmanager
def no_answer(world):
    """The store of a world does not answer about the record."""
    healthy, failing = world.store.files, FailingStore(world.store)
    failing.fail(PATH, OSError(errno.EIO, "no answer"))
    world.store.files = failing.files
    try:
        yield
    finally:
        world.store.files = healthy


def test_an_attempt_whose_run_has_no_record_does_not_compute(world):
    task = world.airflow.task(world.airflow.dag_run(1), "weather")
    with no_answer(world):
        world.airflow.step(task)
    assert task.state == "up_for_retry"
    assert not any(path.name == "manifest.json" for path in (world.folder / "store").rglob("*"))
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert known(world) == (replace(stored(world), revision=0, ledger=""), False)


def test_whoever_comes_by_writes_a_record_that_is_due(world):
    world.run_first(1)
    with no_answer(world), pytest.raises(Retryable):
        adopt(world.services, RUN)
    record, is_due = known(world)
    assert is_due
    pinned = pinned_json(replace(ladder(), failover="region"), {})
    assert (record.pinned, stored(world).pinned) == (None, {**pinned, ZONE: "UTC", CADENCE: DAILY})
    settle_everywhere(world.services, RESULTS).require_whole()
    assert known(world) == (replace(stored(world), revision=0, ledger=""), False)
    assert len(stored(world).abandoned) == len(record.abandoned) > 0
    assert write_records(world.services, "ladder") == 0


def test_a_record_of_another_version_in_the_store_is_not_replaced_where_the_ledger_was_lost(world):
    world.run_first(1)
    before = stored(world)
    world.lose_ledger()
    world.airflow.deploy(ladder(3))
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    found = stored(world)
    assert found.closed_clears > 0
    assert replace(found, revision=before.revision, closed_clears=0) == before
    with world.ledger.transaction() as session:
        assert session.get_one(RunRow, RUN).pinned == before.pinned


# Nobody waits in the ledger for the store


class WatchedFiles:
    """Files before each of whose operations another process could write to the ledger.

    It waits for other threads that look, but not for the thread that asks for the file."""

    def __init__(self, files, ledger):
        self._files, self._ledger, self.asked = files, ledger, 0

    def __getattr__(self, name):
        known = getattr(self._files, name)
        if not callable(known):
            return known

        def asked(*args):
            self.asked += 1
            with closing(sqlite3.connect(self._ledger, timeout=2, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # raises "database is locked"
                other.execute("ROLLBACK")
            return known(*args)

        return asked


@pytest.fixture
def watched(tmp_path):
    """Make the world of a dataflow whose store is watched."""
    (tmp_path / "store").mkdir()
    made = []

    def make(flow):
        made.append(World(tmp_path, flow))
        made[0].store.files = WatchedFiles(made[0].store.files, tmp_path / "ledger.db")
        return made[0]

    yield make
    assert made[0].store.files.asked > 0


def test_nobody_waits_for_the_store_in_a_run_or_in_upkeep(watched):
    world = watched(aircraft(retained_checkpoints=1))
    run_days(world.airflow, 1, 2)
    world.content["flights"] = "new"
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    settle_everywhere(world.services, RESULTS).require_whole()
    sweep_everywhere(world.services, world.airflow).require_whole()
    assert set(world.airflow.states().values()) == {"success"}


def test_nobody_waits_for_the_store_while_versions_and_runs_expire(watched):
    world = watched(ladder())
    run_days(world.airflow, 1, 2, 3)
    life = RetentionSettings(keep_published=5 * DAY, expire_runs=9 * DAY)
    services = replace(world.services, retention=life)
    for _ in range(3):
        at = world.airflow.time.timestamp()
        for path in (world.folder / "store").rglob("*"):
            os.utime(path, (at, at))
        world.airflow.time += 10 * DAY
        sweep(services, "ladder", is_full=True, clearer=world.airflow)
    assert not (world.folder / "store" / PATH).exists()
    assert not list((world.folder / "store/_sinks").rglob("*.json"))
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}


@pytest.mark.parametrize("fork", [None, "forked"])
def test_nobody_waits_for_the_store_in_a_restore(watched, fork):
    world = watched(aircraft(retained_checkpoints=3))
    run_days(world.airflow, 1, 2)
    keep_savepoints(world, 2)
    spoil(world, 2)
    restore(world, "day2", fork=fork)


def test_nobody_waits_for_the_store_when_a_run_is_adopted_and_a_savepoint_made(watched):
    world = watched(aircraft(retained_checkpoints=1))
    run_days(world.airflow, 1)
    create(world.services, SavepointRequest("ladder", name="mine"))
    adopt(world.services, RUN)
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    assert known(world) == (replace(stored(world), revision=0, ledger=""), False)
