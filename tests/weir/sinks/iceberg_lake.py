"""A sink into a table of Iceberg, its versions, and what readers that are not ours see there.

As a program it is a process that commits a version, and may be killed: `python -m tests.weir.sinks.iceberg_lake FOLDER`
reads its delivery from the input.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from weir.connections import Connection
from weir.dataflow import iceberg
from weir.sinks import Delivery, Version, VersionFile
from weir.sinks.targets.iceberg import IcebergTarget
from weir.testing.sink_contract import LocalReach

DAY, NEXT = "20130101T000000Z", "20130102T000000Z"
COLUMNS = (("day", "string", pa.string()), ("k", "long", pa.int64()), ("s", "string", pa.string()))


class Lake:
    def __init__(self, folder, extra=None, table="db.delays"):
        self.folder, self.store, self.table = folder, folder / "store", table
        self.store.mkdir(exist_ok=True)
        self.extra = extra or sqlite(folder)
        self.made = 0

    def connection(self, **given):
        return Connection(id="lake", kind="iceberg", **{"extra": self.extra, **given})

    def target(self, *, create="if_missing", is_local=True, connection=None):
        declared = iceberg(f"lake.{self.table}", create=create)
        reach = LocalReach(self.store, connection or self.connection(), is_local=is_local)
        return IcebergTarget(declared.options, reach)

    def version(self, number, *parts, epoch=DAY, columns=COLUMNS, sink="delays", **options):
        """A version of a file for each part, a list of rows; equal rows have equal digests."""
        made = []
        for part in parts:
            arrays = [pa.array([row[at] for row in part], kind) for at, (_, _, kind) in enumerate(columns)]
            path = self.store / f"{uuid.uuid4().hex}.parquet"
            pq.write_table(pa.Table.from_arrays(arrays, names=[name for name, _, _ in columns]), path, **options)
            content = path.read_bytes()
            made.append(VersionFile(path.name, len(content), len(part), hashlib.sha256(content).hexdigest()))
        self.made += 1
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in columns]
        return Version(
            dataflow="flow",
            sink=sink,
            epoch=epoch,
            number=number,
            attempt=f"t0001-{self.made:012}",
            digest=repr(sorted(repr(row) for part in parts for row in part)),
            spark_schema=json.dumps({"type": "struct", "fields": fields}),
            files=tuple(made),
        )

    def publish(self, version, **options):
        target = self.target(**options)
        return target.commit(version, target.prepare(version, None))

    def catalog(self):
        return load_catalog("lake", **self.extra)

    def load(self):
        return self.catalog().load_table(self.table)

    def snapshots(self):
        return len(self.load().metadata.snapshots)

    def rows(self, *names, table=None):
        """What PyIceberg's scan and DuckDB over it see, sorted."""
        arrow = (table or self.load()).scan().to_arrow()
        listed = ", ".join(names or arrow.column_names)
        return sorted(duckdb.sql(f"select {listed} from arrow").fetchall(), key=repr)  # noqa: S608

    def append(self, **columns):
        """A foreign writer's rows, by PyIceberg."""
        table = self.load()
        table.append(pa.table(columns, schema=table.scan().to_arrow().schema))

    def compact(self):
        """A foreign compaction: one snapshot has a file in place of all that there were."""
        table = self.load()
        rows, old = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
        with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in _dataframe_to_data_files(table.metadata, rows, table.io):
                snapshot.append_data_file(file)


def sqlite(folder):
    """The properties of a catalog on SQLite, with a warehouse on the same disk."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


if __name__ == "__main__":
    here = Lake(Path(sys.argv[1]))
    print("ready", flush=True)
    delivery = Delivery.from_json(json.loads(sys.stdin.readline()))
    here.target().commit(delivery.version, delivery.token)
