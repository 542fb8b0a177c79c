"""What it costs to publish rows into a target, against the bare library that writes the same files' rows.

    pytest tests/benchmarks/test_sinks.py --benchmark-only -s --sink-rows 10000000

Ours is `prepare` and `commit` of a new version. The bare way reads the version's Parquet files and writes them by the
library's own call: no marker, no check, and no second epoch. Both in turn, in one run; seconds are medians. Memory is
the most that the process held besides what it held before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import threading
import time
from contextlib import closing

import numpy as np
import psutil
import psycopg2
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from tests.builders.connections import connection_to
from tests.servers.s3 import client_of, running_s3

from weir.connections import Connection
from weir.dataflow import delta, files, iceberg, postgres
from weir.sinks import Outcome, Version, VersionFile
from weir.sinks.targets.delta import DeltaTarget
from weir.sinks.targets.files import FilesTarget
from weir.sinks.targets.files_on_s3 import S3FilesTarget
from weir.sinks.targets.iceberg import IcebergTarget
from weir.sinks.targets.postgres import PostgresTarget
from weir.testing.sink_contract import LocalReach

EPOCH = "20130101T000000Z"
FILES, ROUNDS = 4, 3
KINDS = {"k": "long", "carrier": "string", "day": "date", "delay": "integer", "distance": "double", "text": "string"}
MIB = 2**20


def version_of(folder, rows, number):
    """A version of so many rows in four files, each time other ones."""
    made = []
    draw = np.random.default_rng(number)
    for at in range(FILES):
        count = rows // FILES
        table = pa.table(
            {
                "k": pa.array(np.arange(at * count, (at + 1) * count)),
                "carrier": pa.array(draw.choice(["AA", "B6", "DL", "EV", "UA", "US"], count)),
                "day": pa.array(draw.integers(15_000, 16_000, count, dtype="int32")).cast(pa.date32()),
                "delay": pa.array(draw.integers(-60, 600, count, dtype="int32")),
                "distance": pa.array(draw.random(count) * 4000),
                "text": pa.array(draw.integers(0, 2**40, count).astype(str)),
            }
        )
        path = folder / f"{number}-{at}.parquet"
        pq.write_table(table, path, compression="zstd")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        made.append(VersionFile(path.name, path.stat().st_size, count, digest))
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in KINDS.items()]
    return Version(
        dataflow="bench",
        sink="rows",
        epoch=EPOCH,
        number=number,
        attempt=f"t0001-{number:012}",
        digest=str(number),
        spark_schema=json.dumps({"type": "struct", "fields": fields}),
        files=tuple(made),
    )


class Files:
    """The bare way copies the files."""

    def __init__(self, folder, _request):
        self.folder, self.options = folder, files(str(folder / "lake")).options

    def target(self, reach):
        return FilesTarget(self.options, reach)

    def bare(self, paths):
        shutil.rmtree(self.folder / "bare", ignore_errors=True)
        (self.folder / "bare").mkdir()
        for path in paths:
            shutil.copy(path, self.folder / "bare")


class FilesOnS3:
    """The bare way uploads the files as they are."""

    def __init__(self, _folder, request):
        server = request.getfixturevalue("s3_server")
        extra = {"endpoint_url": server.url}
        self.connection = Connection(id="aws_id", kind="aws", login="a", password="b", extra=extra)
        self.client, self.options = client_of(server.url), files("s3://lake/rows", conn_id="aws_id").options

    def target(self, reach):
        return S3FilesTarget(self.options, LocalReach(reach.folder, self.connection))

    def bare(self, paths):
        for path in paths:
            with path.open("rb") as body:
                self.client.put_object(Bucket="lake", Key=f"bare/{path.name}", Body=body)


class Postgres:
    """The bare way copies rows into a table of the same columns by COPY from Arrow's CSV."""

    def __init__(self, _folder, request):
        server = request.getfixturevalue("postgres")
        self.url = server.url("sinks_bench").replace("+psycopg2", "")
        self.connection = connection_to(self.url)
        self.options = postgres("db", "rows", create="if_missing").options

    def target(self, reach):
        return PostgresTarget(self.options, LocalReach(reach.folder, self.connection))

    def bare(self, paths):
        with closing(psycopg2.connect(self.url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("drop table if exists bare")
            cursor.execute(
                "create table bare (k bigint, carrier text, day date, delay integer, distance float8, text text,"
                " e text)"
            )
            cursor.execute("create index on bare (e)")  # as ours has one
            for path in paths:
                for batch in pq.ParquetFile(path).iter_batches(16_384):
                    sink = pa.BufferOutputStream()
                    whole = batch.append_column("e", pa.array([EPOCH] * batch.num_rows))
                    pyarrow.csv.write_csv(whole, sink, pyarrow.csv.WriteOptions(include_header=False))
                    cursor.copy_expert("copy bare from stdin (format csv)", pa.BufferReader(sink.getvalue()))


class Delta:
    """The bare way writes the rows by write_deltalake."""

    def __init__(self, folder, _request):
        self.root, self.options = folder / "bare", delta(str(folder / "lake"), create="if_missing").options

    def target(self, reach):
        return DeltaTarget(self.options, reach)

    def bare(self, paths):
        reader = pq.ParquetFile(paths[0]).schema_arrow
        found = (batch for path in paths for batch in pq.ParquetFile(path).iter_batches(16_384))
        write_deltalake(str(self.root), pa.RecordBatchReader.from_batches(reader, found), mode="overwrite")


class Iceberg:
    """The bare way appends the rows as PyIceberg's users do: all of them in memory."""

    def __init__(self, folder, _request):
        extra = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.connection = Connection(id="lake", kind="iceberg", extra=extra)
        self.catalog = load_catalog("lake", **extra)
        self.catalog.create_namespace("db")
        self.options = iceberg("lake.db.rows", create="if_missing").options

    def target(self, reach):
        return IcebergTarget(self.options, LocalReach(reach.folder, self.connection))

    def bare(self, paths):
        rows = pa.concat_tables(pq.read_table(path) for path in paths)
        self.catalog.create_table_if_not_exists("db.bare", rows.schema).overwrite(rows)


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as server:
        server.make_bucket("lake")
        yield server


@pytest.mark.parametrize("kind", [Files, FilesOnS3, Postgres, Delta, Iceberg])
def test_sinks(kind, tmp_path, request, benchmark):
    rows = request.config.getoption("--sink-rows")
    place = kind(tmp_path, request)
    store = tmp_path / "store"
    store.mkdir()
    reach = LocalReach(store)
    ours, bare, held = [], [], []
    for number in range(1, ROUNDS + 1):
        version = version_of(store, rows, number)
        paths = [store / file.path for file in version.files]
        target = place.target(reach)
        with memory() as most:
            ours.append(seconds(lambda target=target, version=version: publish(target, version)))
        held.append(most[0])
        bare.append(seconds(lambda paths=paths: place.bare(paths)))
        for path in paths:
            path.unlink()
    own, other = statistics.median(ours), statistics.median(bare)
    size = sum(file.bytes for file in version.files) / MIB
    print(
        f"\n| {kind.__name__} | {rows} | {size:.0f} MiB | {own:.2f} | {other:.2f} | {own / other:.2f} | "
        f"{max(held) / MIB:.0f} MiB |",
        flush=True,
    )
    benchmark.extra_info.update({"ours": ours, "bare": bare})
    benchmark.pedantic(lambda: target.recover(version, {}), rounds=1)
    assert max(held) < 1024 * MIB


def publish(target, version):
    assert target.commit(version, target.prepare(version, None)) is Outcome.COMMITTED


def seconds(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


class memory:  # noqa: N801  a context manager
    """The most memory of this process while something runs, besides what it had before, in a list of one."""

    def __enter__(self):
        self.process, self.most, self.is_over = psutil.Process(), [0], threading.Event()
        self.before = self.process.memory_info().rss
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self.most

    def _watch(self):
        while not self.is_over.wait(0.05):
            self.most[0] = max(self.most[0], self.process.memory_info().rss - self.before)

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()
