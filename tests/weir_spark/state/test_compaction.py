"""Merged runs of keyed state on real Spark: the same rows in fewer files, whatever is merged."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir_spark
from weir.dataflow import keyed_state
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import StateFile
from weir.formats.region_job import CompactionJob, MergeToWrite, RegionReport, StateFileToRead, StateToRead
from weir.state.compaction_rules import Limits, after, merges_of
from weir.state.file_rules import assigned_files, epoch_seconds, sorted_runs
from weir.store.seal import seal
from weir.topology.partitions import KEY_GROUP_COLUMN, Layout
from weir_spark.state.compaction import compact
from weir_spark.state.reader import DELETED, UPDATED, StoredState

pytestmark = pytest.mark.spark

RUN_REGION = Path(weir_spark.__file__).parents[1] / "run_region.py"
GROUPS = 8
STATE = keyed_state("history", key=["k", "kind"], schema="k BIGINT, kind STRING, n BIGINT")
LAYOUT = Layout(("k", "kind"), GROUPS)


def epoch(day):
    return f"{datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=day):%Y%m%dT%H%M%SZ}"


class History:
    """A state in a store, and a dictionary that says what it should be."""

    def __init__(self, store, session, ttl=None):
        self.store, self.session, self.ttl = store, session, ttl
        self.files, self.truth, self.day = (), {}, 0
        self.written = self.merges = 0

    def group(self, key):
        return (0 if key[0] is None else key[0]) % GROUPS

    def change(self, rows, deleted=()):
        """An epoch: a run of changes, as the writer would leave it."""
        changed = {**dict.fromkeys(deleted), **rows}
        ordered = sorted(changed, key=lambda key: (self.group(key), str(key)))
        at = epoch_seconds(epoch(self.day))
        columns = {
            "k": pa.array([key[0] for key in ordered], pa.int64()),
            "kind": pa.array([key[1] for key in ordered], pa.string()),
            "n": pa.array([changed[key] for key in ordered], pa.int64()),
            KEY_GROUP_COLUMN: pa.array([self.group(key) for key in ordered], pa.int32()),
            DELETED: pa.array([changed[key] is None for key in ordered], pa.bool_()),
        }
        if self.ttl is not None:
            columns[UPDATED] = pa.array([at] * len(ordered), pa.int64())
        folder = f"flow/{epoch(self.day)}/history/x/0/t0001"
        self.store.create(f"{folder}/part-{self.day}.parquet", b"")
        path = self.store.spark_url(f"{folder}/part-{self.day}.parquet").removeprefix("file://")
        pq.write_table(pa.table(columns), path, row_group_size=50)
        (file,) = seal(self.store, folder)
        self.files = (*self.files, StateFile(folder, file, epoch(self.day), (0, GROUPS - 1)))
        for key, value in changed.items():
            self.truth.pop(key, None)
            if value is not None:
                self.truth[key] = (value, self.day)
        if self.ttl is not None:
            self.truth = {key: each for key, each in self.truth.items() if each[1] > self.day - self.ttl}
        self.day += 1
        return file.bytes

    @property
    def until(self):
        return None if self.ttl is None else epoch_seconds(epoch(self.day - 1)) - self.ttl * 86400

    def to_read(self, files):
        told = [
            StateFileToRead(
                self.store.spark_url(each.path), each.epoch, each.key_groups, each.file.rows, each.file.bytes
            )
            for each in files
        ]
        return StateToRead(
            state=STATE, files=tuple(told), tallies=None, updated=0, expired_until=self.until, is_full=False
        )

    def compact(self, limits, parts=1, run=None):
        """Merge what the policy says; `run` is who does it."""
        files = assigned_files(self.files, (0, GROUPS - 1), self.until)
        merges = merges_of(files, len(self.truth), limits)
        to_write = []
        for number, merge in enumerate(merges):
            folder = f"flow/{epoch(self.day)}/history/x/0/c0001/m{number}"
            url = self.store.spark_url(folder)
            read = self.to_read(merge.files)
            to_write.append(
                MergeToWrite(
                    stage="history",
                    layout=LAYOUT,
                    state=read,
                    is_bottom=merge.is_bottom,
                    parts=parts,
                    folder=folder,
                    spark_folder=url,
                )
            )
        job = CompactionJob(
            attempt="c0001",
            dataflow="flow",
            epoch=epoch(self.day),
            interval=("", ""),
            region="aircraft",
            subtask=0,
            store=self.store.url,
            report=f"flow/{epoch(self.day)}/report.json",
            merges=tuple(to_write),
        )
        report = run(job) if run else compact(job, self.session, self.store, lambda line: None)
        written = [
            StateFile(output.folder, file, merge.epoch, _groups(file) if len(output.files) > 1 else merge.key_groups)
            for merge, output in zip(merges, report.outputs, strict=True)
            for file in output.files
            if file.rows
        ]
        self.files = after(files, merges, written)
        self.merges += len(merges)
        return sum(each.file.bytes for each in written)

    def read(self):
        rows = StoredState(self.session, self.to_read(self.files)).rows().collect()
        assert len(rows) == len({(row["k"], row["kind"]) for row in rows})
        return {(row["k"], row["kind"]): row["n"] for row in rows}

    def expected(self):
        return {key: value for key, (value, _) in self.truth.items()}


def _groups(file):
    known = [each.key_groups for each in file.segments if each.key_groups is not None]
    return min(first for first, _ in known), max(last for _, last in known)


def some_keys(chosen, count):
    return [(chosen.choice([None, *range(40)]), chosen.choice([None, "a", "b"])) for _ in range(count)]


@pytest.mark.parametrize(("ttl", "budget"), [(None, 10**9), (4, 3000)])
def test_what_is_merged_reads_as_it_did(spark, store, ttl, budget):
    """By the whole, and by slices where little may be written; with keys that are null, deletions, and an end."""
    chosen = random.Random(6)
    history = History(store, spark, ttl)
    history.change(dict.fromkeys(some_keys(chosen, 100), 0))
    for day in range(1, 7):
        changed = history.change(dict.fromkeys(some_keys(chosen, 12), day), some_keys(chosen, 4))
        history.compact(Limits(3, budget, changed))
    assert history.merges > 1
    assert sorted_runs(history.files) <= 3
    assert history.read() == history.expected()


def test_a_large_run_becomes_files_with_key_groups_of_their_own(spark, store):
    chosen = random.Random(7)
    history = History(store, spark)
    history.change({(key, "a"): 0 for key in range(200)})
    history.change({(key, "a"): 1 for key in range(0, 200, 3)})
    history.change({(key, "b"): 2 for key in range(50)}, some_keys(chosen, 20))
    history.compact(Limits(1, 10**9, 0), parts=3)
    assert len(history.files) > 1
    assert sorted_runs(history.files) == 1
    assert all(_rows(store, each) == sorted(_rows(store, each)) for each in history.files)
    assert history.read() == history.expected()


def test_where_nothing_is_left_there_is_no_file(spark, store):
    history = History(store, spark)
    history.change({(1, "a"): 1})
    history.change({}, [(1, "a")])
    history.compact(Limits(1, 10**9, 0))
    assert history.files == ()


@pytest.mark.soak
def test_a_driver_with_a_session_of_its_own_merges_it_alike(spark, store, tmp_path):
    chosen = random.Random(8)
    history = History(store, spark)
    for day in range(3):
        history.change(dict.fromkeys(some_keys(chosen, 30), day), some_keys(chosen, 4))

    def by_a_driver(job):
        (tmp_path / "job.json").write_bytes(to_json(job))
        command = [sys.executable, str(RUN_REGION), str(tmp_path / "job.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return from_json(RegionReport, store.read(job.report))

    history.compact(Limits(1, 10**9, 0), run=by_a_driver)
    assert (history.merges, sorted_runs(history.files)) == (1, 1)
    assert history.read() == history.expected()


def _rows(store, file):
    table = pq.read_table(store.spark_url(file.path).removeprefix("file://"))
    return [(row[KEY_GROUP_COLUMN], row["k"] or 0, row["kind"]) for row in table.to_pylist()]
