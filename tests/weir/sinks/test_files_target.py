"""Files as a target: an epoch's folder changes at once, whatever is killed, damaged or in the way."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from weir.dataflow import files
from weir.errors import Misconfigured
from weir.sinks import Outcome, TargetAway, TargetConflict, Version, VersionFile
from weir.sinks.targets import files as module
from weir.sinks.targets.files import FilesTarget, partition_value

DAY, NEXT = "20130101T000000Z", "20130102T000000Z"


class Reach:
    """Files below a folder, which are on a local disk, or are not."""

    def __init__(self, folder, *, is_local=True):
        self.folder, self.is_local = folder, is_local

    def open(self, file):
        return (self.folder / file.path).open("rb")

    def local_path(self, file):
        return str(self.folder / file.path) if self.is_local else None


class Sink:
    def __init__(self, folder):
        self.store, self.root = folder / "store", folder / "lake" / "delays"
        self.store.mkdir()
        self.root.parent.mkdir()
        self.made = 0

    def target(self, *, is_local=True):
        return FilesTarget(files(str(self.root), partition="day").options, Reach(self.store, is_local=is_local))

    def version(self, number, *parts, epoch=DAY, sink="delays"):
        """A version of a file for each part; equal rows have equal digests."""
        made = []
        for part in parts:
            self.made += 1
            path = self.store / f"{self.made}.parquet"
            pq.write_table(pa.table({"k": pa.array(part, pa.int64())}), path)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            made.append(VersionFile(path.name, path.stat().st_size, len(part), sha256))
        return Version(
            dataflow="flow",
            sink=sink,
            epoch=epoch,
            number=number,
            attempt=f"t0001-{self.made:012}",
            digest=repr(sorted(row for part in parts for row in part)),
            spark_schema="",
            files=tuple(made),
        )

    def publish(self, version, **options):
        target = self.target(**options)
        return target.commit(version, target.prepare(version, None))

    def rows(self):
        found = ds.dataset(self.root, format="parquet", partitioning="hive").to_table()
        columns = [found[name].to_pylist() if name in found.column_names else [] for name in ("day", "k")]
        return sorted(zip(*columns, strict=True))

    @property
    def versions(self):
        return sorted(each.name for each in (self.root.parent / ".delays.versions").iterdir() if each.is_dir())


@pytest.fixture
def sink(tmp_path):
    return Sink(tmp_path)


def test_an_epoch_is_replaced_as_a_whole_and_a_version_is_committed_once(sink):
    target, first, second = sink.target(), sink.version(1, [1, 2], [3]), sink.version(2, [7])
    sink.publish(sink.version(1, [9], epoch=NEXT))
    token = target.prepare(first, None)
    assert target.recover(first, token) is Outcome.ABSENT
    assert [target.commit(first, token) for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert sink.rows() == [("2013-01-01", 1), ("2013-01-01", 2), ("2013-01-01", 3), ("2013-01-02", 9)]
    assert sink.publish(second) is Outcome.COMMITTED
    assert [target.commit(first, token), target.recover(first, token)] == [Outcome.SUPERSEDED] * 2
    assert sink.rows() == [("2013-01-01", 7), ("2013-01-02", 9)]


def test_nothing_is_visible_before_the_commit(sink):
    sink.target().prepare(sink.version(1, [1]), None)
    assert list(sink.root.iterdir()) == []
    assert sink.versions == []


def test_equal_content_makes_no_version(sink):
    sink.publish(sink.version(1, [1]))
    before = (sink.root / "day=2013-01-01").readlink()
    assert sink.publish(sink.version(2, [1])) is Outcome.EQUAL
    assert (sink.root / "day=2013-01-01").readlink() == before


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), Path.unlink])
def test_equal_content_replaces_files_that_are_damaged_or_gone(sink, damage):
    sink.publish(sink.version(1, [1], [2]))
    damage(next((sink.root / "day=2013-01-01").glob("*.parquet")))
    assert sink.publish(sink.version(2, [1], [2])) is Outcome.COMMITTED
    assert sink.rows() == [("2013-01-01", 1), ("2013-01-01", 2)]


def test_an_epoch_without_rows_is_published_too(sink):
    sink.publish(sink.version(1, [1]))
    assert sink.publish(sink.version(2)) is Outcome.COMMITTED
    assert sink.rows() == []


def test_files_are_linked_on_one_file_system_and_copied_else(sink):
    sink.publish(sink.version(1, [1]))
    assert {each.stat().st_nlink for each in (sink.root / "day=2013-01-01").glob("*.parquet")} == {2}
    sink.publish(sink.version(2, [2]), is_local=False)
    assert {each.stat().st_nlink for each in (sink.root / "day=2013-01-01").glob("*.parquet")} == {1}
    assert sink.rows() == [("2013-01-01", 2)]


def test_what_the_store_deletes_stays_in_the_target(sink):
    version = sink.version(1, [1])
    sink.publish(version)
    (sink.store / version.files[0].path).unlink()
    assert sink.rows() == [("2013-01-01", 1)]


def killed_at(line, act):
    """Call `act`, and kill it at the n-th line of the target's module that it comes to; whether it came to that."""
    left = [line]

    def trace(frame, event, _argument):
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
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


