"""Delta Lake as a target: an epoch's files and its marker in one commit, whoever writes, compacts or is killed beside.

What is in a table, DuckDB and delta-rs tell.
"""

# ruff: noqa: S608

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

from weir.connections import Connection, S3Account
from weir.dataflow import delta
from weir.errors import Misconfigured, Retryable
from weir.sinks import Delivery, Outcome, TargetAway, Version, VersionFile, folders
from weir.sinks.opening import open_target
from weir.sinks.targets import delta as module
from weir.sinks.targets.delta import DeltaTarget
from weir_dev.servers.s3 import client_of, running_s3

DAY, NEXT = "20130101T000000Z", "20130102T000000Z"
OWNER = "flow.delays"
LONG = (("k", "long", pa.int64()),)


def spark_schema(columns):
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in columns]
    return json.dumps({"type": "struct", "fields": fields})


class Reach:
    """Files below a folder, which are on a local disk, or are not; `before` is called before a file is put."""

    def __init__(self, folder, *, is_local=True, connection=None, before=lambda: None):
        self.folder, self.is_local, self.found, self.before = folder, is_local, connection, before

    def open(self, file):
        return (self.folder / file.path).open("rb")

    def local_path(self, file):
        self.before()
        return str(self.folder / file.path) if self.is_local else None

    def url(self, file):
        return f"file://{self.folder}/{file.path}"

    def connection(self, conn_id):
        assert conn_id == "aws_id"
        return self.found


class Sink:
    """A sink, its versions, and what foreign readers see in its table."""

    def __init__(self, folder):
        self.store, self.root = folder / "store", folder / "a lake" / "delays"
        self.store.mkdir()
        self.root.parent.mkdir()
        self.made = 0

    def target(self, reach=None, **options):
        declared = delta(str(self.root), **{"create": "if_missing", **options})
        return DeltaTarget(declared.options, reach or Reach(self.store))

    def version(self, number, *parts, epoch=DAY, columns=LONG, sink="delays", **writing):
        """A version of a file for each part; equal rows have equal digests. Rows of one column are plain values."""
        made = []
        for part in parts:
            self.made += 1
            path = self.store / f"{self.made}.parquet"
            rows = [row if isinstance(row, tuple) else (row,) for row in part]
            arrays = [pa.array([row[at] for row in rows], kind) for at, (_, _, kind) in enumerate(columns)]
            pq.write_table(pa.table(arrays, names=[name for name, _, _ in columns]), path, **writing)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            made.append(VersionFile(path.name, path.stat().st_size, len(part), sha256))
        return Version(
            dataflow="flow",
            sink=sink,
            epoch=epoch,
            number=number,
            attempt=f"t0001-{self.made:012}",
            digest=repr(sorted((row for part in parts for row in part), key=repr)),
            spark_schema=spark_schema(columns),
            files=tuple(made),
        )

    def publish(self, version, reach=None, **options):
        target = self.target(reach, **options)
        return target.commit(version, target.prepare(version, None))

    @property
    def table(self):
        return DeltaTable(str(self.root))

    def rows(self, epoch=DAY):
        """The rows of an epoch as DuckDB and as delta-rs see them."""
        table = self.table
        names = ", ".join(f'"{field.name}"' for field in table.schema().fields if field.name != "_epoch")
        seen = duckdb.from_arrow(table.to_pyarrow_dataset()).query(
            "t", f"select {names} from t where _epoch = '{epoch}'"
        )
        by_delta = QueryBuilder().register("t", table).execute(f"select {names} from t where _epoch = '{epoch}'")
        found = sorted(seen.fetchall(), key=repr)
        assert len(found) == pa.table(by_delta.read_all()).num_rows
        return [row[0] if len(row) == 1 else row for row in found]

    def append(self, *rows, epoch=None):
        """What a foreign writer appends."""
        given = pa.table({"k": pa.array(rows, pa.int64()), "_epoch": pa.array([epoch] * len(rows), pa.string())})
        write_deltalake(str(self.root), given, mode="append", schema_mode="merge")

    def commits(self):
        """Our commits of rows, the newest first."""
        return [each["weir"] for each in self.table.history() if "weir" in each]

    @property
    def files(self):
        return sorted(path for path in self.root.rglob("*.parquet") if "_delta_log" not in path.parts)


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


