"""Every byte is compared, and of what was never verified every page."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.partitions import parquet_bytes, write_partition
from tests.messages.kinds import of_kind

from weir.errors import Fault, Retryable
from weir.formats.manifest import Manifest
from weir.store.store import Store
from weir.store.verification import compare_results
from weir.testing.fakes.stores import CountingStore, FailingStore

FOLDER = "flow/attempt"


def paged_bytes() -> bytes:
    """A file whose pages have checksums."""
    buffer = io.BytesIO()
    table = pa.table({"n": pa.array(range(2000), pa.int64())})
    pq.write_table(table, buffer, compression="none", use_dictionary=False, write_page_checksum=True)
    return buffer.getvalue()


@pytest.fixture
def store(tmp_path):
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


def compared(store, ref, **more):
    read = []
    (answer,) = compare_results(store, store.initialise(), [ref], read.append, **more).values()
    return answer, sum(read)


def test_a_whole_result_is_read_once_and_a_byte_more(store):
    counting = CountingStore(store)
    ref, manifest = write_partition(counting, FOLDER, {"part-0.parquet": parquet_bytes(2000, row_group_rows=500)})
    counting.bytes_read.clear()
    answer, read = compared(counting, ref)
    assert answer == manifest
    tail = manifest.files[0].segments[-1].length  # read by the probe, too
    assert counting.bytes_read[f"{FOLDER}/part-0.parquet"] == read + tail
    assert read == manifest.bytes


def test_two_files_of_which_one_is_gone(store):
    data = parquet_bytes(500)
    ref, _ = write_partition(store, FOLDER, {"part-0.parquet": data, "part-1.parquet": data})
    store.delete(f"{FOLDER}/part-1.parquet")
    answer, _ = compared(store, ref)
    assert (answer.fault, "part-1.parquet" in answer.detail) == (Fault.MISSING, True)


def test_a_store_that_does_not_answer_says_nothing(store):
    failing = FailingStore(store)
    ref, manifest = write_partition(failing, FOLDER, {"part-0.parquet": parquet_bytes(500)})
    failing.fail("*/part-0.parquet", PermissionError(13, "Permission denied"))
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        compared(failing, ref)
    failing.heal()
    assert compared(failing, ref)[0] == manifest


def test_a_file_that_is_not_there_for_a_moment_is_not_lost(store):
    failing = FailingStore(store)
    ref, manifest = write_partition(failing, FOLDER, {"part-0.parquet": parquet_bytes(500)})
    failing.fail("*/part-0.parquet", FileNotFoundError(2, "not now"), times=1)
    assert compared(failing, ref)[0] == manifest


def test_a_page_that_was_damaged_before_it_was_sealed(store):
    data = bytearray(paged_bytes())
    data[300] ^= 1
    ref, manifest = write_partition(store, FOLDER, {"part-0.parquet": bytes(data)})
    assert compared(store, ref)[0] == manifest  # its bytes are as they were sealed
    answer, _ = compared(store, ref, paged={ref})
    assert answer.fault is Fault.DAMAGED
    assert "CRC" in answer.detail


@pytest.mark.parametrize("data", [paged_bytes(), parquet_bytes(2000, row_group_rows=500)])
def test_pages_that_are_right_or_have_no_checksum(store, data):
    ref, _ = write_partition(store, FOLDER, {"part-0.parquet": data})
    assert isinstance(compared(store, ref, paged={ref})[0], Manifest)


def test_a_store_that_fails_while_pages_are_decoded_says_nothing(store):
    ref, _ = write_partition(store, FOLDER, {"part-0.parquet": paged_bytes()})

    class Forgetful(CountingStore):
        def read(self, path, offset=0, length=None):
            if self.total_bytes_read > 20_000 and path.endswith(".parquet"):
                raise Retryable("no answer")
            return super().read(path, offset, length)

    with pytest.raises(Retryable, match="no answer"):
        compared(Forgetful(store), ref, paged={ref})
