"""Which checkpoints go where epochs may be completed again."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.shared_files import SharedFiles
from tests.messages.kinds import of_kind

from weir.dataflow.state import keyed_state
from weir.errors import Internal, Misconfigured
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, SnapshotKind, StatePartition
from weir.formats.manifest import DataFile, StateFile
from weir.retention.checkpoints import unused_files
from weir.state.retention_rules import CompletedSnapshot, subsumed

CHECKPOINT, SAVEPOINT = SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT


def completed(*epochs, kinds=None):
    """Checkpoints of these epochs, numbered from 1."""
    of = kinds or [CHECKPOINT] * len(epochs)
    return [CompletedSnapshot(number, *each) for number, each in enumerate(zip(of, epochs, strict=True), start=1)]


@pytest.mark.parametrize(
    ("epochs", "gone"),
    [
        ("abc", {}),
        ("abcd", {1: 4}),
        ("abcdef", {1: 6, 2: 6, 3: 6}),
        ("aabb", {1: 2, 3: 4}),
        ("abca", {1: 4}),
        ("bcda", {4: 3}),  # the newest epochs stay, whatever their numbers
        ("cdeab", {4: 3, 5: 3}),
        ("abcdeabcde", {1: 6, 2: 7, 3: 8, 4: 9, 5: 10, 6: 10, 7: 10}),
    ],
)
def test_of_three_the_newest_epochs_stay_and_of_each_its_newest_checkpoint(epochs, gone):
    assert subsumed(completed(*epochs), 3) == gone


def test_a_savepoint_counts_and_is_not_replaced_by_a_checkpoint_of_its_epoch():
    listed = completed("a", "a", "b", "c", kinds=[SAVEPOINT, CHECKPOINT, CHECKPOINT, CHECKPOINT])
    assert subsumed(listed, 3) == {1: 4}
    assert subsumed(listed, 4) == {}


def test_at_least_one_is_retained():
    with pytest.raises(Misconfigured):
        subsumed(completed("a"), 0)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.integers(1, 4))
def test_an_epoch_that_is_computed_again_never_pushes_out_a_newer_one(epochs, retained):
    left = []
    for number, epoch in enumerate(epochs, start=1):
        left.append(CompletedSnapshot(number, CHECKPOINT, f"{epoch:03d}"))
        gone = subsumed(left, retained)
        lost = [each.epoch for each in left if each.number in gone and each.epoch not in _epochs(left, gone)]
        left = [each for each in left if each.number not in gone]
        assert {each.epoch for each in left} == set(sorted({f"{each:03d}" for each in epochs[:number]})[-retained:])
        assert not [each for each in left for other in lost if each.epoch < other]


def damaged(*numbers, of):
    return [replace(each, is_whole=each.number not in numbers) for each in of]


def test_a_checkpoint_that_is_not_whole_subsumes_none_that_is():
    assert subsumed(damaged(2, of=completed("a", "a")), 3) == {}
    assert subsumed(damaged(4, of=completed("a", "b", "c", "d")), 3) == {}
    assert subsumed(damaged(4, of=completed("a", "b", "c", "d", "e")), 3) == {1: 5}
    assert subsumed(damaged(2, of=completed("a", "a", "a")), 1) == {1: 3, 2: 3}
    assert subsumed(damaged(1, of=completed("a", "b")), 1) == {1: 2}
    assert subsumed(damaged(1, 2, of=completed("a", "b")), 1) == {1: 2}


def _epochs(listed, gone):
    return {each.epoch for each in listed if each.number not in gone}


def checkpoint(number, epoch, paths):
    files = tuple(StateFile(path, DataFile("f", 1, 1, "", ()), epoch, (0, 127)) for path in sorted(paths))
    part = StatePartition(
        subtask=0, key_groups=(0, 127), attempt="a", digest="d", rows=1, tallies=(), files=files, versions=()
    )
    state = KeyedSnapshot(keyed_state("s", key="k", schema="k bigint"), "stage", 128, "", (part,))
    return Checkpoint(
        dataflow="d",
        number=number,
        kind=CHECKPOINT,
        epoch=epoch,
        run="r",
        lineage=1,
        attempt="a",
        states=(state,),
        results=(),
        pinned={},
        triggered_at="",
        completed_at="",
        full_bytes=0,
        incremental_bytes=0,
        new_files=0,
        shared_files=0,
    )


def unused_in_flink(gone, kept):
    """Its registry counts by ascending ids: what goes is registered first."""
    registry = SharedFiles()
    in_order = sorted(gone, key=lambda each: each.number) + sorted(kept, key=lambda each: each.number)
    for place, each in enumerate(in_order):
        for path in each.files:
            registry.register(path, path, place)
    return {path.removesuffix("/f") for path in registry.unregister_unused(len(gone)).files}


def test_a_file_that_two_checkpoints_describe_differently_is_not_deleted():
    (one,) = (state := checkpoint(1, "001", ["x"]).states[0]).partitions
    other = replace(one, files=(replace(one.files[0], file=DataFile("f", 2, 1, "", ())),))
    second = replace(checkpoint(2, "002", []), states=(replace(state, partitions=(other,)),))
    with pytest.raises(Internal, check=of_kind("retention.state_file_named_twice")):
        unused_files([checkpoint(1, "001", ["x"])], [second])


@pytest.mark.parametrize("seed", range(150))
def test_what_no_kept_checkpoint_names_is_unused_as_in_flinks_registry(seed):
    """Ten traces a seed: epochs in order, then again from any of them; files are carried, dropped and compacted."""
    chance = random.Random(seed)
    for _ in range(10):
        listed, by_epoch, deleted, fresh = [], {}, set(), iter(range(10_000))
        for number in range(1, chance.randint(2, 14)):
            epoch = chance.randint(1, len(by_epoch) + 1) if chance.random() < 0.3 else len(by_epoch) + 1
            before = by_epoch.get(epoch - 1, frozenset()) - deleted
            kept = {path for path in before if chance.random() < 0.85}
            by_epoch[epoch] = frozenset(kept | {f"{epoch}/{next(fresh)}" for _ in range(chance.randint(0, 2))})
            listed.append(checkpoint(number, f"{epoch:03d}", by_epoch[epoch]))
            gone = subsumed([CompletedSnapshot(each.number, each.kind, each.epoch) for each in listed], 3)
            out = [each for each in listed if each.number in gone]
            listed = [each for each in listed if each.number not in gone]
            unused = {path.removesuffix("/f") for path in unused_files(out, listed)}
            named = {path.removesuffix("/f") for each in listed for path in each.files}
            assert unused == unused_in_flink(out, listed)
            deleted |= unused
            assert not named & deleted
