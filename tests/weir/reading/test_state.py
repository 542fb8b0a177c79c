"""`weir.open(..., state=...)`: what an epoch has left, for a key or as a whole, and what a reader is told otherwise."""

import shutil

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.reading.state_world import epoch, group_of, history, keeps_state, run_days

import weir
from weir.errors import Misconfigured
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.reading.availability import Unreadable
from weir.snapshots.savepoint import SavepointRequest, create
from weir.state import state_files
from weir.state.state_files import Shape, newest
from weir.store.errors import NotFound
from weir.topology.partitions import KEY_GROUP_COLUMN


@pytest.fixture
def days(world):
    return keeps_state(world)


def expected(world, day):
    return {k: n for k, (n, _) in world.airflow.engine.rows_at(epoch(day))}


def found(opened):
    table = opened.arrow()
    assert table.column_names == ["tail", "n"]
    assert table.num_rows == opened.rows
    return dict(zip(table["tail"].to_pylist(), table["n"].to_pylist(), strict=True))


def is_there(world, path):
    try:
        return world.store.size(path) > 0
    except NotFound:
        return False


def lost(world, path):
    world.store.delete(path)


def current(world, day, stage="history"):
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.run == f"ladder@{epoch(day)}", ResultRow.stage == stage)
        return list(session.scalars(query.where(ResultRow.is_current).order_by(ResultRow.subtask)))


def manifests(world, day):
    rows = current(world, day)
    return [from_json(Manifest, world.store.read(f"{row.folder}/manifest.json")) for row in rows]


# What is given


def test_each_epochs_state_is_given_as_that_epoch_has_left_it(days):
    run_days(days, history(), 1, 2, 3)
    for day in (1, 2, 3):
        with weir.open("ladder", epoch(day), state="history") as state:
            assert found(state) == expected(days, day)
            assert (state.epoch, state.stage, state.name, state.checkpoint) == (epoch(day), "aircraft", "history", None)
    assert expected(days, 3) == {"N1": 10, "N2": 2, "N3": 30, "N4": 4, "N5": 5, "N7": 7}


def test_without_an_epoch_the_newest_is_given_whose_state_all_subtasks_have_committed(days):
    run_days(days, history(), 1, 2)
    days.airflow.dag_run(3)
    with weir.open("ladder", state="history") as state:
        assert state.epoch == epoch(2)
        assert found(state) == expected(days, 2)


@pytest.fixture
def cascading(days):
    """Three days, the first of which was computed again with other rows; what follows from it has not run yet."""
    run_days(days, history(), 1, 2, 3)
    before = {day: expected(days, day) for day in (1, 2, 3)}
    days.airflow.engine.plan[epoch(1)] = {"N1": 100, "N2": 200}
    days.airflow.clear_by_hand("scheduled__2013-01-01", "aircraft-known", 0)
    days.airflow.clear_by_hand("scheduled__2013-01-01", "aircraft-known", 1)
    for key, task in days.airflow.tasks.items():
        if key.run_id == "scheduled__2013-01-01" and key.task_id == "aircraft-known":
            days.airflow.step(task)
    return days, before


def test_while_a_correction_cascades_the_newest_epoch_is_given_as_it_was_and_says_that_it_is_stale(cascading):
    days, before = cascading
    with weir.open("ladder", state="history") as state:
        assert (state.epoch, state.stale) == (epoch(3), True)
        assert found(state) == before[3]
        assert state.get("N1") == {"tail": "N1", "n": 10}
    days.airflow.run_until_quiet()
    with weir.open("ladder", state="history") as state:
        assert (state.epoch, state.stale, state.checkpoint) == (epoch(3), False, None)
        assert found(state) == expected(days, 3) != before[3]


def test_an_epoch_of_which_one_subtask_was_corrected_is_given_as_a_whole_as_it_was(cascading):
    days, before = cascading
    days.airflow.deliver_clears("ladder")
    task = days.airflow.task("scheduled__2013-01-02", "aircraft-known", 0)
    days.airflow.step(task)
    with weir.open("ladder", state="history") as state:
        assert (state.epoch, state.stale) == (epoch(3), True)
        assert found(state) == before[3]


