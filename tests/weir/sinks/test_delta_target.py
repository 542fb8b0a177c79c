"""Delta Lake as a target: an epoch's files and its marker in one commit, whoever writes or is killed beside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import CommitFailedError
from tests.messages.kinds import of_kind
from tests.weir.sinks.delta_sink import DAY, NEXT, Reach, Sink, at_once, by_duckdb, made_table

from weir.dataflow import delta
from weir.errors import Misconfigured
from weir.sinks import Delivery, Outcome, TargetAway
from weir.sinks.opening import open_target
from weir.sinks.targets import delta as module
from weir.testing.sink_contract import SinkContract


@pytest.fixture
def sink(tmp_path):
    return Sink(tmp_path)


def beside(monkeypatch, act, *, after=False):
    """Have something done once, just before (or after) the next commit to any table."""
    original = DeltaTable.create_write_transaction
    left = [act]

    def commit(self, *args, **kwargs):
        if left and not after:
            left.pop()()
        original(self, *args, **kwargs)
        if left:
            left.pop()()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)


def vacuum(sink, **options):
    return sink.table.vacuum(0, dry_run=False, enforce_retention_duration=False, **options)


class TestContract(SinkContract):
    """The contract of all targets."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.sink = Sink(tmp_path)
        columns = (("k", "long"), ("s", "string"), ("_epoch", "string"))
        made_table(self.sink, columns, **{"delta.checkpointInterval": "10"})  # a long log takes long to read

    def target(self, reach):
        return self.sink.target(reach, create="never")

    def rows(self, epoch):
        found = self.sink.table.to_pyarrow_table(partitions=[("_epoch", "=", epoch)], columns=["k", "s"])
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def write_as_somebody_else(self):
        self.sink.append(100)
        return lambda: 100 in self.sink.table.to_pyarrow_table()["k"].to_pylist()


# What is committed


