"""A sink with a Delta table, as tests publish into it and as DuckDB and delta-rs read it."""

# ruff: noqa: S608

from __future__ import annotations

import hashlib
import json
import threading

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake

from weir.dataflow import delta
from weir.sinks import Version, VersionFile
from weir.sinks.targets.delta import DeltaTarget

DAY, NEXT = "20130101T000000Z", "20130102T000000Z"
LONG = (("k", "long", pa.int64()),)


def spark_schema(columns):
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in columns]
    return json.dumps({"type": "struct", "fields": fields})


def by_duckdb(table):
    """A table as DuckDB sees it, by a connection of its own: a thread's may be busy."""
    return duckdb.from_arrow(table.to_pyarrow_dataset(), connection=duckdb.connect())


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
        seen = by_duckdb(table).query("t", f"select {names} from t where _epoch = '{epoch}'")
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


def made_table(sink, columns=(("k", "long"), ("_epoch", "string")), *, partition="_epoch", **properties):
    """A table that a person has made."""
    given = [Field(name, kind) if isinstance(name, str) else name for name, kind in columns]
    DeltaTable.create(
        str(sink.root), Schema(given), partition_by=[partition] if partition else None, configuration=properties
    )