def test_fresh_state_is_refused_while_a_correction_cascades(cascading):
    with pytest.raises(Unreadable, match="an input of its producer has changed since"):
        weir.open("ladder", state="history", fresh=True)
    with pytest.raises(Unreadable, match="an input of its producer has changed since"):
        weir.open("ladder", epoch(3), state="history")


def test_without_files_of_the_newest_epoch_an_earlier_one_is_given_and_is_stale(days):
    run_days(days, history(), 1, 2, 3)
    own = [file for each in manifests(days, 3) for file in each.state.files if file.epoch == epoch(3)]
    for file in own:
        lost(days, file.path)
    with weir.open("ladder", state="history") as state:
        assert (state.epoch, state.stale, state.checkpoint) == (epoch(2), True, None)
        assert found(state) == expected(days, 2)
    with pytest.raises(Unreadable, match="found no such file"):
        weir.open("ladder", state="history", fresh=True)


def test_a_key_is_found_wherever_its_newest_row_is(days):
    run_days(days, history(), 1, 2, 3)
    with weir.open("ladder", state="history") as state:
        assert state.get("N2") == {"tail": "N2", "n": 2}
        assert state.get("N1") == {"tail": "N1", "n": 10}
        assert state.get("N3") == {"tail": "N3", "n": 30}
        assert state.get(None) is None
        assert state.get("N99") is None
    with weir.open("ladder", "2013-01-02", state="history") as state:
        assert state.get("N3") is None
        assert state.get(None) == {"tail": None, "n": 6}


@pytest.mark.parametrize("gap", [-1, 1 << 16])
def test_a_key_costs_only_the_row_groups_that_may_hold_it_and_one_request_for_what_lies_near(days, monkeypatch, gap):
    monkeypatch.setattr(state_files, "_GAP", gap)
    run_days(days, history(parallelism=1), 1)
    with weir.open("ladder", state="history") as state:
        (file,) = state.partitions[0].files
        groups = [each for each in file.file.segments if not each.is_tail]
        assert len(groups) == 3
        read = []
        monkeypatch.setattr(type(days.store), "read", _counting(type(days.store).read, read, file.path), raising=True)
        assert state.get("N4") == {"tail": "N4", "n": 4}
    needed = [each for each in groups if each.key_groups[0] <= group_of("N4") <= each.key_groups[1]]
    assert len(needed) < len(groups)
    if gap < 0:
        assert read == [(each.offset, each.length) for each in [*needed, file.file.segments[-1]]]
    else:
        assert read == [(needed[0].offset, file.file.bytes - needed[0].offset)]


def _counting(read, into, path):
    def counted(self, asked, offset=0, length=None):
        if asked == path:
            into.append((offset, length))
        return read(self, asked, offset, length)

    return counted


def test_a_row_is_invisible_in_the_epoch_in_which_it_expires_and_later(days):
    days.airflow.engine.plan = {epoch(1): {"N1": 1, "N2": 2}, epoch(2): {"N1": 10}, epoch(3): {}, epoch(4): {"N9": 9}}
    run_days(days, history(ttl="2 days"), 1, 2, 3, 4)
    kept = {}
    for day in (1, 2, 3, 4):
        with weir.open("ladder", epoch(day), state="history") as state:
            kept[day] = found(state)
            assert {key: state.get(key) is not None for key in ("N1", "N2")} == {
                key: key in kept[day] for key in ("N1", "N2")
            }
    assert kept == {1: {"N1": 1, "N2": 2}, 2: {"N1": 10, "N2": 2}, 3: {"N1": 10}, 4: {"N9": 9}}


def test_a_state_whose_parallelism_has_changed_is_given_once(days):
    run_days(days, history(parallelism=1), 1)
    run_days(days, history(parallelism=3), 2)
    run_days(days, history(parallelism=2), 3)
    for day, parallelism in ((1, 1), (2, 3), (3, 2)):
        with weir.open("ladder", epoch(day), state="history") as state:
            assert found(state) == expected(days, day)
            assert len(state.partitions) == parallelism
            assert [key for key in expected(days, day) if state.get(key) is None] == []
            assert state.bytes == sum({file.path: file.file.bytes for file in state._files}.values())


