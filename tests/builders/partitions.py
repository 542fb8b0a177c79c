"""Real result partitions without Spark, for tests.

Invariant: what is written here passes `probe` and `verify_segments`.
"""

from __future__ import annotations

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq

from weir.formats.codec import to_json
from weir.formats.manifest import ContentDigest, DataFile, Manifest
from weir.formats.paths import manifest_path
from weir.store.probe import PartitionRef
from weir.store.seal import seal
from weir.store.store import Store
from weir.topology.ids import AttemptId, Epoch, RunId
from weir.topology.partitions import KEY_GROUP_COLUMN, Layout

KEYED = Layout(("key",), 128)


def parquet_bytes(rows: int, *, groups: int = KEYED.max_parallelism, row_group_rows: int = 1000) -> bytes:
    """Make a Parquet file of columns `_weir_key_group` (sorted), `key` and `value`, with page indexes, in zstd."""
    key_groups = [number * groups // rows for number in range(rows)]
    table = pa.table(
        {
            KEY_GROUP_COLUMN: pa.array(key_groups, pa.int32()),
            "key": pa.array([f"key {number % 97}" for number in range(rows)], pa.string()),
            "value": pa.array([hashlib.sha256(str(number).encode()).digest() for number in range(rows)], pa.binary()),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        row_group_size=row_group_rows,
        compression="zstd",
        write_page_index=True,
        write_page_checksum=True,
    )
    return buffer.getvalue()


def write_partition(
    store: Store,
    folder: str,
    files: dict[str, bytes],
    *,
    run: str = "run",
    stage: str = "stage",
    subtask: int = 0,
    attempt: str = "t0001-000000000000",
) -> tuple[PartitionRef, Manifest]:
    """Write the files, seal them, and write their manifest; the reference is as the ledger would hold it."""
    for name, data in files.items():
        store.create(f"{folder}/{name}", data)
    sealed = seal(store, folder) if files else ()
    manifest = _manifest(sealed, run=run, stage=stage, subtask=subtask, attempt=attempt)
    data = to_json(manifest)
    store.create(manifest_path(folder), data)
    sha256 = hashlib.sha256(data).hexdigest()
    return PartitionRef(
        run=run, stage=stage, subtask=subtask, layout=KEYED.id, attempt=attempt, folder=folder, manifest_sha256=sha256
    ), manifest


def _manifest(files: tuple[DataFile, ...], *, run: str, stage: str, subtask: int, attempt: str) -> Manifest:
    return Manifest(
        dataflow="flow",
        epoch=Epoch("20130101T000000Z"),
        run=RunId(run),
        stage=stage,
        subtask=subtask,
        layout=KEYED.id,
        attempt=AttemptId(attempt),
        try_number=1,
        lineage=1,
        keys=KEYED.keys,
        max_parallelism=KEYED.max_parallelism,
        spark_schema='{"type":"struct","fields":[]}',
        digest=ContentDigest(schema="schema", rows=sum(file.rows for file in files), xor=0, low_sum=0, high_sum=0),
        files=files,
        inputs=(),
        code="code",
        session={},
        parameters={},
        created_at="2013-01-02T00:00:00+00:00",
        versions=("code",),
    )
