"""Restoring a checkpoint while runs are closed: what is restored has its files, or nothing is restored."""

import os
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    checkpoints,
    files_of,
    keep_savepoints,
    lineage_of,
    restore,
    rows_of,
    run_days,
    spoil,
    states_of,
)
from tests.weir.small_dataflow import Saved, World

from weir.coordination.services import Services
from weir.dataflow import keyed_state
from weir.errors import Misconfigured, Retryable
from weir.formats.paths import checkpoint_path
from weir.recovery.adopt import adopt
from weir.retention.sweep import sweep
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.snapshots.savepoint import SavepointRequest, create
from weir.snapshots.source import find_source, require_retained
from weir.state.checkpoint import subsume_checkpoints
from weir.state.files_in_use import live_state_files
from weir.store.store import Store

WHOLE = aircraft(
    states=(keyed_state("history", key="k", schema="k BIGINT, n BIGINT", incremental=False),), retained_checkpoints=2
)
"""Each epoch writes files of its own, so that those of a checkpoint go with it."""


@pytest.fixture(scope="module")
def two_days():
    """Nothing but the checkpoint of the first day names its files any more, and that of a third day subsumes it."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", WHOLE)
        run_days(world.airflow, 1, 2)
        adopt(world.services, f"ladder@{EPOCHS[0]}")
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(two_days, tmp_path, copied):
    return two_days.go_on(tmp_path, copied)


class Once:
    """Calls a function once."""

    def __init__(self, work):
        self._work, self._lock = work, threading.Lock()

    def __call__(self):
        with self._lock:
            work, self._work = self._work, lambda: None
            work()


class CreatingStore(Store):
    """Tells of each file that was made."""

    __slots__ = ("made",)

    def __init__(self, store, made):
        super().__init__(store.files)
        self.made = made

    def create(self, path, data):
        super().create(path, data)
        self.made(path)


class WatchedStore(Store):
    """Tells of the first state's manifest that is read, or what else `part` of a path says, just before it is."""

    __slots__ = ("callback", "part")

    def __init__(self, store, callback, part="/history/"):
        super().__init__(store.files)
        self.callback, self.part = callback, part

    def read(self, path):
        if self.part in path:
            self.callback()
        return super().read(path)


@pytest.mark.parametrize("fork", [None, "forked"])
def test_a_checkpoint_that_is_subsumed_before_the_commit_is_not_restored(days, fork):
    def close_others():
        days.content["aircraft"] = "other"
        run_days(days.airflow, 3)

    once = Once(close_others)

    def now():
        once()  # the clock is first looked at when all files were found to be there
        return days.airflow.time

    lineage = lineage_of(days)
    with pytest.raises(Misconfigured, check=of_kind("snapshots.not_retained")):
        restore_snapshot(
            Services(ledger=days.ledger, store=days.store, now=now),
            RestoreRequest("ladder", "1", fork=fork),
        )
    assert 1 not in checkpoints(days)
    assert (lineage_of(days), lineage_of(days, "forked"), states_of(days, 1, "forked")) == (lineage, None, {})
    assert not any(row.attempt.startswith("t0000") for row in rows_of(days, 1))


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("fork", [None, "forked"])
def test_files_that_pass_from_a_checkpoint_to_results_during_a_deletion_are_in_use(days, fork):
    def hand_over():
        restore(days, 1, fork=fork)
        run_days(days.airflow, 3)

    services = Services(
        ledger=days.ledger, store=WatchedStore(days.store, Once(hand_over)), now=lambda: days.airflow.time
    )
    in_use = live_state_files(services, "ladder")
    assert 1 not in checkpoints(days)
    restored = {file.path for subtask in (0, 1) for file in files_of(days, 1, subtask, fork or "ladder")}
    assert {row.attempt.startswith("t0000") for row in rows_of(days, 1, dataflow=fork or "ladder")} == {True}
    assert restored <= in_use
    assert all(days.store.size(path) for path in restored)


def test_a_savepoint_is_of_the_newest_checkpoint_that_is_there_though_another_was_deleted_before_it_was_read(days):
    once = Once(lambda: run_days(days.airflow, 3, 4))
    services = replace(days.services, store=WatchedStore(days.store, once, checkpoint_path("ladder", 2)))
    made = create(services, SavepointRequest("ladder"))
    assert 2 not in checkpoints(days)
    assert (made.epoch, made.status) == (EPOCHS[3], "completed")


def test_a_subsumed_checkpoint_is_refused_though_its_manifest_is_still_there(days):
    with days.ledger.transaction("ladder") as session:
        subsume_checkpoints(session, "ladder", 1, days.airflow.time)
    with pytest.raises(
        Misconfigured, check=of_kind("snapshots.number_unknown", gone=" any more, it was subsumed", name="1")
    ):
        restore(days, 1)


def test_on_postgresql_a_checkpoint_that_a_fork_is_about_to_name_is_not_subsumed(tmp_path, empty_postgres_ledger):
    """The two transactions are of different dataflows, so that these do not shut each other out."""
    (tmp_path / "store").mkdir()
    world = World(tmp_path, WHOLE, empty_postgres_ledger)
    run_days(world.airflow, 1, 2)
    source = find_source(world.services, "ladder", "1")

    def subsume():
        with world.ledger.transaction("ladder") as session:
            session.execute(text("SET LOCAL lock_timeout = '50ms'"))
            return [row.number for row in subsume_checkpoints(session, "ladder", 1, world.airflow.time)]

    with world.ledger.transaction("forked") as session:
        require_retained(session, source)
        with pytest.raises(Retryable, check=of_kind("ledger.silent")):
            subsume()
    assert subsume() == [1]
    with (
        world.ledger.transaction("forked") as session,
        pytest.raises(Misconfigured, check=of_kind("snapshots.not_retained")),
    ):
        require_retained(session, source)


def swept_after(world, nth, made):
    """Services whose nth file is followed by sweeps of files of any age; all of the test is in a moment."""

    def sweep_once(path):
        made.append(path)
        if len(made) == nth:
            at = world.airflow.time.timestamp()
            for each in (world.folder / "store").rglob("*"):
                os.utime(each, (at, at))
            for each in ("ladder", None):
                sweep(world.services, each, is_full=True, older_than=timedelta())

    return replace(world.services, store=CreatingStore(world.store, sweep_once))


@pytest.mark.parametrize("fork", [None, "forked"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_sweep_of_files_of_any_age_leaves_what_a_restore_has_not_committed_yet(days, fork, nth):
    """No row names its files before all of them are there."""
    keep_savepoints(days, 2)
    right, made = states_of(days, 2), []
    spoil(days, 2)
    restore_snapshot(swept_after(days, nth, made), RestoreRequest("ladder", "day2", fork=fork))
    assert states_of(days, 2, fork or "ladder") == right
    assert len(made) >= nth
    assert all(days.store.size(path) for path in made)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_so_it_does_where_the_restored_epoch_has_no_run_yet(days, tmp_path, nth):
    made = []
    create(days.services, SavepointRequest("ladder", to=f"{tmp_path}", name="mine"))
    other = World(tmp_path / "other", WHOLE)
    run_days(other.airflow, 1)
    restore_snapshot(swept_after(other, nth, made), RestoreRequest("ladder", f"{tmp_path}/mine"))
    assert states_of(other, 2) == states_of(days, 2)
    assert all(other.store.size(path) for path in made)
