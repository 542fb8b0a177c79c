import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.shared_files import SharedFiles
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.checkpoint import SnapshotKind
from weir.state.retention_rules import CompletedSnapshot, subsumed

KINDS = {"cp": SnapshotKind.CHECKPOINT, "sp": SnapshotKind.SAVEPOINT, "stop": SnapshotKind.STOP}


def completed(number, kind=SnapshotKind.CHECKPOINT):
    """Its epoch is the one after that of the snapshot before."""
    return CompletedSnapshot(number, kind, f"{number:03d}")


def snapshots(text):
    """Read `cp1 sp2 stop3`."""
    return [completed(int(each.strip("cpsto")), KINDS[each.rstrip("0123456789")]) for each in text.split()]


def left_of(listed, retained):
    gone = subsumed(listed, retained)
    return [each for each in listed if each.number not in gone]


def shown(found):
    names = {kind: name for name, kind in KINDS.items()}
    return " ".join(f"{names[each.kind]}{each.number}" for each in found)


@pytest.mark.parametrize(
    ("retained", "given_", "left"),
    [
        (4, "", ""),
        (4, "cp0 cp1", "cp0 cp1"),
        (4, "cp0 cp1 cp2 cp3", "cp0 cp1 cp2 cp3"),
        (3, "cp1 cp2 cp3", "cp1 cp2 cp3"),
        (1, "cp0 cp1 cp2 cp3", "cp3"),
        (1, "cp1 cp2 sp3 sp4 sp5", "cp2 sp5"),
        (1, "cp1 sp2 cp3", "cp3"),
        (1, "cp1 sp2 stop3", "stop3"),
        (1, "sp1 sp2", "sp2"),
        (2, "cp1 sp2 sp3", "cp1 sp3"),
        (2, "cp1 stop2 sp3", "cp1 sp3"),
        (2, "cp1 cp2 stop3", "cp2 stop3"),
        (2, "cp1 sp2 cp3 sp4", "cp3 sp4"),
    ],
)
def test_what_is_left_is_flinks(retained, given_, left):
    assert shown(left_of(snapshots(given_), retained)) == left


def test_each_completed_checkpoint_subsumes_the_one_before_where_one_is_retained():
    held = []
    for number in range(4):
        held.append(completed(number))
        assert subsumed(held, 1) == ({number - 1: number} if number else {})
        held = left_of(held, 1)
        assert shown(held) == f"cp{number}"


def test_one_snapshot_at_least_is_retained():
    with pytest.raises(Misconfigured, check=of_kind("state.none_retained", retained="0")):
        subsumed(snapshots("cp1"), 0)


@given(st.lists(st.sampled_from(SnapshotKind), min_size=1, max_size=20), st.integers(1, 4))
def test_the_newest_and_the_newest_checkpoint_always_stay(kinds, retained):
    held = []
    for number, kind in enumerate(kinds):
        before = [*held, completed(number, kind)]
        held = left_of(before, retained)
        assert held[-1] == before[-1]
        assert len(held) <= max(retained, 2)
        assert len(held) == min(len(before), retained) or len(held) == 2
        own = [each for each in before if each.kind is SnapshotKind.CHECKPOINT]
        if own and kind is not SnapshotKind.STOP:
            assert own[-1] in held


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.sampled_from(SnapshotKind)), max_size=15))
def test_no_file_of_a_checkpoint_that_is_left_is_ever_named_for_deletion(traced):
    """Retention and registry together, as the closing task uses them: manifest, register, subsume, delete."""
    files, held, manifests, deleted = SharedFiles(), [], {0: set()}, set()
    for number, (kept, kind) in enumerate(traced, 1):
        if kind is SnapshotKind.CHECKPOINT:
            last = manifests[max(manifests)]
            manifests[number] = {key for key in last if key[0] in kept} | {f"{key}{number}" for key in kept}
            for key in manifests[number]:
                files.register(key, key, number)
        held = left_of([*held, completed(number, kind)], 2)
        sharing = [each.number for each in held if not each.kind.is_savepoint]
        if sharing:
            deleted |= files.unregister_unused(min(sharing)).files.keys()
        used = {key for each in held for key in manifests.get(each.number, ())}
        assert not used & deleted
        assert used <= files.files.keys()


@given(st.lists(st.tuples(st.sampled_from("1234"), st.booleans()), max_size=10), st.integers(1, 4))
def test_of_the_newest_epochs_the_newest_whole_checkpoint_stays_and_no_more(traced, retained):
    listed = [
        CompletedSnapshot(number, SnapshotKind.CHECKPOINT, epoch, is_whole=is_whole)
        for number, (epoch, is_whole) in enumerate(traced, 1)
    ]
    gone = subsumed(listed, retained)
    newest = {each.epoch: each.number for each in listed if each.is_whole}
    wanted = {newest[epoch] for epoch in sorted(newest)[-retained:]}
    assert wanted == {each.number for each in listed if each.is_whole and each.number not in gone}
    assert gone.keys().isdisjoint(wanted)
