"""One flipped bit, one missing byte: nothing that happens to a file goes unnoticed."""

import io
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.partitions import parquet_bytes, write_partition

from weir.errors import Fault, Loss
from weir.store.probe import probe, verify_segments
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN

FOLDER = "flow/attempt"
PART = f"{FOLDER}/part-0.parquet"


def version_one_pages() -> bytes:
    """Plain, uncompressed pages without checksums, one nested column, and nulls."""
    rows = 2000
    table = pa.table(
        {
            KEY_GROUP_COLUMN: pa.array([number * 8 // rows for number in range(rows)], pa.int32()),
            "values": pa.array([[number, None] if number % 3 else None for number in range(rows)]),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=250, compression="none", use_dictionary=False, data_page_version="1.0")
    return buffer.getvalue()


@cache
def written(kind: str):
    """One store a kind of file; `Store` has no state of its own."""
    data = {"zstd": parquet_bytes(8000, row_group_rows=500), "plain": version_one_pages()}[kind]
    store = Store.open(f"memory://flipped-{kind}")
    store_id = store.initialise()
    store.delete_folder(FOLDER)
    return store, store_id, *write_partition(store, FOLDER, {"part-0.parquet": data}), data


def damage(kind: str, data: bytes):
    """What probe answers, and what verifying all key groups answers, while the file holds `data`."""
    store, store_id, ref, manifest, original = written(kind)
    store.replace(PART, data)
    try:
        return probe(store, store_id, [ref])[ref], verify_segments(store, store_id, [(manifest, FOLDER, None)])
    finally:
        store.replace(PART, original)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def check_flip(kind: str, bit: int) -> None:
    *_, manifest, data = written(kind)
    tail = manifest.files[0].segments[-1].offset
    probed, verified = damage(kind, flipped(data, bit))
    assert [loss.fault for loss in verified] == [Fault.DAMAGED]
    if bit // 8 >= tail:
        assert isinstance(probed, Loss)
        assert probed.fault is Fault.DAMAGED
    else:
        assert probed == manifest  # left to the segments' digests


@pytest.mark.parametrize("kind", ["zstd", "plain"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(kind, data):
    check_flip(kind, data.draw(st.integers(0, len(written(kind)[-1]) * 8 - 1)))


@pytest.mark.parametrize("kind", ["zstd", "plain"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_a_flipped_bit_in_indexes_and_footer_is_found_by_the_probe(kind, data):
    *_, manifest, content = written(kind)
    first = manifest.files[0].segments[-1].offset * 8
    check_flip(kind, data.draw(st.integers(first, len(content) * 8 - 1)))


@pytest.mark.parametrize("kind", ["zstd", "plain"])
def test_a_flipped_bit_at_each_border_is_found(kind):
    *_, manifest, content = written(kind)
    for segment in manifest.files[0].segments:
        check_flip(kind, segment.offset * 8)
        check_flip(kind, (segment.offset + segment.length) * 8 - 1)
    for byte in (0, 3, 4, len(content) - 1, len(content) - 8):
        check_flip(kind, byte * 8)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data())
def test_a_file_cut_anywhere_is_damaged(data):
    *_, content = written("zstd")
    length = data.draw(st.integers(0, len(content) - 1))
    probed, verified = damage("zstd", content[:length])
    for loss in (probed, *verified):
        assert loss.fault is Fault.DAMAGED
        assert loss.detail == f"{PART}: expected {len(content)} bytes, found {length}"
    assert len(verified) == 1


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.binary(min_size=1, max_size=20))
def test_a_file_that_has_grown_is_damaged(more):
    *_, content = written("zstd")
    probed, verified = damage("zstd", content + more)
    for loss in (probed, *verified):
        assert isinstance(loss, Loss)
        assert loss.fault is Fault.DAMAGED
    assert len(verified) == 1
