"""The small dataflow with results that are real Parquet files, without Spark: for tests of those who read them."""

import copy
import io
import json
import shutil
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq
from tests.builders.ledgers import copied_ledger
from tests.weir.small_dataflow import World

from weir.formats.codec import from_json
from weir.formats.manifest import ContentDigest, Manifest
from weir.formats.region_job import OutputReport
from weir.store.seal import seal
from weir.testing.fakes.engine import FakeEngine
from weir.topology.partitions import KEY_GROUP_COLUMN

FIELDS = [("k", "long"), ("content", "string"), ("at", "timestamp")]
SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in FIELDS]}
)
CONTENT = "content"


class ParquetEngine(FakeEngine):
    """Writes each content as rows of a Parquet file, as Spark does: with a column of key groups where keyed."""

    later, writing, rows = 0, {}, MappingProxyType({})
    """Microseconds that are added to times, options of the writer, and by stage how many rows its results have."""

    def _read(self, spark_path):
        path = self._path(spark_path)
        data = self._store.read(path)
        manifest = from_json(Manifest, self._store.read(path.rpartition("/")[0] + "/manifest.json"))
        if len(data) != manifest.files[0].bytes:
            raise OSError(f"{path} is truncated")
        return pq.read_table(io.BytesIO(data))[CONTENT][0].as_py()

    def _write(self, stage, output, content, more=b""):
        number, rows = int(content[:8], 16), self.rows.get(stage.name, 2)
        columns = {
            "k": pa.array(range(number, number + rows), pa.int64()),
            CONTENT: pa.array([content] * rows),
            "at": pa.array([number + self.later] + [None] * (rows - 1), pa.timestamp("us", tz="UTC")),
        }
        if output.layout.keys:
            columns[KEY_GROUP_COLUMN] = pa.array([0] + [1] * (rows - 1), pa.int32())
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, compression="zstd", write_page_checksum=True, **self.writing)
        self._store.create(f"{output.folder}/part-0.zstd.parquet", buffer.getvalue())
        digest = ContentDigest(schema="k:bigint", rows=rows, xor=int(content[:15], 16), low_sum=1, high_sum=2)
        return OutputReport(
            stage=stage.name,
            layout=output.layout,
            folder=output.folder,
            spark_schema=SCHEMA,
            digest=digest,
            files=seal(self._store, output.folder),
        )


class ReaderWorld(World):
    """What a reader meets: runs that went through, in the environment's ledger and store."""

    def __init__(self, folder, flow, empty_ledger=None):
        super().__init__(folder, flow, empty_ledger)
        self.airflow.engine = ParquetEngine(self.store, self.content)

    def run(self, day=1):
        name = self.airflow.dag_run(day)
        self.airflow.run_until_quiet()
        return name

    def copied(self, folder):
        """Another world in which the same has happened."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        other = ReaderWorld(folder, self.airflow.flow, lambda: copied_ledger(folder / "ledger.db"))
        for name in ("tasks", "time", "clear_numbers"):
            setattr(other.airflow, name, copy.deepcopy(getattr(self.airflow, name)))
        return other
