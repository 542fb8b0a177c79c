import errno
import os

import pytest
from tests.builders.partitions import parquet_bytes, write_partition
from tests.messages.kinds import of_kind
from tests.weir.store.conftest import opening

from weir.errors import Fault, Loss, Retryable
from weir.formats.manifest import Manifest
from weir.store.probe import probe, verify_segments
from weir.store.store import Store
from weir.testing.fakes.stores import CountingStore, FailingStore

FOLDER = "flow/20130101T000000Z/stage/by-key/0/t0001-000000000000"
PART = f"{FOLDER}/part-0.parquet"


@pytest.fixture(params=["local", "memory", "s3", pytest.param("hdfs", marks=pytest.mark.soak)])
def reopen(request, tmp_path):
    """Open this test's store; what it asks of HDFS, tests of the store ask in each commit."""
    return opening(request, tmp_path)


@pytest.fixture
def failing(store):
    return FailingStore(store)


def one(store, ref) -> Manifest | Loss:
    return probe(store, store.initialise(), [ref])[ref]


def write(store, rows=10_000, folder=FOLDER, **whose):
    return write_partition(store, folder, {"part-0.parquet": parquet_bytes(rows)}, **whose)


def test_a_partition_that_is_there_answers_its_manifest(store):
    ref, manifest = write(store)
    assert one(store, ref) == manifest
    assert verify_segments(store, store.initialise(), [(manifest, FOLDER, None)]) == ()


def test_files_without_rows_and_results_without_files_are_there(store):
    empty, empty_manifest = write(store, rows=0)
    none, none_manifest = write_partition(store, "other", {}, stage="other")
    store_id = store.initialise()
    assert probe(store, store_id, [empty, none]) == {empty: empty_manifest, none: none_manifest}
    assert verify_segments(store, store_id, [(empty_manifest, FOLDER, (0, 1)), (none_manifest, "other", None)]) == ()


def test_nothing_to_ask_needs_only_the_marker(store):
    assert probe(store, store.initialise(), []) == {}
    assert verify_segments(store, store.initialise(), []) == ()


def test_a_missing_manifest_is_missing(store):
    ref, _ = write(store)
    store.delete(f"{FOLDER}/manifest.json")
    loss = one(store, ref)
    assert loss.fault is Fault.MISSING
    assert f"{FOLDER}/manifest.json" in loss.detail
    assert (loss.run, loss.stage, loss.subtask, loss.attempt) == (ref.run, ref.stage, ref.subtask, ref.attempt)


def test_a_missing_folder_is_missing(store):
    ref, _ = write(store)
    store.delete_folder("flow")
    assert one(store, ref).fault is Fault.MISSING


@pytest.mark.parametrize(
    "change", [lambda data: data[:-10], lambda data: b"", lambda data: data.replace(b"flow", b"flaw")]
)
def test_a_manifest_that_is_cut_or_changed_is_damaged(store, change):
    ref, _ = write(store)
    path = f"{FOLDER}/manifest.json"
    store.replace(path, change(store.read(path)))
    loss = one(store, ref)
    assert loss.fault is Fault.DAMAGED
    assert ref.manifest_sha256 in loss.detail


def test_a_missing_file_is_missing_and_the_detail_names_file_expected_and_found(store):
    ref, manifest = write(store)
    size = store.size(PART)
    store.delete(PART)
    loss = one(store, ref)
    assert loss.fault is Fault.MISSING
    assert loss.detail == f"{PART}: expected {size} bytes, found no such file"
    (verified,) = verify_segments(store, store.initialise(), [(manifest, FOLDER, None)])
    assert (verified.fault, verified.detail) == (Fault.MISSING, loss.detail)


