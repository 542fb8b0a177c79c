"""A small dataflow whose results are real Parquet files, without Spark."""

import copy
import importlib.util
import io
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.formats.codec import manifest_from_json
from weir.formats.manifest import ContentDigest
from weir.formats.region_job import OutputReport
from weir.ledger.ledger import Ledger
from weir.store.seal import seal
from weir.testing.fakes.engine import FakeEngine
from weir.testing.fakes.ledgers import fast_folder
from weir.topology.partitions import KEY_GROUP_COLUMN

_spec = importlib.util.spec_from_file_location("small_dataflow", Path(__file__).parents[1] / "conftest.py")
small = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(small)

FIELDS = [("k", "long"), ("content", "string"), ("at", "timestamp")]
SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in FIELDS]}
)
CONTENT = "content"


class ParquetEngine(FakeEngine):
    """Writes each content as two rows of a Parquet file, as Spark does: with a column of key groups where keyed."""

    def _read(self, spark_path):
        path = self._path(spark_path)
        data = self._store.read(path)
        manifest = manifest_from_json(self._store.read(path.rpartition("/")[0] + "/manifest.json"))
        if len(data) != manifest.files[0].bytes:
            raise OSError(f"{path} is truncated")
        return pq.read_table(io.BytesIO(data))[CONTENT][0].as_py()

    def _write(self, stage, output, content, more=b""):
        number = int(content[:8], 16)
        columns = {
            "k": pa.array([number, number + 1], pa.int64()),
            CONTENT: pa.array([content, content]),
            "at": pa.array([number, None], pa.timestamp("us", tz="UTC")),
        }
        if output.layout.keys:
            columns[KEY_GROUP_COLUMN] = pa.array([0, 1], pa.int32())
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, compression="zstd", write_page_checksum=True)
        self._store.create(f"{output.folder}/part-0.zstd.parquet", buffer.getvalue())
        digest = ContentDigest(schema="k:bigint", rows=2, xor=int(content[:15], 16), low_sum=1, high_sum=2)
        return OutputReport(
            stage=stage.name,
            layout=output.layout,
            folder=output.folder,
            spark_schema=SCHEMA,
            digest=digest,
            files=seal(self._store, output.folder),
        )


class World(small.World):
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
        other = World(folder, self.airflow.flow, lambda: Ledger.open(f"sqlite:///{folder}/ledger.db"))
        for name in ("tasks", "time", "clear_numbers"):
            setattr(other.airflow, name, copy.deepcopy(getattr(self.airflow, name)))
        return other


@pytest.fixture
def tmp_path():
    """A folder in memory: these tests commit by the thousand."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def world(tmp_path, environment):
    (tmp_path / "store").mkdir()
    return World(tmp_path, small.ladder())


@pytest.fixture(scope="session")
def went_through():
    """A world in which one run has gone through: made once, and copied."""
    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = World(folder, small.ladder())
        world.run()
        world.ledger.close()
        yield world


@pytest.fixture
def done(went_through, tmp_path, environment):
    return went_through.copied(tmp_path)
