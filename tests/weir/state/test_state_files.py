"""Files of keyed state that were cut, merged and shared: whatever they are, they come to what a dictionary comes to."""

import io
import json
from contextlib import ExitStack
from decimal import Decimal
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind

from weir.dataflow.state import State, StateKind
from weir.errors import Internal, Misconfigured
from weir.formats.manifest import StateFile
from weir.reading.opened_state import OpenedState, OpenStatePartition, StateAt
from weir.state.spark_schema import arrow_schema
from weir.state.state_files import Gone, Shape, count_rows, read_rows
from weir.store.seal import seal
from weir.testing.fakes.stores import store_in_memory
from weir.topology.key_hash import key_group
from weir.topology.partitions import KEY_GROUP_COLUMN

GROUPS = 16
FOLDERS = count()
FIELDS = [("k", "long"), ("n", "integer"), ("more", {"type": "array", "elementType": "string", "containsNull": True})]
SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in FIELDS]}
)
STATE = State(name="s", kind=StateKind.KEYED, keys=("k",), schema="k BIGINT, n INT, more ARRAY<STRING>")


def group_of(key):
    return key_group([("bigint", key)], GROUPS)


def epoch(number):
    return f"2013010{number}T000000Z"


@pytest.fixture(scope="module")
def store():
    with fast_folder() as folder:
        opened = store_in_memory(folder / "store")
        opened.initialise()
        yield opened


class Written:
    """Writes files of state into folders of their own."""

    def __init__(self, store):
        self.store = store

    def file(self, number, rows, has_more=True):
        """A file of all rows, by key; a value None is a deleted key."""
        folder = f"written/{next(FOLDERS)}"
        in_order = sorted(rows.items(), key=lambda row: (group_of(row[0]), row[0]))
        columns = {
            "k": pa.array([key for key, _ in in_order], pa.int64()),
            "n": pa.array([value for _, value in in_order], pa.int32()),
            KEY_GROUP_COLUMN: pa.array([group_of(key) for key, _ in in_order], pa.int32()),
            "_weir_deleted": pa.array([value is None for _, value in in_order], pa.bool_()),
        }
        if has_more:
            columns["more"] = pa.array([[str(value), None] for _, value in in_order], pa.list_(pa.string()))
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, row_group_size=3, compression="zstd")
        self.store.create(f"{folder}/part-0.parquet", buffer.getvalue())
        (sealed,) = seal(self.store, folder)
        return StateFile(folder, sealed, epoch(number), (0, GROUPS - 1))


def cut(file, first, last):
    return StateFile(file.folder, file.file, file.epoch, (first, last))


def opened(store, files):
    files = tuple(sorted(files, key=lambda file: (file.epoch, file.key_groups, file.path)))
    part = OpenStatePartition(
        subtask=0, layout="by-k", attempt="a", key_groups=(0, GROUPS - 1), rows=0, digest="", files=files
    )
    at = StateAt(
        state=STATE,
        stage="stage",
        run="flow@e",
        epoch=epoch(9),
        checkpoint=None,
        spark_schema=SCHEMA,
        max_parallelism=GROUPS,
        expired_until=None,
        partitions=(part,),
        advice="",
    )
    return OpenedState(store, at, None, ExitStack())


values = st.none() | st.integers(0, 99)
changes = st.dictionaries(st.integers(0, 30), values, min_size=1, max_size=20)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(changes, min_size=1, max_size=5),
    st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(sorted),
)
def test_a_slice_that_was_merged_hides_what_it_was_merged_from(store, epochs, merged):
    """The runs of some key groups become one run, as compaction does: all files keep the groups around them."""
    written, (first, last) = Written(store), merged
    model, slice_of, files = {}, {}, []
    for number, rows in enumerate(epochs, start=1):
        model.update(rows)
        slice_of.update({key: value for key, value in rows.items() if first <= group_of(key) <= last})
        file = written.file(number, rows)
        files += [cut(file, *groups) for groups in ((0, first - 1), (last + 1, GROUPS - 1)) if groups[0] <= groups[1]]
    if slice_of:
        files.append(cut(written.file(len(epochs), slice_of), first, last))
    state = opened(store, files)
    expected = {key: value for key, value in model.items() if value is not None}
    rows = state.arrow().to_pylist()
    assert len(rows) == len(expected)
    assert {row["k"]: row["n"] for row in rows} == expected
    for key in range(31):
        found = state.get(key)
        assert (None if found is None else found["n"]) == expected.get(key)
    assert state.runs <= len(epochs)
    shape = Shape(arrow_schema(SCHEMA), ("k",), None)
    assert count_rows(store, state.partitions[0].files, shape, (0, GROUPS - 1)) == len(expected)


def test_a_column_that_was_added_later_is_null_in_older_rows(store):
    written = Written(store)
    state = opened(store, [written.file(1, {1: 10, 2: 20}, has_more=False), written.file(2, {2: 21})])
    rows = sorted(state.arrow().to_pylist(), key=lambda row: row["k"])
    assert rows == [{"k": 1, "n": 10, "more": None}, {"k": 2, "n": 21, "more": ["21", None]}]
    assert state.get(1) == rows[0]


def test_a_text_stands_for_a_number_where_it_is_one(store):
    state = opened(store, [Written(store).file(1, {-7: 1, 12: 2})])
    assert state.get("-7")["n"] == 1
    assert state.get("12") == state.get(12)
    with pytest.raises(
        Misconfigured, check=of_kind("reading.key_value_of_other_type", kind="int64", name="k", value="N1")
    ):
        state.get("N1")
    for other in (2**63, 12.5, Decimal("12.5")):
        with pytest.raises(Misconfigured, match="is no such value"):
            state.get(other)


def test_only_key_groups_that_a_partition_means_are_read(store):
    file = cut(Written(store).file(1, {key: key for key in range(30)}), 3, 8)
    shape = Shape(pa.schema([("k", pa.int64())]), ("k",), None)
    found = read_rows(store, file, shape.stored, (5, GROUPS - 1))
    assert sorted(found["k"].to_pylist()) == [key for key in range(30) if 5 <= group_of(key) <= 8]


def test_a_file_that_is_gone_or_damaged_is_told_apart(store):
    shape = Shape(pa.schema([("k", pa.int64())]), ("k",), None)
    file = Written(store).file(1, {1: 1})
    data = store.read(file.path)
    store.replace(file.path, data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    with pytest.raises(Gone, check=of_kind("state.file_damaged")) as damaged:
        read_rows(store, file, shape.stored, (0, GROUPS - 1))
    store.delete(file.path)
    with pytest.raises(Gone, check=of_kind("state.file_gone")) as gone:
        read_rows(store, file, shape.stored, (0, GROUPS - 1))
    assert (damaged.value.is_there, gone.value.is_there) == (True, False)


def test_a_file_whose_record_is_of_other_row_groups_is_not_guessed_at(store):
    from dataclasses import replace

    file = Written(store).file(1, {key: key for key in range(9)})
    first, *rest = file.file.segments
    joined = replace(file.file, segments=(first, rest[-1]))
    shape = Shape(pa.schema([("k", pa.int64())]), ("k",), None)
    with pytest.raises(Internal, check=of_kind("state.row_groups_differ", found="3", recorded="1")):
        read_rows(store, replace(file, file=joined), shape.stored, (0, GROUPS - 1))
