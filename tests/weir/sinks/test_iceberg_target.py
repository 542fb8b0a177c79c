"""Apache Iceberg as a target: one snapshot an epoch, whatever is killed, lost, raced or changed by others."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psycopg2.extensions
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ServiceUnavailableError,
)
from pyiceberg.table import Transaction
from pyiceberg.types import StringType
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of, running_s3
from tests.weir.sinks.iceberg_lake import DAY, NEXT, Lake

from weir import catalogs
from weir.catalogs import properties_of
from weir.connections import LIBPQ, Connection
from weir.dataflow import iceberg
from weir.errors import Misconfigured, Retryable
from weir.sinks import Delivery, Outcome, TargetAway, TargetConflict, folders
from weir.sinks.targets import iceberg as module
from weir.sinks.targets.iceberg import IcebergTarget
from weir.testing.sink_contract import LocalReach, SinkContract

ROOT = Path(__file__).parents[3]
FAR = datetime(2100, 1, 1)  # noqa: DTZ001
KEY = f"weir.flow.delays.{DAY}"


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.fixture
def quick(monkeypatch):
    """Turns follow each other at once."""
    monkeypatch.setattr(module, "_PAUSES", (0.0, 0.0))


class TestContract(SinkContract):
    """The contract of all targets. Lines at which a process is killed: below, as a snapshot takes its time."""

    @pytest.fixture(autouse=True)
    def place(self, lake):
        self.lake = lake

    def target(self, reach):
        reach._connections = {"lake": self.lake.connection()}
        return IcebergTarget(iceberg("lake.db.delays", create="if_missing").options, reach)

    def rows(self, epoch):
        """The rows of the files of an epoch, as PyIceberg lists them: no column tells the epoch."""
        if not self.lake.catalog().table_exists("db.delays"):
            return []
        paths = [task.file.file_path for task in self.lake.load().scan().plan_files()]
        found = [pq.read_table(path.removeprefix("file://")) for path in paths if f"-{epoch}-" in path]
        return sorted((tuple(row.values()) for table in found for row in table.to_pylist()), key=repr)

    def write_as_somebody_else(self):
        self.lake.append(k=[99], s=["foreign"])
        return lambda: (99, "foreign") in self.lake.rows()

    test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent = None


# Versions


def test_an_epoch_is_replaced_as_a_whole_and_a_version_is_committed_once(lake):
    target, first = lake.target(), lake.version(1, [("d", 1, "a"), ("d", 2, None)], [("d", 3, "")])
    lake.publish(lake.version(1, [("e", 9, "x")], epoch=NEXT))
    token = target.prepare(first, None)
    assert target.recover(first, token) is Outcome.ABSENT
    assert [target.commit(first, token) for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert lake.rows() == [("d", 1, "a"), ("d", 2, None), ("d", 3, ""), ("e", 9, "x")]
    assert lake.publish(lake.version(2, [("d", 7, "b")])) is Outcome.COMMITTED
    assert [target.commit(first, token), target.recover(first, token)] == [Outcome.SUPERSEDED] * 2
    assert lake.rows() == [("d", 7, "b"), ("e", 9, "x")]
    assert lake.snapshots() == 3


def test_nothing_is_visible_before_the_commit(lake):
    lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)
    assert (lake.rows(), lake.snapshots()) == ([], 0)
    assert KEY not in lake.load().properties


def test_equal_content_makes_no_snapshot_and_a_b_a_makes_three(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    equal = lake.version(2, [("d", 1, "a")])
    assert [lake.publish(equal), lake.target().recover(equal, {})] == [Outcome.EQUAL] * 2
    assert lake.snapshots() == 1
    lake.publish(lake.version(3, [("d", 2, "b")]))
    assert lake.publish(lake.version(4, [("d", 1, "a")])) is Outcome.COMMITTED
    assert (lake.rows("k"), lake.snapshots()) == ([(1,)], 3)


def test_an_epoch_without_rows_is_published_too(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    assert lake.publish(lake.version(2)) is Outcome.COMMITTED
    assert lake.publish(lake.version(3, [])) is Outcome.EQUAL
    assert lake.rows() == []


def test_an_earlier_version_can_be_read_at_its_snapshot(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    before = lake.load().current_snapshot().snapshot_id
    lake.publish(lake.version(2, [("d", 2, "b")]))
    assert lake.load().scan(snapshot_id=before).to_arrow()["k"].to_pylist() == [1]


def test_several_sinks_share_a_table(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    lake.publish(lake.version(1, [("d", 2, "b")], sink="others"))
    lake.publish(lake.version(2, [("d", 3, "c")]))
    assert lake.rows("k") == [(2,), (3,)]


# Races, kills, lost answers


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request, tmp_path):
    """A lake with a catalog on each database."""
    if request.param == "sqlite":
        return Lake(tmp_path)
    postgres = request.getfixturevalue("postgres")
    name = f"iceberg_{tmp_path.name.replace('-', '_')}"
    uri = postgres.url(name)
    return Lake(tmp_path, {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})


def test_several_processes_with_one_version_commit_it_once(shared, quick):
    version = shared.version(1, [("d", number, "x") for number in range(50)])
    shared.target().prepare(version, None)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: shared.target().commit(version, {}), range(4)))
    assert answers == [Outcome.COMMITTED] * 4
    assert (len(shared.rows()), shared.snapshots()) == (50, 1)


def test_an_older_version_never_takes_the_place_of_a_newer_one(shared, quick, monkeypatch):
    """Four processes commit versions in any order: the newest stays, once."""
    monkeypatch.setattr(module, "_TURNS", 50)
    versions = [shared.version(number, [("d", number, "x")]) for number in range(1, 5)]
    shared.target().prepare(versions[0], None)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: shared.target().commit(each, {}), reversed(versions)))
    assert shared.rows("k") == [(4,)]


def before_the_commit(monkeypatch, act):
    """Let somebody else act between what a commit looked at and the commit, once."""
    usual, done = Transaction.commit_transaction, []

    def acting(self):
        if not done:
            done.append(True)
            act()
        return usual(self)

    monkeypatch.setattr(Transaction, "commit_transaction", acting)


def test_a_rival_that_commits_the_version_first_is_found(lake, quick, monkeypatch):
    version = lake.version(1, [("d", 1, "a")])
    token = lake.target().prepare(version, None)
    before_the_commit(monkeypatch, lambda: lake.target().commit(version, token))
    assert lake.target().commit(version, token) is Outcome.COMMITTED
    assert (lake.rows("k"), lake.snapshots()) == ([(1,)], 1)


def add_column(lake):
    with lake.load().update_schema() as update:
        update.add_column("more", StringType())


@pytest.mark.parametrize(
    ("act", "rows"),
    [
        (lambda lake: lake.append(day=["f"], k=[99], s=["foreign"]), [(2, "b"), (99, "foreign")]),
        (lambda lake: lake.load().delete("k = 1"), [(2, "b")]),
        (lambda lake: lake.load().maintenance.expire_snapshots().older_than(FAR).commit(), [(2, "b")]),
        (add_column, [(2, "b")]),
    ],
    ids=["append", "delete", "expire", "schema"],
)
def test_what_others_change_meanwhile_is_kept(lake, quick, monkeypatch, act, rows):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    version = lake.version(2, [("d", 2, "b")])
    token = lake.target().prepare(version, None)
    before_the_commit(monkeypatch, lambda: act(lake))
    assert lake.target().commit(version, token) is Outcome.COMMITTED
    assert lake.rows("k", "s") == rows


@pytest.mark.parametrize("error", [CommitStateUnknownException("504"), ConnectionError("reset"), KeyError("x")])
def test_a_commit_whose_answer_is_lost_is_found(lake, quick, monkeypatch, error):
    usual, lost = Transaction.commit_transaction, []

    def losing(self):
        found = usual(self)
        if not lost:
            lost.append(found)
            raise error
        return found

    version = lake.version(1, [("d", 1, "a")])
    token = lake.target().prepare(version, None)
    monkeypatch.setattr(Transaction, "commit_transaction", losing)
    assert lake.target().commit(version, token) is Outcome.COMMITTED
    assert (lake.rows("k"), lake.snapshots(), len(lost)) == ([(1,)], 1, 1)


def test_a_commit_that_is_reported_as_a_conflict_but_was_made_stays_readable(lake, quick, monkeypatch):
    """As of a proxy that repeats a request whose answer was lost."""
    usual, lost = SqlCatalog.commit_table, []

    def repeating(self, *given):
        found = usual(self, *given)
        if not lost:
            lost.append(found)
            raise CommitFailedException("the branch main has changed")
        return found

    version = lake.version(1, [("d", 1, "a")])
    token = lake.target().prepare(version, None)
    monkeypatch.setattr(SqlCatalog, "commit_table", repeating)
    assert lake.target().commit(version, token) is Outcome.COMMITTED
    assert (lake.rows("k"), lake.snapshots(), len(lost)) == ([(1,)], 1, 1)


def test_a_catalog_that_answers_no_commit_is_not_asked_without_end(lake, quick, monkeypatch):
    def unanswered(self):
        raise ConnectionError("read timed out")

    version = lake.version(1, [("d", 1, "a")])
    token = lake.target().prepare(version, None)
    monkeypatch.setattr(Transaction, "commit_transaction", unanswered)
    monkeypatch.setattr(module, "_SECONDS", 0.0)
    with pytest.raises(TargetAway, check=of_kind("sinks.iceberg_commits_fail", name="db.delays", turn="1")):
        lake.target().commit(version, token)


def test_a_catalog_that_never_takes_the_commit_is_away(lake, quick, monkeypatch):
    version = lake.version(1, [("d", 1, "a")])
    token = lake.target().prepare(version, None)

    def refused(self):
        raise CommitStateUnknownException("503 of a proxy")

    monkeypatch.setattr(Transaction, "commit_transaction", refused)
    with pytest.raises(TargetAway, check=of_kind("sinks.iceberg_commits_fail", name="db.delays", turn="10")):
        lake.target().commit(version, token)
    monkeypatch.undo()
    assert lake.target().commit(version, token) is Outcome.COMMITTED


def killed_at(nth, act):
    """Call `act`, and kill it at the n-th line that it has not been at before; whether it came to that."""
    seen = set()

    def trace(frame, event, _argument):
        code = frame.f_code
        if code.co_filename not in (module.__file__, folders.__file__) and code.co_name not in LIBRARY:
            return None
        if event == "line" and (code, frame.f_lineno) not in seen:
            seen.add((code, frame.f_lineno))
            if len(seen) == nth:
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


LIBRARY = ("commit_transaction", "_do_commit", "commit_table")
"""Functions of PyIceberg in which a process is killed, too."""


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent(lake, every):
    """Each line of a commit in turn is the last one; the catalog is set back after each, so that all begin alike."""
    lake.publish(lake.version(1, [("d", 1, "a")], [("d", 2, "a")]))
    version, catalog = lake.version(2, [("d", 3, "b")], [("d", 4, "b")]), lake.folder / "catalog.db"
    begun, seen = catalog.read_bytes(), []
    for nth in range(1, 500, every):
        catalog.write_bytes(begun)
        is_killed = killed_at(nth, lambda: lake.target().commit(version, {}))
        seen.append(tuple(lake.rows("k")))
        expected = Outcome.ABSENT if seen[-1] == ((1,), (2,)) else Outcome.COMMITTED
        assert lake.target().recover(version, {}) is expected, nth
        assert lake.target().commit(version, {}) is Outcome.COMMITTED
        assert (lake.rows("k"), lake.snapshots()) == ([(3,), (4,)], 2)
        if not is_killed:
            break
    assert set(seen) == {((1,), (2,)), ((3,), (4,))}
    assert nth > 60


def committing(lake, version):
    """A process that imports everything, then commits a version."""
    command = [sys.executable, "-m", "tests.weir.sinks.iceberg_lake", str(lake.folder)]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.stdin.write(
        f"{json.dumps(Delivery(iceberg(f'lake.{lake.table}', create='if_missing'), version, {}).to_json())}\n"
    )
    process.stdin.flush()
    return process


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_processes_that_are_killed_leave_whole_versions_and_each_epoch_once(lake):
    """A reader and a foreign writer beside; the versions are those of ten epochs in turn."""
    expected, seen, mixed, landed, stop = {}, set(), [], 0, threading.Event()
    chance, longest = random.Random(19), 0.0
    lake.target().prepare(lake.version(1, [("x", 0, "x")]), None)

    def read():
        while not stop.is_set():
            found = lake.load().scan().to_arrow().to_pylist()
            for day in {row["day"] for row in found} - {"foreign"}:
                rows = sorted((row["s"], row["k"]) for row in found if row["day"] == day)
                seen.add((day, rows[0][0]))
                if rows != [(rows[0][0], k) for k in range(len(rows))] or len(rows) != 5 + int(rows[0][0]) % 3:
                    mixed.append(rows)

    reader = threading.Thread(target=read)
    reader.start()
    for kill in range(102):
        day, number = f"{kill % 10:02}", kill // 10 + 1
        rows = [(day, k, str(number)) for k in range(5 + number % 3)]
        version = lake.version(number, rows[:2], rows[2:], epoch=f"201301{kill % 10 + 1:02}T000000Z")
        with committing(lake, version) as process:
            begun = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60 if kill < 2 else chance.uniform(0, longest))
            longest = time.monotonic() - begun if kill < 2 else longest  # the first ones tell how long it takes
            process.kill()
        if chance.random() < 0.3:
            lake.append(day=["foreign"], k=[kill], s=["foreign"])
            expected[kill] = [("foreign", kill, "foreign")]
        landed += lake.target().recover(version, {}) is Outcome.COMMITTED
        assert lake.target().commit(version, {}) is Outcome.COMMITTED
        expected[day] = rows
        assert lake.rows() == sorted((row for each in expected.values() for row in each), key=repr)
    stop.set()
    reader.join()
    assert mixed == []
    assert len(seen) > 20
    assert 10 < landed < 95
    ours = [each for each in lake.load().metadata.snapshots if each.summary["weir.owner"]]
    assert len(ours) == 102


# Others' changes


def test_rows_of_others_stay_also_those_in_the_epoch(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    lake.append(day=["d"], k=[99], s=["foreign"])
    lake.publish(lake.version(2, [("d", 2, "b")]))
    assert lake.rows("k", "s") == [(2, "b"), (99, "foreign")]


def test_a_compaction_of_the_files_ends_in_a_conflict_before_anything_is_published(lake):
    lake.publish(lake.version(1, [("d", 1, "a")], [("d", 2, "a")]))
    lake.publish(lake.version(1, [("e", 3, "a")], epoch=NEXT))
    lake.compact()
    version = lake.version(2, [("d", 7, "b")])
    for act in (lambda: lake.target().prepare(version, None), lambda: lake.target().commit(version, {})):
        with pytest.raises(
            TargetConflict,
            check=of_kind("sinks.iceberg_epoch_rewritten", files="2", live="0", marker_key=KEY, number="1"),
        ):
            act()
    with pytest.raises(TargetConflict, check=of_kind("sinks.iceberg_epoch_rewritten")):
        lake.target().rollback(lake.version(1), {})
    assert lake.rows("k") == [(1,), (2,), (3,)]


def test_equal_rows_after_a_compaction_are_there_already(lake):
    version = lake.version(1, [("d", 1, "a")], [("d", 2, "a")])
    lake.publish(version)
    lake.compact()
    assert lake.publish(version) is Outcome.COMMITTED
    assert lake.publish(lake.version(2, [("d", 1, "a")], [("d", 2, "a")])) is Outcome.EQUAL
    assert lake.rows("k") == [(1,), (2,)]


def test_the_way_out_of_a_conflict_is_that_of_its_message(lake):
    lake.publish(lake.version(1, [("d", 1, "a")], [("e", 2, "a")]))
    lake.append(day=["d"], k=[99], s=["foreign"])
    lake.compact()
    lake.load().delete("day = 'd' and k < 99 or day = 'e'")
    with lake.load().transaction() as change:
        change.remove_properties(KEY)
    assert lake.publish(lake.version(2, [("d", 7, "b")])) is Outcome.COMMITTED
    assert lake.rows("k") == [(7,), (99,)]


def test_an_update_of_some_rows_ends_in_a_conflict(lake):
    lake.publish(lake.version(1, [("d", 1, "a"), ("d", 2, "a")]))
    lake.load().delete("k = 1")  # which writes the other row anew
    with pytest.raises(TargetConflict, check=of_kind("sinks.iceberg_epoch_rewritten")):
        lake.publish(lake.version(2, [("d", 7, "b")]))


def test_an_overwrite_that_adds_the_rows_again_in_a_second_snapshot_ends_in_a_conflict(lake):
    """As people compact with PyIceberg: a snapshot that deletes everything, then one that appends it."""
    lake.publish(lake.version(1, [("d", 1, "a")]))
    table = lake.load()
    table.overwrite(table.scan().to_arrow())
    with pytest.raises(TargetConflict, check=of_kind("sinks.iceberg_epoch_rewritten")):
        lake.publish(lake.version(2, [("d", 7, "b")]))


def test_rows_that_somebody_has_deleted_come_back_when_the_version_is_committed_again(lake):
    version = lake.version(1, [("d", 1, "a")], [("d", 2, "a")])
    lake.publish(version)
    lake.publish(lake.version(1, [("e", 3, "a")], epoch=NEXT))
    lake.load().delete("k = 1")
    lake.publish(lake.version(2, [("e", 4, "a")], epoch=NEXT))
    assert lake.target().recover(version, {}) is Outcome.ABSENT
    assert lake.publish(version) is Outcome.COMMITTED
    assert lake.rows("k") == [(1,), (2,), (4,)]


def test_rows_that_somebody_has_deleted_are_replaced_by_another_version(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    lake.load().delete("day = 'd'")
    assert lake.publish(lake.version(2, [("d", 2, "b")])) is Outcome.COMMITTED
    assert lake.rows("k") == [(2,)]


def test_a_table_that_somebody_has_set_back_to_an_earlier_snapshot_gets_the_version_again(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    before = lake.load().current_snapshot().snapshot_id
    version = lake.version(2, [("d", 2, "b")])
    lake.publish(version)
    lake.load().manage_snapshots().rollback_to_snapshot(before).commit()
    assert lake.rows("k") == [(1,)]
    assert lake.publish(version) is Outcome.COMMITTED
    assert lake.rows("k") == [(2,)]


def test_files_that_are_gone_without_a_history_that_tells_why_end_in_a_conflict(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    lake.load().delete("day = 'd'")
    lake.append(day=["f"], k=[99], s=["foreign"])
    lake.load().maintenance.expire_snapshots().older_than(FAR).commit()
    with pytest.raises(TargetConflict, check=of_kind("sinks.iceberg_epoch_rewritten")):
        lake.publish(lake.version(2, [("d", 2, "b")]))


def test_the_marker_outlives_the_snapshots(lake):
    version = lake.version(1, [("d", 1, "a")])
    lake.publish(version)
    lake.append(day=["f"], k=[99], s=["foreign"])
    lake.load().maintenance.expire_snapshots().older_than(FAR).commit()
    assert lake.snapshots() == 1
    assert lake.target().recover(version, {}) is Outcome.COMMITTED


def test_a_table_that_was_dropped_is_made_again(lake):
    version = lake.version(1, [("d", 1, "a")])
    lake.publish(version)
    lake.catalog().drop_table("db.delays")
    assert lake.target().recover(version, {}) is Outcome.ABSENT
    assert lake.target().commit(version, {}) is Outcome.COMMITTED
    assert lake.rows("k") == [(1,)]


def test_rollback_takes_an_epoch_out_in_one_snapshot_until_a_newer_version_comes(lake):
    version = lake.version(1, [("d", 1, "a")], [("d", 2, "a")])
    lake.publish(version)
    lake.publish(lake.version(1, [("e", 3, "a")], epoch=NEXT))
    assert lake.target().rollback(lake.version(2), {}) is False
    assert [lake.target().rollback(version, {}) for _ in range(2)] == [True, True]
    assert (lake.rows("k"), lake.snapshots()) == ([(3,)], 3)
    assert lake.publish(version) is Outcome.ROLLED_BACK
    assert lake.rows("k") == [(3,)]
    assert lake.publish(lake.version(2, [("d", 1, "a")], [("d", 2, "a")])) is Outcome.COMMITTED
    assert lake.rows("k") == [(1,), (2,), (3,)]


def test_a_rest_catalog_that_accepts_and_never_answers_is_away(lake, monkeypatch):
    monkeypatch.setattr(catalogs, "SECONDS", (1.0, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        reach = LocalReach(lake.folder, Connection(id="lake", kind="iceberg", extra={"type": "rest", "uri": uri}))
        with pytest.raises(TargetAway, match="cannot be reached"):
            IcebergTarget({"conn_id": "lake", "table": "a.b", "create": "never"}, reach).recover(lake.version(1), {})


def test_a_catalogs_database_that_accepts_and_never_answers_is_away(lake, monkeypatch):
    monkeypatch.setattr(catalogs, "LIBPQ", LIBPQ | {"connect_timeout": 2})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        extra = {"type": "sql", "uri": f"postgresql+psycopg2://me@127.0.0.1:{silent.getsockname()[1]}/lake"}
        reach = LocalReach(lake.folder, Connection(id="lake", kind="iceberg", extra=extra))
        with pytest.raises(TargetAway, match="cannot be reached"):
            IcebergTarget({"conn_id": "lake", "table": "a.b", "create": "never"}, reach).recover(lake.version(1), {})


def test_many_epochs_have_few_manifests(lake, monkeypatch):
    """A commit reads each manifest: they are merged, as Java's writers do it, and those without live files go."""
    lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)
    with lake.load().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "5"})
    for day in range(1, 13):
        lake.publish(lake.version(1, [("d", day, "a")], epoch=f"201301{day:02}T000000Z"))
        lake.publish(lake.version(2, [("d", 100 + day, "a")], epoch=f"201301{day:02}T000000Z"))
    table = lake.load()
    assert len(table.current_snapshot().manifests(table.io)) < 10
    assert lake.rows("k") == [(100 + day,) for day in range(1, 13)]
    assert "commit.manifest-merge.enabled" not in table.properties