@pytest.mark.parametrize("change", [lambda data: data[: len(data) // 2], lambda data: data + b"x", lambda data: b""])
def test_a_file_of_another_size_is_damaged_and_the_detail_names_file_expected_and_found(store, change):
    ref, manifest = write(store)
    data = store.read(PART)
    store.replace(PART, change(data))
    loss = one(store, ref)
    assert loss.fault is Fault.DAMAGED
    assert loss.detail == f"{PART}: expected {len(data)} bytes, found {len(change(data))}"
    (verified,) = verify_segments(store, store.initialise(), [(manifest, FOLDER, None)])
    assert (verified.fault, verified.detail) == (Fault.DAMAGED, loss.detail)


def test_all_losses_of_one_probe_are_told_at_once_and_the_rest_is_there(store):
    written = [write(store, folder=f"flow/{number}", subtask=number) for number in range(6)]
    store.delete("flow/1/part-0.parquet")
    store.delete("flow/4/manifest.json")
    answers = probe(store, store.initialise(), [ref for ref, _ in written])
    assert [number for number, (ref, _) in enumerate(written) if isinstance(answers[ref], Loss)] == [1, 4]
    assert list(answers) == [ref for ref, _ in written]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("path", ["*/manifest.json", "*/part-0.parquet", "weir-store.json", "*"])
def test_a_store_that_answers_errors_marks_nothing_lost(failing, number, path):
    ref, manifest = write(failing)
    store_id = failing.initialise()
    failing.fail(path, OSError(number, os.strerror(number)))
    with pytest.raises(Retryable, match=os.strerror(number)):
        probe(failing, store_id, [ref])
    if "manifest" not in path:
        with pytest.raises(Retryable, match=os.strerror(number)):
            verify_segments(failing, store_id, [(manifest, FOLDER, None)])


def test_a_loss_beside_an_error_is_not_reported(failing):
    lost, _ = write(failing, folder="flow/0", subtask=0)
    unclear, _ = write(failing, folder="flow/1", subtask=1)
    failing.delete("flow/0/part-0.parquet")
    failing.fail("flow/1/*", PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(Retryable):
        probe(failing, failing.initialise(), [lost, unclear])


@pytest.mark.parametrize("path", ["*/manifest.json", "*/part-0.parquet"])
def test_a_not_found_that_does_not_last_is_no_loss(failing, path):
    ref, manifest = write(failing)
    failing.fail(path, FileNotFoundError(errno.ENOENT, "No such file"), times=1)
    assert one(failing, ref) == manifest


def test_a_not_found_followed_by_an_error_is_no_loss(failing):
    ref, _ = write(failing)
    store_id = failing.initialise()
    failing.fail("*/part-0.parquet", FileNotFoundError(errno.ENOENT, "No such file"), times=1)
    failing.fail("*/part-0.parquet", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        probe(failing, store_id, [ref])


def test_a_root_that_vanished_is_no_loss(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    store_id = store.initialise()
    ref, manifest = write(store)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        probe(store, store_id, [ref])
    (tmp_path / "store").mkdir()  # a mount point without its disk
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        probe(store, store_id, [ref])
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        verify_segments(store, store_id, [(manifest, FOLDER, None)])


def test_another_store_in_the_place_of_this_one_is_no_loss(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    store_id = store.initialise()
    ref, _ = write(store)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    store.initialise()
    with pytest.raises(Retryable, check=of_kind("store.marker_of_another", expected_id=store_id)):
        probe(store, store_id, [ref])


def test_a_store_that_vanishes_between_the_two_questions_is_no_loss(failing):
    ref, _ = write(failing)
    store_id = failing.initialise()
    failing.delete(PART)

    class Vanishing(FailingStore):
        __slots__ = ("asked",)

        def check_marker(self, expected_id):
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked == 3:
                self.fail("weir-store.json", FileNotFoundError(errno.ENOENT, "No such file"))
            super().check_marker(expected_id)

    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        probe(Vanishing(failing), store_id, [ref])


def test_a_probe_reads_manifest_and_tail_only(store):
    ref, manifest = write(store)
    counting = CountingStore(store)
    one(counting, ref)
    assert counting.bytes_read[PART] == manifest.files[0].segments[-1].length


def test_verifying_a_quarter_of_the_key_groups_reads_about_a_quarter_of_the_bytes(store):
    _, manifest = write_partition(store, FOLDER, {"part-0.parquet": parquet_bytes(100_000)})
    store_id = store.initialise()
    for first in range(0, 128, 32):
        counting = CountingStore(store)
        assert verify_segments(counting, store_id, [(manifest, FOLDER, (first, first + 31))]) == ()
        assert 0.2 < counting.bytes_read[PART] / manifest.bytes < 0.3


def test_verifying_all_key_groups_reads_every_byte_once(store):
    _, manifest = write(store)
    counting = CountingStore(store)
    verify_segments(counting, store.initialise(), [(manifest, FOLDER, None)])
    assert counting.bytes_read[PART] == manifest.bytes


def test_damage_outside_the_key_groups_that_are_read_does_no_harm(store):
    _, manifest = write(store)
    data = bytearray(store.read(PART))
    damaged = manifest.files[0].segments[0]
    data[damaged.offset + damaged.length // 2] ^= 1
    store.replace(PART, bytes(data))
    store_id = store.initialise()
    assert verify_segments(store, store_id, [(manifest, FOLDER, (64, 127))]) == ()
    (loss,) = verify_segments(store, store_id, [(manifest, FOLDER, (0, 10))])
    assert loss.fault is Fault.DAMAGED
    assert f"{PART}, row group (bytes 0 to {damaged.length - 1})" in loss.detail


def test_several_damaged_segments_of_one_partition_are_one_loss(store):
    _, manifest = write(store)
    data = bytearray(store.read(PART))
    for segment in manifest.files[0].segments[:3]:
        data[segment.offset + 100] ^= 1
    store.replace(PART, bytes(data))
    (loss,) = verify_segments(store, store.initialise(), [(manifest, FOLDER, None)])
    assert loss.detail.endswith("(and 2 more)")
