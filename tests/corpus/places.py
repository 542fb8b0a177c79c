"""Where rows are published, and what somebody who is not Weir reads there."""

from __future__ import annotations

import hashlib
import json
import uuid
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from tests.corpus.columns import SELECTED, of_arrow, of_postgres
from tests.corpus.values import DELTA, FILES, ICEBERG, POSTGRESQL

from weir.connections import Connection
from weir.dataflow import delta, files, iceberg, postgres
from weir.errors import Misconfigured
from weir.sinks import Version, VersionFile
from weir.sinks.opening import class_of
from weir.testing.sink_contract import DAY, LocalReach


class Written:
    """A result as Spark has written it."""

    def __init__(self, report, store):
        self.report, self.store = report, store
        self.paths = [store.spark_url(f"{report.folder}/{each.name}") for each in report.files]

    def arrow(self):
        """All rows, in the order in which they were made."""
        found = pa.concat_tables([pq.ParquetFile(each.removeprefix("file://")).read() for each in self.paths])
        return found.sort_by("n") if "n" in found.column_names else found

    def version(self, taken):
        """Some of its rows as a version to publish: Spark's own file if they are all."""
        schema = self.report.spark_schema
        if len(taken) == self.arrow().num_rows and len(self.paths) == 1:
            (file,) = self.report.files
            made = VersionFile(f"{self.report.folder}/{file.name}", file.bytes, file.rows, file.sha256)
        else:
            made = self._part(taken)
        return Version(
            dataflow="corpus",
            sink="out",
            epoch=DAY,
            number=1,
            attempt=f"t0001-{uuid.uuid4().hex[:12]}",
            digest=made.sha256,
            spark_schema=schema,
            files=(made,),
        )

    def _part(self, taken):
        out = pa.BufferOutputStream()
        pq.write_table(self.arrow().take(taken), out)
        content = out.getvalue().to_pybytes()
        path = f"corpus/{uuid.uuid4().hex}.parquet"
        self.store.create(path, content)
        return VersionFile(path, len(content), len(taken), hashlib.sha256(content).hexdigest())


class Place:
    """A target, of which each version gets a table or folder of its own."""

    def __init__(self, tmp_path, request):
        self.folder, self.request = tmp_path, request
        self.connections = ()

    def published(self, version):
        """Publish a version; the values that a foreign reader finds, in their order."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        target = self.target(name)
        try:
            target.commit(version, target.prepare(version, None))
        except Exception as error:  # noqa: BLE001  it is what came of the version
            return f"{type(error).__name__}: {error}"
        return self.read(name, json.loads(version.spark_schema)["fields"][1]["type"])

    def refuses(self, version):
        """Report whether the version is refused before anything is shown."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        target = self.target(name)
        try:
            target.prepare(version, None)
        except Misconfigured:
            return True
        return False

    def target(self, name):
        store = self.request.getfixturevalue("store")
        folder = store.spark_url("").removeprefix("file://").rstrip("/")
        declared = self.declared(name)
        return class_of(declared)(declared.options, LocalReach(Path(folder), *self.connections))


class Files(Place):
    def declared(self, name):
        return files(str(self.folder / name))

    def read(self, name, type_):
        (file,) = (self.folder / name).glob("*/*.parquet")
        return of_arrow(pq.ParquetFile(file).read().sort_by("n")["v"])


class Delta(Place):
    def declared(self, name):
        return delta(str(self.folder / name), create="if_missing")

    def read(self, name, type_):
        return of_arrow(DeltaTable(self.folder / name).to_pyarrow_table().sort_by("n")["v"])


class Iceberg(Place):
    def __init__(self, tmp_path, request):
        super().__init__(tmp_path, request)
        self.extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
        self.connections = (Connection(id="lake", kind="iceberg", extra=self.extra),)

    def declared(self, name):
        return iceberg(f"lake.db.{name}", create="if_missing")

    def read(self, name, type_):
        return of_arrow(load_catalog("lake", **self.extra).load_table(f"db.{name}").scan().to_arrow().sort_by("n")["v"])


class PostgreSQL(Place):
    def __init__(self, tmp_path, request):
        super().__init__(tmp_path, request)
        server = request.getfixturevalue("postgres")
        self.url = server.url("corpus").replace("+psycopg2", "")
        found = psycopg2.extensions.parse_dsn(self.url)
        self.connections = (
            Connection(
                id="db",
                kind="postgres",
                host="127.0.0.1",
                port=server.port,
                database="corpus",
                login=found["user"],
                password=server.password,
            ),
        )

    def declared(self, name):
        return postgres("db", name, create="if_missing")

    def read(self, name, type_):
        spark = type_ if isinstance(type_, str) else self.nested(type_)
        with closing(psycopg2.connect(self.url)) as db, db.cursor() as cursor:
            cursor.execute(f"select {SELECTED.get(spark, 'v')} from {name} order by n")  # noqa: S608
            return [of_postgres(value, spark) for (value,) in cursor.fetchall()]

    @staticmethod
    def nested(type_):
        return f"map<{type_['keyType'][:3]}" if type_["type"] == "map" else type_["type"]


PLACES = {FILES: Files, POSTGRESQL: PostgreSQL, DELTA: Delta, ICEBERG: Iceberg}