# Files


def data_files(lake):
    return sorted((lake.folder / "warehouse" / "db" / "delays" / "data").glob("*.parquet"))


def put_bytes(snapshot):
    """The bytes that were linked, copied by S3, and copied through the process."""
    return tuple(int(snapshot.summary[f"weir.{name}-bytes"]) for name in ("linked", "copied-by-server", "copied"))


def test_files_are_linked_on_one_file_system_and_copied_else(lake):
    first, version = lake.version(1, [("d", 1, "a")]), lake.version(1, [("e", 2, "b")], epoch=NEXT)
    lake.publish(first)
    lake.publish(version, is_local=False)
    assert sorted(each.stat().st_nlink for each in data_files(lake)) == [1, 2]
    assert [put_bytes(each)[::2] for each in lake.load().metadata.snapshots] == [
        (first.files[0].bytes, 0),
        (0, version.files[0].bytes),
    ]


def test_a_file_that_cleaners_would_take_for_an_orphan_is_copied(lake):
    version = lake.version(1, [("d", 1, "a")])
    os.utime(lake.store / version.files[0].path, (0, 0))
    lake.publish(version)
    (made,) = data_files(lake)
    assert (made.stat().st_nlink, made.stat().st_mtime > 10**9) == (1, True)


def test_what_the_store_deletes_stays_in_the_table_and_the_other_way_round(lake):
    version = lake.version(1, [("d", 1, "a")])
    lake.publish(version)
    lake.publish(lake.version(1, [("e", 2, "b")], epoch=NEXT))
    (lake.store / version.files[0].path).unlink()
    assert lake.rows("k") == [(1,), (2,)]
    for each in data_files(lake):
        each.unlink()
    assert len(list(lake.store.iterdir())) == 1