def test_nothing_is_visible_before_the_commit(sink):
    sink.target().prepare(sink.version(1, [1]), None)
    assert (sink.rows(), sink.files, sink.table.version()) == ([], [], 0)


def test_equal_content_makes_no_version_of_the_table(sink):
    sink.publish(sink.version(1, [1], [2]))
    before = sink.table.version()
    assert sink.publish(sink.version(2, [2, 1])) is Outcome.EQUAL
    assert sink.table.version() == before


def test_content_goes_from_one_to_another_and_back(sink):
    given = ([1, 2], [3], [], [1, 2], [1, 2, 3, 4])
    for number, rows in enumerate(given, 1):
        assert sink.publish(sink.version(number, *([rows] if rows else []))) is Outcome.COMMITTED
        assert sink.rows() == rows
    assert sink.publish(sink.version(2, [3])) is Outcome.SUPERSEDED


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


def test_files_are_linked_on_one_file_system_and_copied_else(sink):
    target, version = sink.target(), sink.version(1, [1])
    target.commit(version, {})
    assert [each.stat().st_nlink for each in sink.files] == [2]
    assert (target._folder.put_bytes.linked, target._folder.put_bytes.copied) == (version.files[0].bytes, 0)
    target, version = sink.target(Reach(sink.store, is_local=False)), sink.version(2, [2])
    target.commit(version, {})
    assert [each.stat().st_nlink for each in sink.files] == [2, 1]
    assert (target._folder.put_bytes.linked, target._folder.put_bytes.copied) == (0, version.files[0].bytes)
    assert sink.rows() == [2]


def test_what_the_store_deletes_stays_in_the_table_and_a_vacuum_leaves_the_store_alone(sink):
    first, second = sink.version(1, [1]), sink.version(2, [2])
    sink.publish(first)
    sink.publish(second)
    sink.table.optimize.compact()
    assert len(vacuum(sink, full=True)) == 1
    assert pq.read_table(sink.store / first.files[0].path)["k"].to_pylist() == [1]
    (sink.store / second.files[0].path).unlink()
    assert sink.rows() == [2]


def test_an_old_file_is_copied_since_a_vacuum_would_take_its_link_for_an_orphan(sink):
    version = sink.version(1, [1])
    old = time.time() - folders.LINK_SECONDS - 60
    os.utime(sink.store / version.files[0].path, (old, old))
    sink.publish(version)
    assert [(each.stat().st_nlink, each.stat().st_mtime > old + 60) for each in sink.files] == [(1, True)]


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


def test_a_file_that_is_damaged_in_the_store_is_not_copied(sink):
    version = sink.version(1, [1])
    path = sink.store / version.files[0].path
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(Retryable, match="damaged: expected"):
        sink.publish(version, Reach(sink.store, is_local=False))
    assert sink.files == []


# Several processes


def test_one_version_committed_by_several_processes_at_once_is_there_once(sink):
    version = sink.version(1, [1], [2])
    sink.target().prepare(version, None)
    seen = at_once([lambda: sink.target().commit(version, {}) for _ in range(4)])
    assert seen == [Outcome.COMMITTED] * 4
    assert (sink.rows(), len(sink.commits())) == ([1, 2], 1)


def test_an_older_version_never_takes_the_place_of_a_newer_one(sink):
    versions = [sink.version(number, [number]) for number in range(1, 6)]
    sink.target().prepare(versions[0], None)
    seen = at_once([lambda each=each: sink.target().commit(each, {}) for each in reversed(versions)])
    assert set(seen) <= {Outcome.COMMITTED, Outcome.SUPERSEDED}
    assert sink.rows() == [5]
    numbers = [each["number"] for each in sink.commits()]
    assert numbers == sorted(set(numbers), reverse=True)


