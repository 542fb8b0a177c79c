"""Keyed state over many epochs, with its checkpoints and compactions; then a restore's scan, and a rescale from 2 to 3.

    WEIR_BENCH_KEYS=1000000 WEIR_BENCH_SHARE=0.01 WEIR_BENCH_EPOCHS=50 \\
    pytest tests/benchmarks/test_state_epochs.py --benchmark-only -s

prints the tables of docs/measurements.md. There is no scheduler: a fake Airflow runs the tasks one after the other, so
that seconds are those of Spark's jobs, without the starts of tasks. What one epoch costs beside a full rewrite and a
MERGE is in test_state.py.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import select
from tests.weir_spark.on_spark import AirflowWithCode

import weir
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.formats.codec import manifest_from_json, region_report_from_json
from weir.formats.manifest import Manifest
from weir.formats.region_job import RegionJob, RegionReport
from weir.ledger.database.tables import AttemptRow, CompactionRow, ResultRow
from weir.state.compaction_rules import bytes_of
from weir.state.file_rules import sorted_runs
from weir.state.files_in_use import live_state_files
from weir.store.store import Store
from weir.testing.fakes.ledgers import new_ledger
from weir.units import format_size, size_from_text
from weir_spark.transport.connect import ConnectEngine

KEYS = int(os.environ.get("WEIR_BENCH_KEYS", "1000000"))
SHARE = float(os.environ.get("WEIR_BENCH_SHARE", "0.01"))
EPOCHS = int(os.environ.get("WEIR_BENCH_EPOCHS", "50"))
BUDGET = os.environ.get("WEIR_BENCH_BUDGET", "8 MB")
RESTORED = 20
"""Behind so many epochs all of the state is read, as a restore or a first use does."""

FIRST = date(2013, 1, 1)
BUDGET_BYTES = size_from_text("budget", BUDGET)
SCHEMA = "id BIGINT, name STRING, n BIGINT, amount DOUBLE, seen TIMESTAMP"


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch has written, and what its state is made of; sizes in bytes."""

    number: int
    changed: int
    compacted: int
    state: int
    live: int
    runs: int
    seconds: float

    @property
    def written(self) -> float:
        """Bytes written for each byte that changed."""
        return (self.changed + self.compacted) / max(1, self.changed)

    def __str__(self) -> str:
        sizes = " | ".join(format_size(size) for size in (self.changed, self.compacted, self.state, self.live))
        return f"| {self.number} | {sizes} | {self.runs} | {self.written:.2f} | {self.seconds:.1f} |"


class Changing:
    """A dataflow that keeps KEYS keys, on a real Spark Connect server."""

    def __init__(self, url: str, folder: Path) -> None:
        self.store = Store.open(str(folder / "store"))
        self.store.initialise()
        self.spark = ConnectEngine(url)
        services = Services(ledger=new_ledger(folder / "ledger.db"), store=self.store, now=lambda: self.airflow.time)
        self.airflow = AirflowWithCode(services, self, changing(2))  # type: ignore[arg-type]
        self.airflow.time = datetime.now(UTC)

    def run(self, job: RegionJob, during: Callable[[], None] = lambda: None) -> RegionReport:
        """Take the fake engine's place."""
        self.spark.run(job, str(uuid.uuid4()), lambda _line: None)
        during()
        return region_report_from_json(self.store.read(job.report))

    def epoch(self, number: int) -> Epoch:
        """Run a day."""
        run_id = f"scheduled__{FIRST + timedelta(days=number - 1)}"
        self.airflow._verify_integrity(run_id)
        self.airflow.run_until_quiet(5000)
        assert set(self.airflow.states().values()) == {"success"}, self.errors()
        return self._measured(number, f"changing@{FIRST + timedelta(days=number - 1):%Y%m%d}T000000Z")

    def errors(self) -> list[str]:
        """What attempts have failed of."""
        with self.airflow.services.ledger.transaction() as session:
            return [str(row.error) for row in session.scalars(select(AttemptRow)) if row.error]

    def manifests(self, run: str) -> list[Manifest]:
        """Those of the state, by subtask."""
        with self.airflow.services.ledger.transaction() as session:
            query = select(ResultRow).where(ResultRow.run == run, ResultRow.stage == "state", ResultRow.is_current)
            folders = [row.folder for row in session.scalars(query.order_by(ResultRow.subtask))]
        return [manifest_from_json(self.store.read(f"{folder}/manifest.json")) for folder in folders]

    def _measured(self, number: int, run: str) -> Epoch:
        with self.airflow.services.ledger.transaction() as session:
            compacted = sum(session.scalars(select(CompactionRow.written_bytes).where(CompactionRow.run == run)))
            query = select(AttemptRow).where(AttemptRow.run == run, AttemptRow.region == "update-done")
            spent = [sum((row.metrics or {}).values()) for row in session.scalars(query)]
        manifests = self.manifests(run)
        files = [file for each in manifests if each.state is not None for file in each.state.files]
        live = live_state_files(self.airflow.services, "changing")
        return Epoch(
            number=number,
            changed=sum(each.bytes for each in manifests),
            compacted=compacted,
            state=sum({file.path: file.file.bytes for file in files}.values()),
            live=sum(self.store.size(path) for path in live if path.endswith(".parquet")),
            runs=max(sorted_runs(each.state.files) for each in manifests if each.state is not None),
            seconds=sum(spent),
        )