def test_an_epoch_is_replaced_as_a_whole_and_a_version_is_committed_once(sink):
    target, first, second = sink.target(), sink.version(1, [1, 2], [3]), sink.version(2, [7])
    sink.publish(sink.version(1, [9], epoch=NEXT))
    token = target.prepare(first, None)
    assert target.recover(first, token) is Outcome.ABSENT
    assert [target.commit(first, token) for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert (sink.rows(), sink.rows(NEXT)) == ([1, 2, 3], [9])
    assert sink.publish(second) is Outcome.COMMITTED
    assert [target.commit(first, token), target.recover(first, token)] == [Outcome.SUPERSEDED] * 2
    assert (sink.rows(), sink.rows(NEXT)) == ([7], [9])
    assert [(each["epoch"], each["number"]) for each in sink.commits()] == [(DAY, 2), (DAY, 1), (NEXT, 1)]


def test_equal_content_makes_no_version_of_the_table(sink):
    sink.publish(sink.version(1, [1], [2]))
    before = sink.table.version()
    assert sink.publish(sink.version(2, [2, 1])) is Outcome.EQUAL
    assert sink.table.version() == before


def delete(sink):
    sink.table.delete(f"_epoch = '{DAY}'")


def unlink(sink):
    sink.files[0].unlink()


def cut(sink):
    os.truncate(sink.files[0], 10)


def add_to_ours(sink):
    sink.append(8, epoch=DAY)


@pytest.mark.parametrize("damage", [delete, unlink, cut, add_to_ours])
@pytest.mark.parametrize("number", [1, 2])
def test_what_somebody_has_changed_comes_back(sink, damage, number):
    """A person's clear of the closing task commits the version again, or one with equal rows."""
    version = sink.version(1, [1], [2])
    reach = Reach(sink.store, is_local=False)  # a copy: the damage is not that of the store
    sink.publish(version, reach)
    damage(sink)
    again = version if number == 1 else sink.version(2, [1], [2])
    assert sink.target().recover(again, {}) is Outcome.ABSENT
    assert sink.publish(again) is Outcome.COMMITTED
    assert sink.rows() == [1, 2]
    before = sink.table.version()
    assert sink.publish(again) is Outcome.COMMITTED
    assert sink.table.version() == before


def test_a_table_that_somebody_has_restored_gets_the_newest_version_again(sink):
    sink.publish(sink.version(1, [1]))
    before = sink.table.version()
    version = sink.version(2, [2])
    sink.publish(version)
    sink.table.restore(before)
    assert sink.rows() == [1]
    assert sink.publish(version) is Outcome.COMMITTED
    assert sink.rows() == [2]


def test_a_table_that_somebody_has_dropped_comes_back(sink):
    version = sink.version(1, [1])
    sink.publish(version)
    for path in sorted(sink.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    sink.root.rmdir()
    assert sink.target().commit(version, {}) is Outcome.COMMITTED
    assert sink.rows() == [1]


# Files


def test_what_the_store_deletes_stays_in_the_table_and_a_vacuum_leaves_the_store_alone(sink):
    first, second = sink.version(1, [1]), sink.version(2, [2])
    sink.publish(first)
    sink.publish(second)
    sink.table.optimize.compact()
    assert len(vacuum(sink, full=True)) == 1
    assert pq.read_table(sink.store / first.files[0].path)["k"].to_pylist() == [1]
    (sink.store / second.files[0].path).unlink()
    assert sink.rows() == [2]


def test_a_vacuum_beside_a_commit_takes_no_file_that_the_commit_names(sink):
    sink.publish(sink.version(1, [1]))
    calls = []

    def clean():
        calls.append(None)
        if len(calls) == 2:  # one file is there already, the other is about to be
            assert len(vacuum(sink, full=True)) == 1

    target, version = sink.target(Reach(sink.store, before=clean)), sink.version(2, [2], [3])
    assert target.commit(version, target.prepare(version, None)) is Outcome.COMMITTED
    assert len(calls) > 2
    assert sink.rows() == [2, 3]


def test_the_entry_of_a_commit_is_durable_before_the_commit_is_reported(sink, monkeypatch):
    synced = []
    original = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())), original(handle))
    )
    sink.publish(sink.version(1, [1]))
    assert f"{sink.root}/_delta_log/{sink.table.version():020}.json" in synced


# Several processes


def test_versions_that_are_committed_at_once_are_each_there_once(sink):
    versions = [sink.version(number, [number]) for number in (1, 2, 3)]
    sink.target().prepare(versions[0], None)
    seen = at_once([lambda each=each: sink.target().commit(each, {}) for each in (*versions, *reversed(versions))])
    assert set(seen) <= {Outcome.COMMITTED, Outcome.SUPERSEDED}
    numbers = [each["number"] for each in sink.commits()]
    assert numbers == sorted(set(numbers), reverse=True)
    assert sink.rows() == [3]


def test_several_processes_create_one_table(sink):
    versions = [sink.version(1, [day], epoch=f"201301{day:02}T000000Z") for day in range(1, 5)]
    assert set(at_once([lambda each=each: sink.publish(each) for each in versions])) == {Outcome.COMMITTED}
    assert [sink.rows(each.epoch) for each in versions] == [[1], [2], [3], [4]]


@pytest.mark.parametrize("error", [CommitFailedError, OSError])
def test_an_answer_that_was_lost_is_found(sink, monkeypatch, error):
    target, version = sink.target(), sink.version(1, [1])

    def lose():
        raise error("the answer is lost")

    beside(monkeypatch, lose, after=True)
    if error is OSError:  # unknown: the caller comes again
        with pytest.raises(TargetAway, check=of_kind("sinks.delta_silent", said="the answer is lost")):
            target.commit(version, {})
    assert target.commit(version, {}) is Outcome.COMMITTED
    assert (sink.rows(), len(sink.commits())) == ([1], 1)