def test_several_processes_create_one_table(sink):
    versions = [sink.version(1, [day], epoch=f"201301{day:02}T000000Z") for day in range(1, 5)]
    assert set(at_once([lambda each=each: sink.publish(each) for each in versions])) == {Outcome.COMMITTED}
    assert [sink.rows(each.epoch) for each in versions] == [[1], [2], [3], [4]]


def at_once(acts):
    seen = [None] * len(acts)

    def run(place):
        seen[place] = acts[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def killed_at(line, act):
    """Call `act`, and kill it at the n-th line of the target's modules that it comes to; whether it came to that.

    A line counts once, however often it is come to.
    """
    seen = set()
    ours = {module.__file__, folders.__file__}

    def trace(frame, event, _argument):
        if frame.f_code.co_filename not in ours:
            return None
        if event == "line" and (place := (frame.f_code, frame.f_lineno)) not in seen:
            seen.add(place)
            if len(seen) == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


class HalfLocal(Reach):
    """Every second file is on a local disk."""

    def local_path(self, file):
        return super().local_path(file) if int(file.path.partition(".")[0]) % 2 else None


def test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent(sink):
    number, line, rows, kills = 1, 0, [1, 2], 0
    sink.publish(sink.version(1, [1], [2]))
    reach = HalfLocal(sink.store)
    while True:
        line += 1
        number += 1
        before, rows = rows, [number * 10, number * 10 + 1]
        target, version = sink.target(reach), sink.version(number, rows[:1], rows[1:])
        is_killed = killed_at(line, lambda target=target, version=version: target.commit(version, {}))
        seen = sorted(sink.table.to_pyarrow_table()["k"].to_pylist())
        assert seen in (before, rows), line
        assert target.recover(version, {}) is (Outcome.COMMITTED if seen == rows else Outcome.ABSENT)
        assert target.commit(version, {}) is Outcome.COMMITTED
        kills += is_killed
        if line % 10 == 0:
            sink.table.create_checkpoint()  # a long log takes long to read
        if not is_killed:
            break
    assert kills > 60
    assert sink.rows() == rows
    assert [each["number"] for each in sink.commits()] == list(range(number, 0, -1))


@pytest.mark.parametrize("error", [CommitFailedError, OSError])
def test_an_answer_that_was_lost_is_found(sink, monkeypatch, error):
    target, version = sink.target(), sink.version(1, [1])

    def lose():
        raise error("the answer is lost")

    beside(monkeypatch, lose, after=True)
    if error is OSError:  # unknown: the caller comes again
        with pytest.raises(TargetAway, match="the answer is lost"):
            target.commit(version, {})
    assert target.commit(version, {}) is Outcome.COMMITTED
    assert (sink.rows(), len(sink.commits())) == ([1], 1)


def test_a_reader_sees_whole_versions_only(sink):
    sink.publish(sink.version(1, [1] * 5, [1] * 5))
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.add(tuple(sink.table.to_pyarrow_table()["k"].to_pylist()))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 20):
        sink.publish(sink.version(number, [number] * 5, [number] * 5))
    stop.set()
    reader.join()
    assert seen
    assert all(len(rows) == 10 and len(set(rows)) == 1 for rows in seen)


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
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.0)
    with pytest.raises(TargetAway, match="was changed by others 20 times"):
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


# Columns


