import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.shared_files import ClaimMode, RestoredSnapshot, SharedFiles, Sharing, Use

from weir.errors import Internal

CLAIM, NO_CLAIM = ClaimMode.CLAIM, ClaimMode.NO_CLAIM


def registry(*restored):
    files = SharedFiles()
    for snapshot in restored:
        files.restore(snapshot)
    return files


def test_files_that_no_retained_checkpoint_uses_are_to_be_deleted():
    files = registry()
    assert files.register("a", "file a", 0) == "file a"
    assert files.register("b", "file b", 0) == "file b"
    unused = files.unregister_unused(1)
    assert unused.files == {"a": "file a", "b": "file b"}
    assert files.files == {}
    assert files.unregister_unused(1).files == {}


def test_a_file_stays_as_long_as_a_retained_checkpoint_uses_it_whoever_wrote_it():
    files = registry()
    files.register("a", "file a", 1)
    files.register("a", "file a", 2)
    assert files.unregister_unused(2).files == {}
    assert files.files == {"a": "file a"}
    assert files.unregister_unused(3).files == {"a": "file a"}


def test_a_use_that_is_reported_late_takes_nothing_back():
    files = registry()
    files.register("a", "file a", 5)
    files.register("a", "file a", 4)
    assert files.unregister_unused(5).files == {}


@pytest.mark.parametrize("lowest", [-1, 2**63 - 1])
def test_nothing_is_unused_in_an_empty_registry(lowest):
    unused = registry().unregister_unused(lowest)
    assert (unused.files, unused.in_use) == ({}, frozenset())


def test_bases_and_logs_of_changes_go_each_in_their_time():
    files = registry()

    def complete(checkpoint, base, log):
        files.register(f"base {base}", base, checkpoint)
        files.register(f"log {log}", log, checkpoint)
        return list(files.unregister_unused(checkpoint).files)

    assert complete(41, "m1", "n1") == []
    assert complete(42, "m1", "n2") == ["log n1"]
    assert complete(43, "m3", "n2") == ["base m1"]


def test_a_name_is_never_that_of_two_files():
    files = registry()
    files.register("a", "file a", 1)
    with pytest.raises(Internal, match=r"checkpoint 3 names .* 'a' as other, but checkpoint 1 .* as file a"):
        files.register("a", "other", 3)
    assert files.unregister_unused(2).files == {"a": "file a"}, "the refused one did not prolong the other's life"


def test_a_file_may_be_referred_to_by_its_key_once_it_is_known():
    files = registry()
    files.register("a", "file a", 1)
    assert files.register_again("a", 2) == "file a"
    assert files.unregister_unused(2).files == {}
    with pytest.raises(Internal, match="'b', which no retained checkpoint describes"):
        files.register_again("b", 2)


def test_files_that_were_not_claimed_are_never_deleted():
    files = registry(RestoredSnapshot(3, {"theirs": 1, "shared": 2}, NO_CLAIM))
    files.register("ours", 3, 4)
    files.register("shared", 2, 4)
    assert files.unregister_unused(4).files == {}
    assert files.unregister_unused(5).files == {"ours": 3}
    assert files.files == {}


def test_claimed_files_are_deleted_when_they_are_used_no_more():
    files = registry(RestoredSnapshot(3, {"first": 1, "second": 2}, CLAIM))
    files.register("second", 2, 4)
    assert files.unregister_unused(4).files == {"first": 1}
    assert files.unregister_unused(5).files == {"second": 2}


def test_a_later_claim_does_not_take_what_an_earlier_restore_left_to_others():
    files = registry(RestoredSnapshot(3, {"theirs": 1}, NO_CLAIM), RestoredSnapshot(7, {"ours": 2}, CLAIM))
    assert files.unregister_unused(8).files == {"ours": 2}


def test_a_restored_savepoint_stays_whole_while_any_of_its_files_is_used():
    files = registry(RestoredSnapshot(1, {"k": 1, "other": 2}, CLAIM, Sharing.WHOLE))
    files.register("k", 1, 2)
    files.register("k", 1, 3)
    files.register("new", 3, 4)
    assert files.unregister_unused(3).in_use == {1}
    assert files.unregister_unused(4).in_use == frozenset()


def test_a_restored_checkpoint_is_shared_file_by_file():
    files = registry(RestoredSnapshot(1, {"k": 1}, CLAIM, Sharing.FILE_BY_FILE))
    files.register("k", 1, 2)
    assert files.unregister_unused(2).in_use == frozenset()


def test_a_restored_checkpoint_is_kept_whole_for_a_user_that_asks_for_it_and_for_all_after_it():
    files = registry(RestoredSnapshot(1, {"k": 1}, CLAIM))
    files.register("k", 1, 2, Use.WHOLE_ORIGIN)
    files.register_again("k", 3, Use.FILE)
    assert files.unregister_unused(3).in_use == {1}
    assert files.unregister_unused(4).in_use == frozenset()


def test_nothing_that_was_not_restored_is_kept_whole():
    files = registry()
    files.register("k", 1, 1, Use.WHOLE_ORIGIN)
    files.register("k", 1, 2)
    assert files.unregister_unused(2).in_use == frozenset()


KEYS = "abcdef"


@given(
    st.lists(st.sets(st.sampled_from(KEYS)), min_size=1, max_size=8),
    st.sets(st.sampled_from(KEYS)),
    st.sampled_from(ClaimMode),
    st.sampled_from(Sharing),
    st.integers(1, 3),
    st.data(),
)
def test_a_registry_built_again_from_manifests_deletes_what_the_old_one_would_have(
    epochs, restored_keys, mode, sharing, retained, data
):
    """A checkpoint uses files of the one before, or new ones: names are never used again."""
    restored = RestoredSnapshot(1, {key: key for key in restored_keys}, mode, sharing)
    old = registry(restored)
    manifests = {1: set(restored_keys)}
    broken_off_at = data.draw(st.integers(0, len(epochs)))
    rebuilt = None
    for checkpoint, kept in enumerate(epochs, 2):
        files = (manifests[checkpoint - 1] & kept) | {f"{key}{checkpoint}" for key in kept}
        if checkpoint == broken_off_at + 2:
            rebuilt = registry(restored)
            for earlier in sorted(manifests)[-retained:]:
                for key in manifests[earlier]:
                    rebuilt.register(key, key, earlier)
        manifests[checkpoint] = files
        for key in files:
            old.register(key, key, checkpoint)
            if rebuilt is not None:
                rebuilt.register(key, key, checkpoint)
        lowest = sorted(manifests)[-retained:][0]
        expected = old.unregister_unused(lowest)
        if rebuilt is None:
            continue
        found = rebuilt.unregister_unused(lowest)
        assert found.in_use == expected.in_use
        assert expected.files.keys() <= found.files.keys()
        used = set().union(*(manifests[each] for each in sorted(manifests)[-retained:]))
        assert not used & found.files.keys()
        assert rebuilt.files == old.files
        assert mode is CLAIM or not restored_keys & found.files.keys()