def test_a_copy_that_is_not_what_was_published_is_never_committed(lake):
    version = lake.version(1, [("d", 1, "a")])
    lake.target().prepare(version, None)
    path = lake.store / version.files[0].path
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(Retryable, check=of_kind("sinks.file_damaged")):
        lake.target(is_local=False).commit(version, {})
    assert (lake.rows(), data_files(lake)) == ([], [])


# Catalogs


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as server:
        server.make_bucket("lake")
        yield server


@pytest.mark.parametrize("more", [{}, {"s3.connect-timeout": "20"}, {"s3.force-virtual-addressing": "false"}])
def test_a_warehouse_on_s3(s3_server, tmp_path, more):
    options = {"s3.endpoint": s3_server.url, "s3.access-key-id": "weir", "s3.secret-access-key": "hush-hush"}
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://lake/{tmp_path.name}"}
    lake = Lake(tmp_path, {"type": "sql", **place, **options, "s3.region": "us-east-1", **more})
    first = lake.version(1, [("d", number, "a") for number in range(1000)])
    assert lake.publish(first) is Outcome.COMMITTED
    assert lake.publish(lake.version(2, [("d", 7, "b")])) is Outcome.COMMITTED
    assert lake.publish(first) is Outcome.SUPERSEDED
    assert lake.rows() == [("d", 7, "b")]
    assert put_bytes(lake.load().metadata.snapshots[0]) == (0, 0, first.files[0].bytes)