NESTED = (
    ("s", "string", pa.string()),
    ("d", "decimal(12,2)", pa.decimal128(12, 2)),
    ("t", "timestamp", pa.timestamp("us", "UTC")),
    ("day", "date", pa.date32()),
    ("b", "binary", pa.binary()),
    ("l", {"type": "array", "elementType": "integer", "containsNull": True}, pa.list_(pa.int32())),
    (
        "m",
        {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True},
        pa.map_(pa.string(), pa.float64()),
    ),
    (
        "r",
        {"type": "struct", "fields": [{"name": "x", "type": "short", "nullable": True, "metadata": {}}]},
        pa.struct([("x", pa.int16())]),
    ),
)


def test_all_types_null_and_the_empty_text_come_back_as_they_were(sink):
    at = datetime(2013, 1, 1, 12, tzinfo=UTC)
    full = ("", Decimal("-1.50"), at, date(1969, 12, 31), b"\x00", [1, None], {"a": None}, {"x": -3})
    empty = (None,) * 8
    given = (*full[:6], list(full[6].items()), full[7])
    sink.publish(sink.version(1, [given, empty], columns=NESTED))
    assert sorted(sink.rows(), key=repr) == sorted([full, empty], key=repr)


def test_timestamps_as_older_sparks_write_them_are_read(sink):
    columns = (("t", "timestamp", pa.timestamp("us", "UTC")),)
    version = sink.version(
        1, [datetime(1950, 1, 1, 12, tzinfo=UTC)], columns=columns, use_deprecated_int96_timestamps=True
    )
    sink.publish(version)
    assert sink.rows() == [datetime(1950, 1, 1, 12, tzinfo=UTC)]


def test_timestamps_without_a_zone_need_a_table_that_knows_them(sink):
    columns = (*LONG, ("z", "timestamp_ntz", pa.timestamp("us")))
    sink.publish(sink.version(1, [1]))
    version = sink.version(2, [(1, datetime(2013, 1, 1))], columns=columns)  # noqa: DTZ001
    with pytest.raises(Misconfigured, match="no timestamps without a zone"):
        sink.publish(version)
    assert sink.rows() == [1]


def test_a_new_table_knows_timestamps_without_a_zone(sink):
    columns = (("z", "timestamp_ntz", pa.timestamp("us")),)
    sink.publish(sink.version(1, [datetime(2013, 1, 1)], columns=columns))  # noqa: DTZ001
    assert sink.rows() == [datetime(2013, 1, 1)]  # noqa: DTZ001


def test_columns_are_added_and_widened_in_the_commit_that_needs_them(sink):
    narrow = (("a", "integer", pa.int32()), ("f", "float", pa.float32()), ("d", "decimal(4,2)", pa.decimal128(4, 2)))
    wide = (
        ("a", "long", pa.int64()),
        ("f", "double", pa.float64()),
        ("d", "decimal(20,2)", pa.decimal128(20, 2)),
        ("s", "string", pa.string()),
    )
    sink.publish(sink.version(1, [(1, 1.5, Decimal("1.25"))], columns=narrow))
    target, version = sink.target(), sink.version(1, [(2**40, 0.1, Decimal(10**12), "x")], epoch=NEXT, columns=wide)
    token = target.prepare(version, None)
    assert len(sink.table.schema().fields) == 4
    before = sink.table.version()
    assert target.commit(version, token) is Outcome.COMMITTED
    assert sink.table.version() == before + 1
    assert (sink.rows(), sink.rows(NEXT)) == ([(1, 1.5, Decimal("1.25"), None)], [(2**40, 0.1, Decimal(10**12), "x")])
    assert sink.publish(sink.version(2, [(3, 2.5, Decimal("2.25"))], columns=narrow)) is Outcome.COMMITTED
    assert sink.rows() == [(3, 2.5, Decimal("2.25"), None)]
    assert str(sink.table.schema().fields[0].type) == 'PrimitiveType("long")'