# Foreign writers


def test_foreign_rows_of_no_epoch_stay_whenever_they_are_written(sink, monkeypatch):
    sink.publish(sink.version(1, [1]))
    sink.append(100)
    beside(monkeypatch, lambda: sink.append(101))
    assert sink.publish(sink.version(2, [2])) is Outcome.COMMITTED
    sink.append(102)
    assert sink.rows() == [2]
    assert sorted(sink.table.to_pyarrow_table()["k"].to_pylist()) == [2, 100, 101, 102]


def test_a_foreign_compaction_keeps_an_epoch_equal_and_its_files_are_replaced(sink):
    version = sink.version(1, [1], [2])
    sink.publish(version)
    assert sink.table.optimize.compact()["numFilesRemoved"] == 2
    before = sink.table.version()
    assert sink.publish(version) is Outcome.COMMITTED
    assert sink.publish(sink.version(2, [1, 2])) is Outcome.EQUAL
    assert sink.table.version() == before
    assert sink.publish(sink.version(3, [3])) is Outcome.COMMITTED
    assert sink.rows() == [3]


def test_a_compaction_between_check_and_commit_leaves_no_row_twice(sink, monkeypatch):
    sink.publish(sink.version(1, [1], [2]))
    beside(monkeypatch, sink.table.optimize.compact)
    assert sink.publish(sink.version(2, [3], [4])) is Outcome.COMMITTED
    assert sink.rows() == [3, 4]


def test_rows_that_are_appended_to_an_epoch_meanwhile_are_replaced(sink, monkeypatch):
    sink.publish(sink.version(1, [1]))
    beside(monkeypatch, lambda: sink.append(100, epoch=DAY))
    assert sink.publish(sink.version(2, [2])) is Outcome.COMMITTED
    assert sink.rows() == [2]


def test_a_column_that_somebody_adds_meanwhile_stays(sink, monkeypatch):
    sink.publish(sink.version(1, [1]))
    beside(monkeypatch, lambda: sink.table.alter.add_columns(Field("note", "string")))
    sink.publish(sink.version(2, [2]))
    assert sink.rows() == [(2, None)]


def test_a_table_that_others_change_all_the_time_is_away(sink, monkeypatch):
    sink.publish(sink.version(1, [1]))
    original = DeltaTable.create_write_transaction

    def lose(self, *args, **kwargs):
        raise CommitFailedError("a transaction came before")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose)
    monkeypatch.setattr(module, "_PAUSES", (0.0, 0.0))
    with pytest.raises(TargetAway, check=of_kind("sinks.delta_changes_too_often", turns="20")):
        sink.publish(sink.version(2, [2]))
    monkeypatch.setattr(DeltaTable, "create_write_transaction", original)
    assert sink.publish(sink.version(2, [2])) is Outcome.COMMITTED