def test_a_file_in_the_same_s3_is_copied_there(s3_server, tmp_path):
    options = {"s3.endpoint": s3_server.url, "s3.access-key-id": "weir", "s3.secret-access-key": "hush-hush"}
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://lake/{tmp_path.name}"}
    lake = Lake(tmp_path, {"type": "sql", **place, **options, "s3.region": "us-east-1"})
    version, target = lake.version(1, [("d", 1, "a")]), lake.target(is_local=False)
    (file,) = version.files
    content = (lake.store / file.path).read_bytes()
    client_of(s3_server.url).put_object(Bucket="lake", Key=f"store/{file.path}", Body=content)
    target.reach.url = lambda file: f"s3://lake/store/{file.path}"
    assert target.commit(version, target.prepare(version, None)) is Outcome.COMMITTED
    assert lake.rows("k") == [(1,)]
    assert put_bytes(lake.load().current_snapshot()) == (0, file.bytes, 0)


def test_a_namespace_of_several_parts(tmp_path):
    lake = Lake(tmp_path, table="reports.daily.delays")
    assert lake.publish(lake.version(1, [("d", 1, "a")])) is Outcome.COMMITTED
    assert lake.rows("k") == [(1,)]


def test_a_catalog_that_does_not_answer_is_away(lake):
    version = lake.version(1, [("d", 1, "a")])
    for extra in ({"uri": "http://127.0.0.1:1"}, lake.extra | {"uri": "postgresql+psycopg2://127.0.0.1:1/x"}):
        with pytest.raises(TargetAway, match="connection lake cannot be reached"):
            lake.target(connection=lake.connection(extra=extra)).prepare(version, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "postgres"}, of_kind("catalogs.not_a_catalog")),
        ({"host": "catalog.example.com", "extra": {}}, of_kind("catalogs.no_uri")),
        ({"extra": {"type": "clay"}}, of_kind("catalogs.catalog_unusable")),
        ({"extra": {"type": "sql"}}, of_kind("catalogs.no_database_url")),
        ({"extra": {"type": "sql", "uri": "postgresql+nothing://h/d"}}, of_kind("catalogs.catalog_unusable")),
        ({"extra": {"type": "sql", "uri": "no url"}, "login": "me"}, of_kind("catalogs.no_database_url")),
    ],
)
def test_a_connection_that_cannot_be_used_is_named(lake, given, message):
    connection = Connection(**{"id": "lake", "kind": "iceberg", **given})
    with pytest.raises(Misconfigured, check=message):
        lake.target(connection=connection).prepare(lake.version(1, [("d", 1, "a")]), None)