def test_structs_get_more_fields(sink):
    def columns(*fields):
        kind = {
            "type": "struct",
            "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t, _ in fields],
        }
        array = {"type": "array", "elementType": kind, "containsNull": True}
        return (("r", array, pa.list_(pa.struct([(n, arrow) for n, _, arrow in fields]))),)

    x, wide, y = ("x", "integer", pa.int32()), ("x", "long", pa.int64()), ("y", "string", pa.string())
    sink.publish(sink.version(1, [[{"x": 1}, None]], columns=columns(x)))
    sink.publish(sink.version(1, [[{"x": 2**40, "y": "a"}]], columns=columns(wide, y), epoch=NEXT))
    assert sink.rows() == [[{"x": 1, "y": None}, None]]
    assert sink.rows(NEXT) == [[{"x": 2**40, "y": "a"}]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((("k", "string", pa.string()),), "k is bigint, expected string"),
        ((("K", "long", pa.int64()),), "K is spelled k"),
        ((("_epoch", "string", pa.string()),), "_epoch is the epoch's"),
        ((("a b", "long", pa.int64()),), "'a b' cannot be published"),
        ((("i", "interval day to second", pa.int64()),), "no type for the column 'i'"),
    ],
)
def test_columns_that_the_table_cannot_have_are_refused(sink, columns, message):
    sink.publish(sink.version(1, [1]))
    before = sink.table.version()
    with pytest.raises(Misconfigured, match=message):
        sink.target().prepare(sink.version(2, [], columns=columns), None)
    assert sink.table.version() == before


def test_without_create_a_table_and_its_columns_must_be_there(sink):
    version = sink.version(1, [1])
    with pytest.raises(Misconfigured, match=r"does not exist: declare create="):
        sink.publish(version, create="never")
    sink.publish(version)
    more = (*LONG, ("s", "string", pa.string()))
    with pytest.raises(Misconfigured, match=r"s is missing, expected string: declare create="):
        sink.publish(sink.version(2, [(1, "x")], columns=more), create="never")
    assert sink.publish(sink.version(2, [2]), create="never") is Outcome.COMMITTED


@pytest.mark.parametrize(
    ("condition", "count"), [("k = 2", 1), ("f = 0.5", 1), ("s > 'b'", 1), ("s is null", 2), ("later is null", 3)]
)
def test_no_reader_loses_rows_by_statistics(sink, condition, count):
    columns = (*LONG, ("f", "double", pa.float64()), ("s", "string", pa.string()))
    sink.publish(sink.version(1, [(1, 0.5, "x" * 200), (2, None, None), (3, float("nan"), None)], columns=columns))
    sink.append(7)  # by a writer that gives minima and maxima
    sink.table.alter.add_columns(Field("later", "long"))
    condition = f"_epoch = '{DAY}' and {condition}"  # delta-rs' dataset loses the row of the other writer
    found = duckdb.from_arrow(sink.table.to_pyarrow_dataset())
    assert len(found.filter(condition).fetchall()) == count
    by_delta = QueryBuilder().register("t", sink.table).execute(f"select k from t where {condition}")
    assert pa.table(by_delta.read_all()).num_rows == count


# Tables of others


def made_table(sink, columns=(("k", "long"), ("_epoch", "string")), *, partition="_epoch", **properties):
    given = [Field(name, kind) if isinstance(name, str) else name for name, kind in columns]
    DeltaTable.create(
        str(sink.root), Schema(given), partition_by=[partition] if partition else None, configuration=properties
    )


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"delta.appendOnly": "true"}, "delta.appendOnly is set"),
        ({"delta.enableDeletionVectors": "true"}, "has the feature deletionVectors"),
        ({"delta.columnMapping.mode": "name"}, "maps columns by name"),
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "would drop the markers"),
        ({"partition": None}, "partitioned by nothing, expected _epoch"),
        ({"partition": "k"}, "partitioned by k, expected _epoch"),
    ],
)
def test_tables_whose_promises_files_would_break_are_refused_before_anything_is_published(sink, properties, message):
    made_table(sink, **properties)
    with pytest.raises(Misconfigured, match=message):
        sink.target().prepare(sink.version(1, [1]), None)
    assert sink.table.version() == 0


