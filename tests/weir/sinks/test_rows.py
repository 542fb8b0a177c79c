"""The rows of a version: what fails while they are read is said of the store."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.errors import Retryable
from weir.sinks import TargetAway, Version, VersionFile
from weir.sinks.rows import BATCH_ROWS, batches
from weir.testing.sink_contract import DAY, LocalReach


class Away(io.FileIO):
    """A file of a store that can stop answering."""

    is_away = False

    def readinto(self, buffer):
        if self.is_away:
            raise OSError("the store does not answer")
        return super().readinto(buffer)


class Reach(LocalReach):
    def open(self, file):
        self.opened = Away(self.folder / file.path)
        return io.BufferedReader(self.opened)


def test_a_store_that_stops_answering_between_two_batches_is_no_target_that_is_away(tmp_path):
    rows = 20 * BATCH_ROWS
    table = pa.table({"k": pa.array(range(rows), pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=BATCH_ROWS, use_dictionary=False, compression=None)
    file = VersionFile("a.parquet", (tmp_path / "a.parquet").stat().st_size, rows, "")
    version = Version(
        dataflow="flow",
        sink="delays",
        epoch=DAY,
        number=1,
        attempt="t0001-a",
        digest="",
        spark_schema="",
        files=(file,),
    )
    reach = Reach(tmp_path)
    found = batches(reach, version, ["k"])
    assert next(found).num_rows == BATCH_ROWS
    assert reach.opened.tell() < file.bytes / 10  # the rest is not in memory
    reach.opened.is_away = True
    with pytest.raises(Retryable, match=r"a\.parquet cannot be read: the store does not answer") as raised:
        list(found)
    assert not isinstance(raised.value, TargetAway)
