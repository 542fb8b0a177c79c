"""A state with a map key in real Parquet files, opened without a ledger: for tests and measurements of look-ups."""

import io
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq

from weir.dataflow import keyed_state
from weir.formats.manifest import StateFile
from weir.reading.opened_state import OpenedState, OpenStatePartition, StateAt
from weir.store.seal import seal
from weir.topology.key_hash import key_group
from weir.topology.partitions import KEY_GROUP_COLUMN

SCHEMA = (
    '{"type": "struct", "fields": ['
    '{"name": "c", "type": "string", "nullable": true, "metadata": {}},'
    '{"name": "p", "type": "long", "nullable": true, "metadata": {}},'
    '{"name": "n", "type": "long", "nullable": true, "metadata": {}}]}'
)
GROUPS = 8


def opened(store, epochs, row_group_size=3, groups=GROUPS):
    """Open what changes leave, oldest first: of each, the new `n` of a pair (c, p), or "deleted"."""
    files = []
    for day, changes in enumerate(epochs, 1):
        rows = [(key_group([("string", c)], groups), c, p, n) for (c, p), n in changes.items()]
        rows.sort(key=lambda row: (row[0], row[1] is not None, row[1] or "", row[2] is not None, row[2] or 0))
        if rows:
            files.append(_file(store, day, rows, row_group_size, groups))
    part = OpenStatePartition(
        subtask=0, layout="", attempt="a", key_groups=(0, groups - 1), rows=0, digest="", files=tuple(files)
    )
    at = StateAt(
        state=keyed_state("carts", key="c", map_key="p", schema="c STRING, p BIGINT, n BIGINT"),
        stage="carts",
        run="shop@1",
        epoch="1",
        checkpoint=None,
        spark_schema=SCHEMA,
        max_parallelism=groups,
        expired_until=None,
        partitions=(part,),
        advice="",
    )
    return OpenedState(store, at, None, ExitStack())


def _file(store, day, rows, row_group_size, max_parallelism):
    groups, c, p, n = zip(*rows, strict=True)
    table = pa.table(
        {
            "c": pa.array(c, pa.string()),
            "p": pa.array(p, pa.int64()),
            "n": pa.array([None if each == "deleted" else each for each in n], pa.int64()),
            KEY_GROUP_COLUMN: pa.array(groups, pa.int32()),
            "_weir_deleted": pa.array([each == "deleted" for each in n], pa.bool_()),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=row_group_size, write_page_checksum=True)
    store.create(f"carts/{day}/part-0.zstd.parquet", buffer.getvalue())
    (file,) = seal(store, f"carts/{day}")
    return StateFile(
        folder=f"carts/{day}", file=file, epoch=f"201301{day:02}T000000Z", key_groups=(0, max_parallelism - 1)
    )