def test_a_table_with_a_constraint_is_refused(sink):
    made_table(sink)
    sink.table.alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(Misconfigured, match=r"the constraint delta\.constraints\.positive"):
        sink.publish(sink.version(1, [1]))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field("g", "long", metadata={"delta.generationExpression": "k + 1"}), "g has delta.generationExpression"),
        (Field("n", "long", nullable=False), "n is not null, and is no column of the data set"),
    ],
)
def test_columns_of_a_table_that_weir_cannot_fill_are_refused(sink, field, message):
    made_table(sink, (("k", "long"), (field, None), ("_epoch", "string")))
    with pytest.raises(Misconfigured, match=message):
        sink.publish(sink.version(1, [1]))


def test_a_column_without_nulls_takes_rows_without_nulls(sink):
    made_table(sink, ((Field("k", "long", nullable=False), None), ("_epoch", "string")))
    sink.publish(sink.version(1, [1]))
    with pytest.raises(Misconfigured, match="allows no null in the column k"):
        sink.target().prepare(sink.version(2, [2], [None]), None)
    assert sink.rows() == [1]


def test_a_table_that_was_made_by_somebody_keeps_its_description_and_comments(sink):
    made_table(sink, ((Field("k", "long", metadata={"comment": "the key"}), None), ("_epoch", "string")))
    sink.table.alter.set_table_description("delays of all days")
    sink.publish(sink.version(1, [(1, "x")], columns=(*LONG, ("s", "string", pa.string()))))
    assert sink.table.metadata().description == "delays of all days"
    assert [(each.name, each.metadata) for each in sink.table.schema().fields] == [
        ("k", {"comment": "the key"}),
        ("_epoch", {}),
        ("s", {}),
    ]


def test_a_table_belongs_to_one_sink_until_a_person_says_otherwise(sink):
    sink.publish(sink.version(1, [1]))
    other = sink.version(1, [2], sink="others")
    with pytest.raises(Misconfigured, match=r"published by flow\.delays, and flow\.others would replace"):
        sink.publish(other)
    sink.table.alter.set_table_properties({"weir.owner": "flow.others"}, raise_if_not_exists=False)
    assert sink.publish(other) is Outcome.COMMITTED
    assert sink.rows() == [2]


def test_a_disk_that_is_not_there_is_away(sink):
    version = sink.version(1, [1])
    sink.root.parent.rmdir()
    with pytest.raises(TargetAway, match="cannot be reached"):
        sink.target().prepare(version, None)
    assert not sink.root.parent.exists()


# An epoch that is taken back


def test_an_epoch_is_taken_back_and_comes_again(sink):
    first, second = sink.version(1, [1]), sink.version(2, [2])
    sink.publish(first)
    sink.publish(sink.version(1, [9], epoch=NEXT))
    sink.append(100)
    sink.publish(second)
    assert sink.target().rollback(OWNER, DAY, {})
    assert (sink.rows(), sink.rows(NEXT), sink.target().recover(second, {})) == ([], [9], Outcome.ABSENT)
    before = sink.table.version()
    assert not sink.target().rollback(OWNER, DAY, {})
    assert sink.table.version() == before
    assert sink.publish(second) is Outcome.COMMITTED
    assert sink.rows() == [2]
    assert sink.target().rollback(OWNER, DAY, {})
    assert sink.publish(first) is Outcome.COMMITTED
    assert sink.rows() == [1]


def test_an_epoch_of_others_is_not_taken_back(sink):
    assert not sink.target().rollback(OWNER, DAY, {})
    made_table(sink)
    sink.append(1, epoch=DAY)
    assert not sink.target().rollback(OWNER, DAY, {})
    assert sink.rows() == [1]


def test_an_epoch_is_taken_back_beside_foreign_commits(sink, monkeypatch):
    sink.publish(sink.version(1, [1], [2]))
    beside(monkeypatch, sink.table.optimize.compact)
    assert sink.target().rollback(OWNER, DAY, {})
    assert sink.rows() == []


