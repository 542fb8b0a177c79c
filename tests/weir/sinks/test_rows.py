"""The rows of a version: what fails while they are read is said of the store."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.messages.kinds import of_kind

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


def version_of(folder, rows):
    return Version(
        dataflow="flow",
        sink="delays",
        epoch=DAY,
        number=1,
        attempt="t0001-a",
        digest="",
        spark_schema="",
        files=(VersionFile("a.parquet", (folder / "a.parquet").stat().st_size, rows, ""),),
    )


def test_a_store_that_stops_answering_between_two_batches_is_no_target_that_is_away(tmp_path):
    rows = 20 * BATCH_ROWS
    table = pa.table({"k": pa.array(range(rows), pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=BATCH_ROWS, use_dictionary=False, compression=None)
    version = version_of(tmp_path, rows)
    file = version.files[0]
    reach = Reach(tmp_path)
    found = batches(reach, version, ["k"])
    assert next(found).num_rows == BATCH_ROWS
    assert reach.opened.tell() < file.bytes / 10  # the rest is not in memory
    reach.opened.is_away = True
    with pytest.raises(
        Retryable, check=of_kind("sinks.file_unreadable", error="the store does not answer", file_path="a.parquet")
    ) as raised:
        list(found)
    assert not isinstance(raised.value, TargetAway)


def test_an_old_timestamp_of_spark_beyond_the_range_of_nanoseconds_is_what_it_was(tmp_path):
    at = pa.array([-30_000_000_000_000_000, 32_503_680_000_000_000], pa.int64()).cast(pa.timestamp("us"))
    pq.write_table(pa.table({"at": at}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    (found,) = batches(LocalReach(tmp_path), version_of(tmp_path, 2), ["at"])
    assert found["at"].cast(pa.timestamp("us")).equals(at)