def changing(parallelism: int) -> Dataflow:
    """The dataflow, with a parallelism of its state."""
    state = keyed_state("state", key="id", schema=SCHEMA, budget=BUDGET)
    return Dataflow(
        "changing",
        [
            source("changes", "changing_keys:changes"),
            Stage(
                "update",
                "changing_keys:update",
                {"changes": blocking("changes", by="id")},
                parallelism=parallelism,
                state=state,
            ),
            sink("update", "done"),
        ],
        parameters={"keys": KEYS, "share": SHARE},
    )


@pytest.mark.timeout(4 * 3600)
def test_many_epochs_a_restore_and_a_rescale(benchmark: Any, server: Any, spark: SparkSession, tmp_path: Path) -> None:
    changing_keys = Changing(server.url, tmp_path)
    found: list[Epoch] = benchmark.pedantic(lambda: list(_epochs(changing_keys, spark)), rounds=1)
    first, later = found[0], found[1:]
    changed, compacted = sum(each.changed for each in later), sum(each.compacted for each in later)
    print(f"\n{KEYS:,} keys, {SHARE:.1%} of them in an epoch, {len(found)} epochs; all: {format_size(first.changed)}")
    print(f"written for each byte that changed: {1 + compacted / changed:.2f} on average, {_worst(later)} at worst")
    print(f"a full rewrite each time: {first.changed * len(later) / (changed + compacted):.1f} times as many bytes")
    print(f"runs to merge: at most {max(each.runs for each in found)}")
    assert max(each.runs for each in found) <= 9
    assert 1 + compacted / changed <= 3 + BUDGET_BYTES * len(later) / changed


def _epochs(changing_keys: Changing, spark: SparkSession) -> Iterator[Epoch]:
    print("\n| epoch | changed | compacted | state | at rest | runs | written/changed | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for number in range(1, EPOCHS + 1):
        each = changing_keys.epoch(number)
        print(each, flush=True)
        yield each
        if number == min(RESTORED, EPOCHS):
            _scan(changing_keys, spark, each)
    _rescale(changing_keys, EPOCHS + 1)


def _scan(changing_keys: Changing, spark: SparkSession, at: Epoch) -> None:
    """Read all of the state as its files are, and as one run of it: what a restore that scans once would read."""
    with weir.open("changing", state="state", services=changing_keys.airflow.services) as state:
        rows = state.spark(spark)
        seconds = _timed(lambda: rows.write.format("noop").mode("overwrite").save())
        whole = str(changing_keys.store.spark_url("whole"))
        rows.write.parquet(whole)
        once = spark.read.parquet(whole)
        plain = _timed(lambda: once.write.format("noop").mode("overwrite").save())
        one_key = _timed(lambda: state.get(KEYS // 2))
        told = f"{state.rows:,} rows of {format_size(state.bytes)} in {state.runs} runs"
    print(
        f"restore behind epoch {at.number}: {told}, all of them read in {seconds:.1f} s; as one file in {plain:.1f} s"
    )
    print(f"one key by weir state get: {one_key * 1000:.0f} ms")


def _rescale(changing_keys: Changing, number: int) -> None:
    changing_keys.airflow.deploy(changing(3))
    each = changing_keys.epoch(number)
    run = f"changing@{FIRST + timedelta(days=number - 1):%Y%m%d}T000000Z"
    parts = [manifest.state.files for manifest in changing_keys.manifests(run) if manifest.state is not None]
    own = [sum(bytes_of(file, file.key_groups) for file in files) for files in parts]
    print(f"rescaled from 2 to 3: {each}")
    print(
        f"bytes of each new subtask: {', '.join(map(format_size, own))} of {format_size(each.state)}; "
        "none written again"
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _worst(epochs: list[Epoch]) -> str:
    return f"{max(each.written for each in epochs):.2f}"