# S3


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as server:
        server.make_bucket("lake")
        server.make_bucket("store")
        yield server


@pytest.fixture
def account(s3_server):
    return Connection(
        id="aws_id",
        kind="aws",
        login="weir",
        password="hush-hush",
        extra={"endpoint_url": s3_server.url, "region_name": "us-east-1"},
    )


class S3Reach(Reach):
    """Files that are below a folder and, if that is said, in a bucket as well."""

    def __init__(self, folder, connection, client=None):
        super().__init__(folder, is_local=False, connection=connection)
        self.client, self.opened = client, []

    def open(self, file):
        self.opened.append(file.path)
        return super().open(file)

    def url(self, file):
        if self.client is None:
            return super().url(file)
        self.client.put_object(Bucket="store", Key=f"results/{file.path}", Body=(self.folder / file.path).read_bytes())
        return f"s3://store/results/{file.path}"


class S3Sink(Sink):
    """A sink whose table is on S3."""

    def __init__(self, folder, account, server):
        super().__init__(folder)
        self.account, self.server = account, server
        self.root = f"s3://lake/{folder.name}/delays"
        self.storage = S3Account.of_connection(account).for_object_store()

    def target(self, reach=None, **options):
        declared = delta(self.root, **{"conn_id": "aws_id", "create": "if_missing", **options})
        return DeltaTarget(declared.options, reach or S3Reach(self.store, self.account))

    @property
    def table(self):
        return DeltaTable(self.root, storage_options=self.storage)


@pytest.fixture
def on_s3(tmp_path, account, s3_server):
    return S3Sink(tmp_path, account, s3_server)


