"""Files as a target: an epoch's folder changes at once, whatever is killed, damaged or in the way."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import files
from weir.errors import Misconfigured
from weir.sinks import Outcome, TargetAway, TargetConflict
from weir.sinks.targets import files as module
from weir.sinks.targets.files import FilesTarget, partition_value
from weir.testing.sink_contract import DAY, NEXT, LocalReach, SinkContract, Versions


class Sink:
    """A sink, its versions, and what a foreign reader sees in its folder."""

    def __init__(self, folder):
        self.store, self.root = folder / "store", folder / "lake" / "delays"
        self.store.mkdir()
        self.root.parent.mkdir()
        self.version = Versions(self.store).version

    def target(self, *, is_local=True):
        return FilesTarget(files(str(self.root), partition="day").options, LocalReach(self.store, is_local=is_local))

    def publish(self, version, **options):
        target = self.target(**options)
        return target.commit(version, target.prepare(version, None))

    def rows(self):
        return read(self.root)

    @property
    def versions(self):
        return sorted(each.name for each in (self.root.parent / ".delays.versions").iterdir() if each.is_dir())


def read(root):
    """What DuckDB finds, by the path that a user would write."""
    found = duckdb.read_parquet(f"{root}/day=*/*.parquet", hive_partitioning=True).project("day, k, s")
    return sorted((str(day), k, s) for day, k, s in found.fetchall())


@pytest.fixture
def sink(tmp_path):
    return Sink(tmp_path)


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def root(self, tmp_path, monkeypatch, request):
        self.path = tmp_path / "lake" / "delays"
        self.path.parent.mkdir()
        if "killed" in request.node.name:
            monkeypatch.setattr(module, "LEAVE_SECONDS", -1.0)  # each commit comes to as many lines

    def target(self, reach):
        return FilesTarget(files(str(self.path), partition="day").options, reach)

    def rows(self, epoch):
        folder = self.path / f"day={partition_value(epoch)}"
        if not folder.exists():
            return []
        found = ds.dataset(folder.resolve(), format="parquet").to_table()  # as a reader that lists a folder once
        return sorted(map(tuple, (each.values() for each in found.to_pylist())), key=repr)


def test_equal_content_makes_no_version(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    before = (sink.root / "day=2013-01-01").readlink()
    assert sink.publish(sink.version(2, [(1, "a")])) is Outcome.EQUAL
    assert (sink.root / "day=2013-01-01").readlink() == before


@pytest.mark.parametrize("partition", ["k", "K"])
def test_folders_are_not_named_like_a_column(sink, partition):
    target = FilesTarget(files(str(sink.root), partition=partition).options, LocalReach(sink.store))
    with pytest.raises(Misconfigured, check=of_kind("sinks.files_column_taken")):
        target.prepare(sink.version(1, [(1, "a")]), None)
    assert not sink.root.exists()


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), Path.unlink])
def test_equal_content_replaces_files_that_are_damaged_or_gone(sink, damage):
    sink.publish(sink.version(1, [(1, "a")], [(2, "a")]))
    damage(next((sink.root / "day=2013-01-01").glob("*.parquet")))
    assert sink.publish(sink.version(2, [(1, "a")], [(2, "a")])) is Outcome.COMMITTED
    assert sink.rows() == [("2013-01-01", 1, "a"), ("2013-01-01", 2, "a")]


@pytest.mark.parametrize("what", ["*.parquet", "_weir.json"])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"{"), Path.unlink])
def test_a_version_that_is_damaged_or_in_part_gone_comes_back_when_it_is_committed_again(sink, what, damage):
    version, target = sink.version(1, [(1, "a")]), sink.target()
    link = sink.root / "day=2013-01-01"
    sink.publish(version, is_local=False)  # a hard link would damage the store's file
    for _ in range(3):
        before = link.resolve()
        damage(next(link.glob(what)))
        assert sink.target().recover(version, {}) is Outcome.ABSENT
        assert sink.publish(version, is_local=False) is Outcome.COMMITTED
        assert sink.rows() == [("2013-01-01", 1, "a")]
        assert link.resolve() != before  # a reader of the old folder never sees a half-filled one
    assert target.commit(version, target.prepare(version, None)) is Outcome.COMMITTED
    assert len(sink.versions) == 2


def test_files_are_linked_on_one_file_system_and_copied_else(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    assert {each.stat().st_nlink for each in (sink.root / "day=2013-01-01").glob("*.parquet")} == {2}
    sink.publish(sink.version(2, [(2, "a")]), is_local=False)
    assert {each.stat().st_nlink for each in (sink.root / "day=2013-01-01").glob("*.parquet")} == {1}
    assert sink.rows() == [("2013-01-01", 2, "a")]


def test_what_the_store_deletes_stays_in_the_target(sink):
    version = sink.version(1, [(1, "a")])
    sink.publish(version)
    (sink.store / version.files[0].path).unlink()
    assert sink.rows() == [("2013-01-01", 1, "a")]


def test_replaced_versions_go_when_their_readers_had_time(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    sink.publish(sink.version(2, [(2, "a")]))
    assert len(sink.versions) == 2
    old = time.time() - module.LEAVE_SECONDS - 60
    for each in (sink.root.parent / ".delays.versions").glob("2013-01-01-1-*"):
        os.utime(each, (old, old))
    sink.publish(sink.version(3, [(3, "a")]))
    assert [name.split("-")[3] for name in sink.versions] == ["2", "3"]


def test_a_path_belongs_to_one_sink(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    with pytest.raises(Misconfigured, check=of_kind("sinks.files_owned_by_another", marker="contract.delays")):
        sink.publish(sink.version(1, [(1, "a")], sink="others"))


def test_a_path_belongs_to_one_sink_also_if_both_were_prepared_before_either_was_committed(sink):
    one, other = sink.version(1, [(1, "a")]), sink.version(1, [(2, "b")], sink="others")
    target = sink.target()
    tokens = [target.prepare(each, None) for each in (one, other)]
    assert target.commit(one, tokens[0]) is Outcome.COMMITTED
    assert target.recover(other, tokens[1]) is Outcome.ABSENT
    with pytest.raises(Misconfigured, check=of_kind("sinks.files_owned_by_another", marker="contract.delays")):
        target.commit(other, tokens[1])
    assert [row[1:] for row in sink.rows()] == [(1, "a")]


def test_a_sink_of_another_name_goes_on_in_a_folder(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    old(next((sink.root.parent / ".delays.versions").glob("2013-01-01-*")))
    sink.publish(sink.version(1, [(2, "b")], sink="others", epoch=NEXT))
    assert [row[1:] for row in sink.rows()] == [(1, "a"), (2, "b")]


def old(folder):
    """As if its readers had had time, and nobody had looked meanwhile."""
    before = time.time() - module.LEAVE_SECONDS - 60
    os.utime(folder, (before, before))


def of(sink, path, partition="day"):
    return FilesTarget(files(str(path), partition=partition).options, LocalReach(sink.store))


@pytest.mark.parametrize("spelled", ["{}/", "{}//", "{}/../delays", "link"])
def test_a_path_is_one_however_it_is_spelled(sink, spelled):
    sink.publish(sink.version(1, [(1, "a")]))
    (sink.root.parent / "link").symlink_to("delays")
    path = spelled.format(sink.root) if "{}" in spelled else sink.root.parent / spelled
    other = FilesTarget({"path": str(path), "partition": "epoch"}, LocalReach(sink.store))
    with pytest.raises(Misconfigured, check=of_kind("sinks.files_owned_by_another", marker="contract.delays")):
        other.prepare(sink.version(1, [(2, "b")], sink="others"), None)


def test_a_sink_whose_folders_get_another_name_keeps_those_that_it_had(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    renamed = of(sink, sink.root, "date")
    version = sink.version(2, [(2, "a")])
    (before,) = (sink.root.parent / ".delays.versions").glob("2013-01-01-1-*")
    old(before)
    assert renamed.commit(version, renamed.prepare(version, None)) is Outcome.COMMITTED
    assert sink.rows() == [("2013-01-01", 1, "a")]


def test_a_sink_publishes_through_a_linked_folder(sink):
    real = sink.root.parent.parent / "another disk" / "real"
    real.mkdir(parents=True)
    sink.root.symlink_to(real)
    sink.publish(sink.version(1, [(1, "a")]))
    assert sink.rows() == [("2013-01-01", 1, "a")] == read(real)


def test_what_another_sink_shows_is_not_deleted_though_both_had_one_path_before(sink):
    """As an earlier version of Weir left it, with markers that name no partition."""
    sink.publish(sink.version(1, [(1, "a")]))
    versions, root = sink.root.parent / ".delays.versions", sink.root
    (theirs,) = (each for each in versions.iterdir() if each.is_dir())
    marker = json.loads((theirs / "_weir.json").read_text())
    for name, owner in (("2013-01-01-1-other", "contract.others"), ("2013-01-01-1-same", "contract.delays")):
        folder = versions / name
        folder.mkdir()
        (folder / "_weir.json").write_text(json.dumps({**marker, "owner": owner, "partition": "epoch"}))
        old(folder)
    shown, torn = versions / "2013-01-01-1-shown", versions / "2013-01-01-1-torn"
    shown.mkdir()
    torn.mkdir()
    (shown / "_weir.json").write_text(json.dumps({key: value for key, value in marker.items() if key != "partition"}))
    (root / "run=2013-01-01").symlink_to(shown)
    for each in (theirs, shown, torn):
        old(each)
    sink.publish(sink.version(2, [(2, "a")]))
    old(theirs)
    sink.publish(sink.version(3, [(3, "a")]))
    kept = {each.name for each in versions.iterdir() if each.is_dir()}
    assert {"2013-01-01-1-other", "2013-01-01-1-same", "2013-01-01-1-shown", "2013-01-01-1-torn"} <= kept
    assert theirs.name not in kept


def test_what_a_killed_process_of_this_sink_has_half_made_is_deleted(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    versions = sink.root.parent / ".delays.versions"
    (made,) = (each for each in versions.iterdir() if each.is_dir())
    half = versions / made.name.replace("2013-01-01-1-", "2013-01-01-0-")
    half.mkdir()
    old(half)
    sink.publish(sink.version(2, [(2, "a")]))
    assert not half.exists()


@pytest.mark.parametrize("below", ["x", "x/y", "day=2013-01-01", "../.delays.versions/x"])
def test_a_sink_below_another_is_refused(sink, below):
    sink.publish(sink.version(1, [(1, "a")]))
    path = Path(os.path.normpath(sink.root / below))
    (path.parent).mkdir(parents=True, exist_ok=True)
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_below_another")):
        of(sink, path).prepare(sink.version(1, [(1, "a")], sink="others"), None)
    assert not path.exists() or "=" in below
    assert sink.rows() == [("2013-01-01", 1, "a")]


def test_a_sink_above_another_is_refused(sink):
    sink.publish(sink.version(1, [(1, "a")]))
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_above_a_sink")):
        of(sink, sink.root.parent).prepare(sink.version(1, [(1, "a")], sink="others"), None)


@pytest.mark.parametrize("inside", ["_delta_log/x", "metadata/1.metadata.json"])
def test_a_sink_below_a_table_is_refused(sink, inside):
    (sink.root.parent / inside).parent.mkdir()
    (sink.root.parent / inside).touch()
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_below_another")):
        sink.target().prepare(sink.version(1, [(1, "a")]), None)


@pytest.mark.parametrize("place", ["store", "store/out", "."])
def test_a_sink_in_the_store_or_around_it_is_refused(sink, place):
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_is_the_store")):
        of(sink, sink.store.parent / place).prepare(sink.version(1, [(1, "a")]), None)


def test_a_file_in_the_way_and_names_that_are_too_long_are_refused(sink):
    sink.root.write_text("a file")
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_unusable")):
        sink.target().prepare(sink.version(1, [(1, "a")]), None)
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_unusable")):
        of(sink, sink.root.parent / "y", "p" * 250).prepare(sink.version(1, [(1, "a")]), None)


def test_a_folder_of_somebody_else_is_not_replaced(sink):
    (sink.root / "day=2013-01-01").mkdir(parents=True)
    with pytest.raises(TargetConflict, check=of_kind("sinks.files_link_in_the_way")):
        sink.publish(sink.version(1, [(1, "a")]))
    assert (sink.root / "day=2013-01-01").is_dir()


def test_a_disk_that_is_not_there_is_away(sink):
    version = sink.version(1, [(1, "a")])
    sink.root.parent.rmdir()
    with pytest.raises(TargetAway, check=of_kind("sinks.files_parent_missing")):
        sink.target().prepare(version, None)
    assert not sink.root.parent.exists()


def test_the_marker_tells_what_the_folder_holds(sink):
    version = sink.version(1, [(1, "a")])
    sink.publish(version)
    marker = json.loads((sink.root / "day=2013-01-01" / "_weir.json").read_text())
    assert (marker["owner"], marker["epoch"], marker["number"], marker["rows"]) == ("contract.delays", DAY, 1, 1)


@pytest.mark.parametrize(("epoch", "value"), [(DAY, "2013-01-01"), ("20130101T050000Z", "2013-01-01 05%3A00%3A00")])
def test_an_epoch_is_its_day_or_its_time_as_hive_writes_it(epoch, value):
    assert partition_value(epoch) == value


@pytest.mark.parametrize("given", [("lake",), ("s3://bucket",), ("/",), ("/lake", "a=b")])
def test_a_declaration_that_cannot_be_is_refused(given):
    with pytest.raises(Misconfigured, match="files"):
        files(given[0], partition=(*given, "day")[1])


def test_a_process_that_is_suspended_with_the_lock_is_not_waited_for_without_end(sink, monkeypatch):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    version = sink.version(1, [(1, "a")])
    token = sink.target().prepare(version, None)
    with (sink.root.parent / ".delays.versions" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TargetAway, check=of_kind("sinks.files_locked")):
            sink.target().commit(version, token)
    assert sink.target().commit(version, token) is Outcome.COMMITTED