def test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent(sink, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_SECONDS", -1.0)  # each commit comes to as many lines
    number = 1
    sink.publish(sink.version(1, [1], [2]))
    rows, line, kills = [1, 2], 0, 0
    while True:
        line += 1
        number += 1
        before, rows = rows, [number * 10, number * 10 + 1]
        target, version = sink.target(), sink.version(number, rows[:1], rows[1:])
        token = target.prepare(version, None)
        is_killed = killed_at(line, lambda target=target, version=version, token=token: target.commit(version, token))
        seen = [k for _, k in sink.rows()]
        assert seen in (before, rows), line
        assert target.recover(version, token) is (Outcome.COMMITTED if seen == rows else Outcome.ABSENT)
        assert target.commit(version, token) is Outcome.COMMITTED
        assert [k for _, k in sink.rows()] == rows
        kills += is_killed
        if not is_killed:
            break
    assert kills > 50


def test_a_reader_sees_whole_versions_only(sink):
    sink.publish(sink.version(1, [1] * 5, [1] * 5))
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            folder = (sink.root / "day=2013-01-01").resolve()  # as a reader that lists a folder once
            seen.add(tuple(sorted(ds.dataset(folder, format="parquet").to_table()["k"].to_pylist())))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 40):
        sink.publish(sink.version(number, [number] * 5, [number] * 5))
    stop.set()
    reader.join()
    assert seen
    assert all(len(rows) == 10 and len(set(rows)) == 1 for rows in seen)


def test_an_older_version_never_takes_the_place_of_a_newer_one(sink):
    """Four processes commit versions in any order: the newest stays."""
    versions = [sink.version(number, [number]) for number in range(1, 9)]
    tokens = [sink.target().prepare(each, None) for each in versions]
    threads = [
        threading.Thread(target=lambda each=each, token=token: sink.target().commit(each, token))
        for each, token in zip(reversed(versions), reversed(tokens), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.rows() == [("2013-01-01", 8)]


def test_replaced_versions_go_when_their_readers_had_time(sink):
    sink.publish(sink.version(1, [1]))
    sink.publish(sink.version(2, [2]))
    assert len(sink.versions) == 2
    old = time.time() - module.LEAVE_SECONDS - 60
    for each in (sink.root.parent / ".delays.versions").glob("2013-01-01-1-*"):
        os.utime(each, (old, old))
    sink.publish(sink.version(3, [3]))
    assert [name.split("-")[3] for name in sink.versions] == ["2", "3"]


def test_an_epoch_is_taken_out_until_a_newer_version_comes(sink):
    sink.publish(sink.version(1, [9], epoch=NEXT))
    target, first = sink.target(), sink.version(1, [1])
    token = target.prepare(first, None)
    assert target.rollback(first, token) is False
    target.commit(first, token)
    assert [target.rollback(first, token) for _ in range(2)] == [True, True]
    assert sink.rows() == [("2013-01-02", 9)]
    assert target.commit(first, token) is Outcome.COMMITTED
    assert sink.rows() == [("2013-01-02", 9)]
    assert sink.publish(sink.version(2, [1])) is Outcome.COMMITTED
    assert sink.rows() == [("2013-01-01", 1), ("2013-01-02", 9)]


def test_a_path_belongs_to_one_sink(sink):
    sink.publish(sink.version(1, [1]))
    with pytest.raises(Misconfigured, match=r"published by flow\.delays"):
        sink.publish(sink.version(1, [1], sink="others"))


def test_a_folder_of_somebody_else_is_not_replaced(sink):
    (sink.root / "day=2013-01-01").mkdir(parents=True)
    with pytest.raises(TargetConflict, match="move it away"):
        sink.publish(sink.version(1, [1]))
    assert (sink.root / "day=2013-01-01").is_dir()


def test_a_disk_that_is_not_there_is_away(sink):
    version = sink.version(1, [1])
    sink.root.parent.rmdir()
    with pytest.raises(TargetAway, match="cannot be reached"):
        sink.target().prepare(version, None)
    assert not sink.root.parent.exists()


def test_the_marker_tells_what_the_folder_holds(sink):
    version = sink.version(1, [1])
    sink.publish(version)
    marker = json.loads((sink.root / "day=2013-01-01" / "_weir.json").read_text())
    assert (marker["owner"], marker["epoch"], marker["number"], marker["rows"]) == ("flow.delays", DAY, 1, 1)


@pytest.mark.parametrize(("epoch", "value"), [(DAY, "2013-01-01"), ("20130101T050000Z", "2013-01-01 05%3A00%3A00")])
def test_an_epoch_is_its_day_or_its_time_as_hive_writes_it(epoch, value):
    assert partition_value(epoch) == value


@pytest.mark.parametrize("given", [("lake",), ("s3://bucket/lake",), ("/",), ("/lake", "a=b")])
def test_a_declaration_that_cannot_be_is_refused(given):
    with pytest.raises(Misconfigured, match="files"):
        files(given[0], partition=(*given, "day")[1])