def test_a_table_on_s3_is_published_into_as_one_on_a_disk(on_s3):
    target, first = on_s3.target(), on_s3.version(1, [1, 2], [3])
    token = target.prepare(first, None)
    assert (target.recover(first, token), on_s3.rows()) == (Outcome.ABSENT, [])
    assert [target.commit(first, token) for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert target._folder.put_bytes.copied == sum(file.bytes for file in first.files)
    assert on_s3.publish(on_s3.version(2, [1], [2, 3])) is Outcome.EQUAL
    assert on_s3.publish(on_s3.version(3, [7])) is Outcome.COMMITTED
    assert on_s3.rows() == [7]
    assert on_s3.target().rollback(OWNER, DAY, {})
    assert on_s3.rows() == []


def test_files_of_a_store_on_the_same_s3_are_copied_there(on_s3, s3_server):
    reach = S3Reach(on_s3.store, on_s3.account, client_of(s3_server.url))
    target, version = on_s3.target(reach), on_s3.version(1, [1])
    assert target.commit(version, {}) is Outcome.COMMITTED
    put_bytes = target._folder.put_bytes
    assert (put_bytes.copied_by_server, put_bytes.copied) == (version.files[0].bytes, 0)
    assert (on_s3.rows(), reach.opened) == ([1], [])


def test_a_large_file_is_copied_in_parts(on_s3, monkeypatch):
    monkeypatch.setattr(folders, "_PART", 5 * 2**20)  # the least that S3 takes
    rows = [os.urandom(2**20) for _ in range(6)]
    version = on_s3.version(1, rows, columns=(("k", "binary", pa.binary()),))
    assert version.files[0].bytes > 6 * 2**20
    assert on_s3.publish(version) is Outcome.COMMITTED
    assert sorted(on_s3.table.to_pyarrow_table()["k"].to_pylist()) == sorted(rows)


def test_of_racing_processes_on_s3_each_version_is_committed_once(on_s3):
    versions = [on_s3.version(number, [number]) for number in (1, 1, 1, 2, 3, 4)]
    versions[1:3] = [versions[0]] * 2
    on_s3.target().prepare(versions[0], None)
    seen = at_once([lambda each=each: on_s3.target().commit(each, {}) for each in versions])
    assert set(seen) <= {Outcome.COMMITTED, Outcome.SUPERSEDED}
    assert on_s3.rows() == [4]
    numbers = [each["number"] for each in on_s3.commits()]
    assert numbers == sorted(set(numbers), reverse=True)


def test_without_a_connection_the_environment_gives_the_account(on_s3, s3_server, monkeypatch):
    given = {"ACCESS_KEY_ID": "weir", "SECRET_ACCESS_KEY": "x", "ENDPOINT_URL": s3_server.url, "REGION": "us-east-1"}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert on_s3.publish(on_s3.version(1, [1]), conn_id="") is Outcome.COMMITTED
    assert on_s3.rows() == [1]


def test_a_bucket_that_is_not_there_is_a_persons_matter(on_s3):
    on_s3.root = "s3://lakes/delays"
    with pytest.raises(Misconfigured, match="there is no bucket lakes: create it first"):
        on_s3.publish(on_s3.version(1, [1]))


def test_an_s3_that_does_not_answer_is_away(on_s3, s3_server, monkeypatch):
    monkeypatch.setattr(folders, "_S3_SECONDS", 0.5)
    version = on_s3.version(1, [1])
    with s3_server.suspended(), pytest.raises(TargetAway, match="cannot be reached"):
        on_s3.target().prepare(version, None)
    assert on_s3.publish(version) is Outcome.COMMITTED


# Declarations


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("lake/delays", {}, "absolute path"),
        ("/", {}, "absolute path"),
        ("/lake/../delays", {}, "absolute path"),
        ("s3://bucket", {}, "absolute path"),
        ("gs://bucket/delays", {}, "absolute path"),
        ("/lake/delays", {"conn_id": "aws_id"}, "table on S3"),
        ("/lake/delays", {"partition": "a b"}, "a name such as"),
        ("/lake/delays", {"create": "always"}, "create must be"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(path, options, message):
    with pytest.raises(Misconfigured, match=message):
        delta(path, **options)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(Misconfigured, match=r"pip install 'weir\[delta\]' where Airflow's tasks run"):
        open_target(delta("/lake/delays"), None)


# Processes that are killed


@pytest.mark.soak
def test_processes_that_are_killed_at_random_leave_whole_versions(sink):
    """Each of a hundred is killed while it commits; a reader and foreign writers are beside."""
    sink.publish(sink.version(1, [1] * 5, [1] * 5))
    seen, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            found = duckdb.from_arrow(sink.table.to_pyarrow_dataset())
            seen.append(tuple(row[0] for row in found.filter(f"_epoch = '{DAY}'").project("k").fetchall()))

    def write():
        while not stop.is_set():
            with suppress(CommitFailedError):
                sink.append(-1)
                sink.table.optimize.compact()
            stop.wait(0.1)

    others = [threading.Thread(target=act) for act in (read, write)]
    for each in others:
        each.start()
    random, number, landed = Random(19), 1, 0
    for _ in range(100):
        versions = [sink.version(number + more, [number + more] * 5, [number + more] * 5) for more in range(1, 7)]
        number += len(versions)
        kill_while_committing(sink, versions, random.uniform(0, 0.3))
        outcomes = [sink.target().recover(each, {}) for each in versions]
        landed += outcomes[0] is not Outcome.ABSENT and outcomes[-1] is Outcome.ABSENT
        assert sink.target().commit(versions[-1], {}) is Outcome.COMMITTED
        assert sink.rows() == [number] * 10
    stop.set()
    for each in others:
        each.join()
    assert landed > 20
    assert len(seen) > 100
    assert all(len(rows) == 10 and len(set(rows)) == 1 for rows in seen)
    numbers = [each["number"] for each in sink.commits()]
    assert numbers == sorted(set(numbers), reverse=True)


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