def test_a_connection_becomes_properties_of_pyiceberg():
    rest = Connection(
        id="c",
        kind="iceberg",
        host="https://h/api/",
        login="me",
        password="pw",
        extra={"scope": "x", "rest.sigv4-enabled": True},
    )
    assert properties_of(rest) == (
        "c",
        {"uri": "https://h/api", "credential": "me:pw", "scope": "x", "rest.sigv4-enabled": "true"},
    )
    sql = Connection(
        id="c",
        kind="iceberg",
        login="me",
        password="p/w",
        extra={"type": "sql", "uri": "postgresql://h/db?connect_timeout=3", "name": "n"},
    )
    name, properties = properties_of(sql)
    assert (name, properties["type"]) == ("n", "sql")
    account = psycopg2.extensions.parse_dsn(properties["uri"])
    assert (account["user"], account["password"], account["host"], account["dbname"]) == ("me", "p/w", "h", "db")
    assert (account["connect_timeout"], account["tcp_user_timeout"]) == ("3", "120000")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "delays"}, of_kind("dataflow.iceberg_target_malformed")),
        ({"table": "lake.delays"}, of_kind("dataflow.iceberg_target_malformed")),
        ({"table": "lake..delays"}, of_kind("dataflow.iceberg_target_malformed")),
        ({"table": ""}, of_kind("dataflow.text_empty")),
        ({"table": "lake.db.delays", "create": "always"}, of_kind("dataflow.iceberg_create_unknown")),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(given, message):
    with pytest.raises(Misconfigured, check=message):
        iceberg(**given)