def test_some_columns_are_given_as_they_are_asked_for(days):
    run_days(days, history(), 1, 2)
    with weir.open("ladder", state="history") as state:
        assert state.arrow(["n"]).column_names == ["n"]
        assert sorted(state.arrow(["n"])["n"].to_pylist()) == sorted(expected(days, 2).values())
        with pytest.raises(
            Misconfigured, check=of_kind("reading.state_column_unknown", names=["tail", "n"], unknown="m")
        ):
            state.arrow(["m"])


def test_a_state_that_nothing_was_ever_put_into_has_no_rows_and_its_columns(days):
    days.airflow.engine.plan = {}
    run_days(days, history(), 1)
    with weir.open("ladder", state="history") as state:
        assert found(state) == {}
        assert state.get("N1") is None


keys = st.sampled_from([None, "a", "b", "c"])
changes = st.dictionaries(keys, st.one_of(st.none(), st.integers(0, 9), st.just("deleted")), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(changes, max_size=6), st.none() | st.integers(-1, 5))
def test_merging_gives_what_a_dictionary_gives(epochs, until):
    shape = Shape(pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",), until)
    model, tables = {}, []
    for at, change in enumerate(epochs):
        model.update({k: (v, at) for k, v in change.items()})
        tables.append(
            pa.Table.from_pylist(
                [
                    {
                        "k": k,
                        "n": None if v == "deleted" else v,
                        KEY_GROUP_COLUMN: 0,
                        "_weir_deleted": v == "deleted",
                        "_weir_updated": at,
                    }
                    for k, v in change.items()
                ],
                schema=shape.stored,
            )
        )
    rows = newest(tables, shape).select(["k", "n"]).to_pylist()
    wanted = {k: v for k, (v, at) in model.items() if v != "deleted" and (until is None or at > until)}
    assert len(rows) == len(wanted)
    assert {row["k"]: row["n"] for row in rows} == wanted


# What is refused


def test_a_state_is_not_read_as_if_it_were_a_result(days):
    run_days(days, history(), 1)
    with pytest.raises(Misconfigured, check=of_kind("reading.stage_is_a_state", stage="history")):
        weir.open("ladder", stage="history")
    with pytest.raises(Misconfigured, check=of_kind("reading.state_unknown", known="history", name="flights")):
        weir.open("ladder", state="flights")
    with pytest.raises(Misconfigured, check=of_kind("reading.stage_and_state")):
        weir.open("ladder", stage="flights", state="history")


def test_a_key_that_cannot_be_one_is_refused(days):
    run_days(days, history(), 1)
    with weir.open("ladder", state="history") as state:
        with pytest.raises(
            Misconfigured, check=of_kind("reading.key_incomplete", expected="1", given="2", named="tail")
        ):
            state.get("N1", "N2")
        with pytest.raises(
            Misconfigured, check=of_kind("reading.key_value_of_other_type", kind="string", name="tail", value=5)
        ):
            state.get(5)
    with pytest.raises(Misconfigured, check=of_kind("reading.lease_ended")):
        state.get("N1")


def test_a_file_that_is_gone_is_told_with_what_brings_it_back(days):
    run_days(days, history(), 1, 2)
    shared = manifests(days, 1)[0].state.files[0]
    with weir.open("ladder", state="history") as state:
        lost(days, shared.path)
        with pytest.raises(Unreadable, match=r"found no such file.*weir plan ladder@20130102T000000Z"):
            state.arrow()
    with pytest.raises(Unreadable, match=f"{shared.path}.*Kept are the checkpoints 1 of 20130101T000000Z, 2 of"):
        weir.open("ladder", state="history")


def test_bytes_that_are_not_as_they_were_written_are_never_used(days):
    run_days(days, history(parallelism=1), 1)
    with weir.open("ladder", state="history") as state:
        (file,) = state.partitions[0].files
        data = bytearray(days.store.read(file.path))
        data[10] ^= 1
        days.store.replace(file.path, bytes(data))
        with pytest.raises(Unreadable, match="expected SHA-256"):
            state.arrow()


def test_a_state_that_was_released_is_told_with_what_is_kept(days):
    run_days(days, history(retained_checkpoints=1), 1, 2)
    with pytest.raises(Unreadable, match=r"released.*Kept are the checkpoints 2 of 20130102T000000Z.*--checkpoint N"):
        weir.open("ladder", epoch(1), state="history")


def test_what_is_open_is_claimed_until_it_is_closed(days):
    run_days(days, history(), 1)

    def leased():
        with days.ledger.transaction() as session:
            query = select(ResultRow.stage).join(LeaseRow, LeaseRow.result == ResultRow.id)
            return list(session.scalars(query))

    with weir.open("ladder", state="history"):
        assert leased() == ["history", "history"]
    assert leased() == []


# Checkpoints


def test_a_checkpoint_is_read_as_it_was_completed_whatever_becomes_of_its_epoch(days):
    run_days(days, history(retained_checkpoints=1), 1)
    with weir.open("ladder", state="history", checkpoint=1) as state:
        days.airflow.engine.plan[epoch(1)] = {"N1": -1}
        days.airflow.clear_run_by_hand("scheduled__2013-01-01")
        days.airflow.run_until_quiet()
        assert found(state) == {"N1": 1, "N2": 2, "N3": 3, "N4": 4, "N5": 5, None: 6}
        assert (state.checkpoint, state.epoch, state.get("N1")) == (1, epoch(1), {"tail": "N1", "n": 1})
        read = [file.path for part in state.partitions for file in part.files]
    with weir.open("ladder", state="history") as state:
        assert found(state) == {"N1": -1}
    run_days(days, history(retained_checkpoints=1), 2)
    assert not any(is_there(days, path) for path in read)


def test_a_checkpoint_that_is_not_kept_is_refused_with_those_that_are(days):
    run_days(days, history(retained_checkpoints=1), 1, 2)
    with pytest.raises(
        Misconfigured,
        check=of_kind(
            "reading.checkpoint_not_kept", dataflow="ladder", found="was subsumed by checkpoint 2", number="1"
        ),
    ):
        weir.open("ladder", state="history", checkpoint=1)
    with pytest.raises(
        Misconfigured, check=of_kind("reading.checkpoint_not_kept", dataflow="ladder", found="is not known", number="7")
    ):
        weir.open("ladder", state="history", checkpoint=7)
    with pytest.raises(Misconfigured, check=of_kind("reading.state_not_in_checkpoint", known="history", name="other")):
        weir.open("ladder", state="other", checkpoint=2)
    with pytest.raises(Misconfigured, check=of_kind("reading.checkpoint_without_state")):
        weir.open("ladder", epoch(1), state="history", checkpoint=2)


def test_rows_that_blind_upserts_have_not_counted_are_bounded_until_a_savepoint_counts_them(days):
    days.airflow.engine.is_blind = True
    run_days(days, history(), 1, 2)
    with weir.open("ladder", state="history", checkpoint=2) as state:
        assert (state.is_counted, state.rows) == (False, 9)
        assert state.arrow().num_rows == len(expected(days, 2)) == 6
        assert "at most 9 rows" in repr(state)
    create(days.services, SavepointRequest("ladder", name="counted"))
    with weir.open("ladder", state="history", checkpoint="counted") as state:
        assert (state.is_counted, state.rows) == (True, 6)
    with weir.open("ladder", epoch(2), state="history") as state:
        assert (state.is_counted, state.rows) == (False, 9)
        assert all("v3:" in part.digest for part in state.partitions)


def test_a_savepoint_is_read_by_its_number_its_name_and_its_folder(days, tmp_path):
    run_days(days, history(), 1)
    (tmp_path / "kept").mkdir()
    made = create(days.services, SavepointRequest("ladder", to=str(tmp_path / "kept"), name="before"))
    before = expected(days, 1)
    run_days(days, history(), 2)
    for which in (made.number, "before", made.folder):
        with weir.open("ladder", state="history", checkpoint=which) as state:
            assert found(state) == before
            assert (state.epoch, state.get("N1")) == (epoch(1), {"tail": "N1", "n": 1})
    with pytest.raises(Misconfigured, check=of_kind("snapshots.number_unknown", name="after")):
        weir.open("ladder", state="history", checkpoint="after")
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(Misconfigured, check=of_kind("integrity.no_savepoint")):
        weir.open("ladder", state="history", checkpoint="before")
