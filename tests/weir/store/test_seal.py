import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.partitions import parquet_bytes
from tests.messages.kinds import of_kind

from weir.errors import Internal, Retryable
from weir.store.seal import seal
from weir.testing.fakes.stores import CountingStore
from weir.topology.partitions import KEY_GROUP_COLUMN


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def assert_covered(file, data: bytes):
    """The segments join without a gap from the first byte to the last, and each digest is right."""
    assert file.bytes == len(data)
    assert file.sha256 == sha256(data)
    offset = 0
    for segment in file.segments:
        assert segment.offset == offset
        assert segment.sha256 == sha256(data[offset : offset + segment.length])
        offset += segment.length
    assert offset == len(data)
    assert [segment.is_tail for segment in file.segments] == [False] * (len(file.segments) - 1) + [True]


def parquet(table: pa.Table, **options) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def test_segments_cover_each_file_and_carry_the_key_groups_of_their_rows(store):
    data = {"part-0.parquet": parquet_bytes(10_000), "part-1.parquet": parquet_bytes(3_500, row_group_rows=700)}
    for name, content in data.items():
        store.create(f"attempt/{name}", content)
    files = seal(store, "attempt")
    assert [(file.name, file.rows) for file in files] == [("part-0.parquet", 10_000), ("part-1.parquet", 3_500)]
    for file in files:
        assert_covered(file, data[file.name])
    ranges = [segment.key_groups for segment in files[0].segments]
    assert len(ranges) == 11
    assert ranges[0] == (0, 12)
    assert ranges[9] == (115, 127)
    assert ranges[10] is None


def test_the_tail_begins_right_behind_the_last_column_chunk_and_holds_the_page_indexes(store):
    data = parquet_bytes(5_000)
    store.create("attempt/part-0.parquet", data)
    (file,) = seal(store, "attempt")
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    assert file.segments[-1].length > footer_bytes  # column and offset indexes too
    last = pq.read_metadata(pa.BufferReader(data)).row_group(4)
    ends = []
    for number in range(last.num_columns):
        column = last.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        ends.append(start + column.total_compressed_size)
    assert file.segments[-1].offset == max(ends)


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("compression", ["zstd", "none", "snappy"])
def test_row_groups_with_and_without_dictionaries_are_cut_where_the_next_begins(store, use_dictionary, compression):
    table = pa.table({"a": [f"value {number % 10}" for number in range(1000)], "b": list(range(1000))})
    data = parquet(table, row_group_size=100, use_dictionary=use_dictionary, compression=compression)
    store.create("attempt/part-0.parquet", data)
    (file,) = seal(store, "attempt")
    assert_covered(file, data)
    metadata = pq.read_metadata(pa.BufferReader(data))
    for number in range(1, 10):
        column = metadata.row_group(number).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        assert file.segments[number].offset == start


def test_a_file_without_rows_is_one_tail(store):
    data = parquet_bytes(0)
    store.create("attempt/part-0.parquet", data)
    (file,) = seal(store, "attempt")
    assert_covered(file, data)
    assert (file.rows, len(file.segments)) == (0, 1)


def test_a_folder_without_files_seals_to_nothing(store):
    store.create("attempt/_SUCCESS", b"")
    assert seal(store, "attempt") == ()
    assert seal(store, "attempt") == ()


def test_sparks_side_files_are_deleted(store):
    store.create("attempt/part-0.parquet", parquet_bytes(10))
    for name in ("_SUCCESS", "._SUCCESS.crc", ".part-0.parquet.crc", "_temporary/0/x", ".spark-staging-1/y"):
        store.create(f"attempt/{name}", b"x")
    seal(store, "attempt")
    assert [name for name, _ in store.list("attempt")] == ["part-0.parquet"]
    assert store.folders("attempt") == []


def test_a_column_that_is_no_key_group_gives_segments_that_every_reader_needs(store):
    store.create("attempt/part-0.parquet", parquet(pa.table({"a": list(range(100))}), row_group_size=10))
    (file,) = seal(store, "attempt")
    assert {segment.key_groups for segment in file.segments} == {None}


def test_key_groups_without_statistics_are_unknown_not_empty(store):
    table = pa.table({KEY_GROUP_COLUMN: pa.array([1, 2, 3], pa.int32())})
    store.create("attempt/part-0.parquet", parquet(table, write_statistics=False))
    (file,) = seal(store, "attempt")
    assert file.segments[0].key_groups is None


def test_each_byte_is_read_once_besides_the_footer(store):
    counting = CountingStore(store)
    data = parquet_bytes(20_000)
    store.create("attempt/part-0.parquet", data)
    seal(counting, "attempt")
    assert counting.total_bytes_read <= len(data) + 64 * 2**10


def test_a_footer_larger_than_the_first_guess_is_read_whole(store):
    table = pa.table({f"column_{number}": pa.array([1, 2]) for number in range(2000)})
    data = parquet(table, row_group_size=1)
    assert int.from_bytes(data[-8:-4], "little") > 64 * 2**10
    store.create("attempt/part-0.parquet", data)
    (file,) = seal(store, "attempt")
    assert_covered(file, data)
    assert len(file.segments) == 3


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"not parquet at all", parquet_bytes(100)[:-100], b"\xff\xff\xff\x7fPAR1"]
)
def test_a_file_that_is_not_parquet_is_told_by_name(store, data):
    store.create("attempt/part-7.parquet", data)
    with pytest.raises(Retryable, check=of_kind("store.parquet_unreadable")):
        seal(store, "attempt")


def test_a_folder_that_holds_a_manifest_already_is_refused(store):
    store.create("attempt/part-0.parquet", parquet_bytes(10))
    store.create("attempt/manifest.json", b"{}")
    with pytest.raises(Internal, check=of_kind("store.folder_used_twice", unexpected=["manifest.json"])):
        seal(store, "attempt")