def test_markers_outlive_checkpoints_and_their_log(sink):
    sink.publish(sink.version(1, [1]))
    sink.table.create_checkpoint()
    for entry in sorted((sink.root / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    before = sink.table.version()
    assert sink.publish(sink.version(2, [1])) is Outcome.EQUAL
    assert sink.table.version() == before
    assert sink.publish(sink.version(3, [3])) is Outcome.COMMITTED


# An epoch that is taken out


def test_an_epoch_is_taken_out_until_a_newer_version_comes(sink):
    sink.publish(sink.version(1, [9], epoch=NEXT))
    sink.append(100)
    target, first = sink.target(), sink.version(1, [1])
    assert target.rollback(first, {}) is False
    target.commit(first, {})
    assert target.rollback(first, {}) is True
    before = sink.table.version()
    assert target.rollback(first, {}) is True
    assert sink.table.version() == before
    assert (sink.rows(), sink.rows(NEXT)) == ([], [9])
    assert target.commit(first, {}) is Outcome.ROLLED_BACK
    assert sink.rows() == []
    assert sink.publish(sink.version(2, [1])) is Outcome.COMMITTED
    assert target.rollback(first, {}) is False
    assert (sink.rows(), sink.rows(NEXT)) == ([1], [9])


def test_an_epoch_of_others_is_not_taken_out(sink):
    version = sink.version(1, [1])
    assert sink.target().rollback(version, {}) is False
    made_table(sink)
    sink.append(1, epoch=DAY)
    assert sink.target().rollback(version, {}) is False
    assert sink.rows() == [1]


def test_an_epoch_is_taken_out_beside_foreign_commits(sink, monkeypatch):
    version = sink.version(1, [1], [2])
    sink.publish(version)
    beside(monkeypatch, sink.table.optimize.compact)
    assert sink.target().rollback(version, {}) is True
    assert sink.rows() == []


# Declarations


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("lake/delays", {}, of_kind("dataflow.target_path_malformed")),
        ("/", {}, of_kind("dataflow.target_path_malformed")),
        ("/lake/../delays", {}, of_kind("dataflow.target_path_malformed")),
        ("s3://bucket", {}, of_kind("dataflow.target_path_malformed")),
        ("gs://bucket/delays", {}, of_kind("dataflow.target_path_malformed")),
        ("/lake/delays", {"conn_id": "aws_id"}, of_kind("dataflow.target_conn_id_malformed")),
        ("/lake/delays", {"partition": "a b"}, of_kind("dataflow.delta_partition_malformed")),
        ("/lake/delays", {"create": "always"}, of_kind("dataflow.delta_create_unknown")),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(path, options, message):
    with pytest.raises(Misconfigured, check=message):
        delta(path, **options)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(Misconfigured, check=of_kind("code.import_failed")):
        open_target(delta("/lake/delays"), None)


# Processes that are killed


@pytest.mark.soak
def test_processes_that_are_killed_at_random_leave_whole_versions(sink):
    """Each of a hundred is killed while it commits; a reader and foreign writers are beside."""
    sink.publish(sink.version(1, [1] * 5, [1] * 5))
    seen, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            found = by_duckdb(sink.table)
            seen.append(tuple(row[0] for row in found.filter(f"_epoch = '{DAY}'").project("k").fetchall()))

    def write():
        while not stop.is_set():
            with suppress(CommitFailedError):
                sink.append(-1)
                sink.table.optimize.compact()
            stop.wait(0.1)

    random, number, landed = Random(19), 1, 0
    with running(read, write, stop):
        for _ in range(100):
            versions = [sink.version(number + more, [number + more] * 5, [number + more] * 5) for more in range(1, 7)]
            number += len(versions)
            kill_while_committing(sink, versions, random.uniform(0, 0.3))
            outcomes = [sink.target().recover(each, {}) for each in versions]
            landed += outcomes[0] is not Outcome.ABSENT and outcomes[-1] is Outcome.ABSENT
            assert sink.target().commit(versions[-1], {}) is Outcome.COMMITTED
            assert sink.rows() == [number] * 10
    assert landed > 20
    assert len(seen) > 100
    assert all(len(rows) == 10 and len(set(rows)) == 1 for rows in seen)
    numbers = [each["number"] for each in sink.commits()]
    assert numbers == sorted(set(numbers), reverse=True)


@contextmanager
def running(*acts_and_stop):
    """Run functions in threads of their own, until the event is set that is the last argument."""
    *acts, stop = acts_and_stop
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def kill_while_committing(sink, versions, seconds):
    """Start a process that commits versions, and kill it so many seconds after it begins."""
    deliveries = sink.store / "deliveries"
    target = delta(str(sink.root))
    deliveries.write_text("".join(f"{json.dumps(Delivery(target, each, {}).to_json())}\n" for each in versions))
    command = [sys.executable, str(Path(__file__).with_name("commit_deliveries.py")), str(sink.store), str(deliveries)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