def test_a_declared_target_is_named_by_its_table():
    assert str(iceberg("lake.db.delays")) == "iceberg db.delays"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("a name twice"), Misconfigured),
        (NotImplementedError("a type"), Misconfigured),
        (BadRequestError("Malformed request"), Misconfigured),
        (OSError(errno.ENAMETOOLONG, "File name too long"), Misconfigured),
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), Misconfigured),
        (ProgrammingError("insert", {}, Exception("permission denied for table iceberg_tables")), Misconfigured),
        (OperationalError("update", {}, Exception("attempt to write a readonly database")), Misconfigured),
        (OperationalError("update", {}, Exception("database is locked")), TargetAway),
        (OperationalError("select", {}, Exception("server closed the connection")), TargetAway),
        (ServiceUnavailableError("503"), TargetAway),
        (ConnectionError("reset"), TargetAway),
        (TimeoutError(errno.ETIMEDOUT, "no answer"), TargetAway),
        (CommitFailedException("the branch main has changed"), TargetAway),
    ],
)
def test_only_silence_load_and_conflicts_are_waited_for(lake, quick, monkeypatch, error, kind):
    version = lake.version(1, [("d", 1, "a")])
    token = lake.target().prepare(version, None)

    def fail(*_):
        raise error

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    with pytest.raises(kind):
        lake.target().commit(version, token)


def test_a_sink_whose_files_need_too_long_names_is_refused_before_anything_is_published(lake):
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_unusable")):
        lake.target().prepare(lake.version(1, [("d", 1, "a")], sink="s" * 200), None)
