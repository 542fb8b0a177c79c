"""One pass over sorted rows, without Spark: however they are cut into batches, each key has one call."""

from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from weir_spark.state import exact_rows, keyed_pass
from weir_spark.state import handles as state_handles
from weir_spark.state.handles import VALUE
from weir_spark.state.keyed_pass import CHANGE, DELETED, KEY, RESULT, ROW, STATE, KeyedPass

KEYS = pa.schema([("k", pa.string())])
VALUES = pa.schema([("n", pa.int64())])
RESULTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
INPUT = pa.schema([("k", pa.string()), ("m", pa.int64())])


def sums(key, rows, state):
    """Add the day's values to those before; a negative sum is forgotten."""
    total = state.value("n").get(0) + sum(row["m"] for row in rows)
    if total < 0:
        state.clear()
    else:
        state.value("n").set(total)
    yield {"k": key[0], "n": total}


def passed(function, form="rows"):
    return KeyedPass(function, form, {"n": VALUE}, KEYS, VALUES, RESULTS)


def batches(rows, states, sizes=(1000,)):
    """Rows and states by key as Spark's shuffle would give them, in batches of these sizes, again and again."""
    ordered = sorted({*(key for key, _ in rows), *states}, key=lambda key: (key is not None, key))
    of_key = {key: [] for key in ordered}
    for key, value in rows:
        of_key[key].append(value)
    lines = []
    for key in ordered:
        if key in states:
            lines.append({KEY: {"k": key}, ROW: None, STATE: {"n": states[key]}})
        lines += [{KEY: {"k": key}, ROW: {"k": key, "m": m}, STATE: None} for m in of_key[key]]
    schema = pa.schema([(KEY, pa.struct(list(KEYS))), (ROW, pa.struct(list(INPUT))), (STATE, pa.struct(list(VALUES)))])
    first, turn = 0, 0
    while first < len(lines):
        size = sizes[turn % len(sizes)]
        yield pa.RecordBatch.from_pylist(lines[first : first + size], schema=schema)
        first, turn = first + size, turn + 1


def outcome(done):
    """Results, and changes by key; None is a deletion."""
    rows = [row for batch in done for row in batch.to_pylist()]
    results = [row[RESULT] for row in rows if row[DELETED] is None]
    changes = {row[CHANGE]["k"]: None if row[DELETED] else row[CHANGE]["n"] for row in rows if row[DELETED] is not None}
    assert len(changes) == sum(row[DELETED] is not None for row in rows)
    return results, changes


names = st.one_of(st.none(), st.sampled_from("abcdef"))


@given(
    st.lists(st.tuples(names, st.integers(-5, 5)), min_size=1, max_size=40),
    st.dictionaries(names, st.integers(0, 9)),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_each_key_has_one_call_with_all_its_rows_and_its_state_wherever_batches_end(rows, states, sizes):
    occurring = {key for key, _ in rows}
    known = {key: value for key, value in states.items() if key in occurring}
    results, changes = outcome(passed(sums)(batches(rows, known, sizes)))
    expected = {key: known.get(key, 0) + sum(m for one, m in rows if one == key) for key in occurring}
    assert {row["k"]: row["n"] for row in results} == expected
    assert len(results) == len(expected)
    assert changes == {
        key: None if total < 0 else total for key, total in expected.items() if total >= 0 or key in known
    }


def test_rows_without_end_are_handed_on_in_batches():
    count = keyed_pass.BATCH_ROWS * 2 + 1
    rows = [(f"{i:06d}", i) for i in range(count)]
    done = list(passed(sums)(batches(rows, {}, (5000,))))
    assert max(batch.num_rows for batch in done) <= keyed_pass.BATCH_ROWS
    results, changes = outcome(done)
    assert (len(results), len(changes)) == (count, count)


def frame(key, rows, state):
    total = state.value("n").get(0) + int(rows["m"].sum())
    state.value("n").set(total)
    return rows.assign(n=rows["m"])[["n", "k"]]


def unnamed(key, rows, state):
    return pd.DataFrame([[key[0], int(rows["m"].sum())]])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (frame, [{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 5}]),
        (unnamed, [{"k": "a", "n": 3}, {"k": "b", "n": 5}]),
    ],
)
def test_pandas_go_in_and_out_by_names_or_by_places(function, expected):
    assert outcome(passed(function, "pandas")(batches([("a", 1), ("a", 2), ("b", 5)], {"a": 4}, (2,))))[0] == expected


def test_arrow_goes_in_and_out():
    def first(key, rows, state):
        return rows.slice(0, 1).rename_columns(["k", "n"]).to_batches()[0]

    def table(key, rows, state):
        return rows.rename_columns(["k", "n"])

    rows = [("a", 1), ("a", 2), ("b", 5)]
    assert [row["n"] for row in outcome(passed(first, "arrow")(batches(rows, {}, (2,))))[0]] == [1, 5]
    assert [row["n"] for row in outcome(passed(table, "arrow")(batches(rows, {}, (2,))))[0]] == [1, 2, 5]


@pytest.mark.parametrize("answer", [{"k": "x", "n": 1}, ("x", 1), [("x", 1)], iter([{"n": 1, "k": "x"}])])
def test_a_row_is_a_dictionary_or_a_tuple(answer):
    results, changes = outcome(passed(lambda key, rows, state: answer)(batches([("a", 1)], {})))
    assert (results, changes) == ([{"k": "x", "n": 1}], {})


def test_no_answer_is_no_row():
    assert outcome(passed(lambda key, rows, state: None)(batches([("a", 1)], {"a": 1}))) == ([], {})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"k": "x"}, "expected the columns k, n, found k"),
        ({"k": "x", "n": 1, "m": 2}, "expected the columns k, n, found k, n, m"),
        (("x",), "expected the 2 columns k, n, found 1"),
        (pd.DataFrame({"k": ["x"]}), "expected the columns k, n, found k"),
        (pd.DataFrame([["x"]]), "expected the 2 columns k, n, found 1"),
        (pa.table({"n": [1]}), "expected the columns k, n, found n"),
        (7, "expected a pandas DataFrame, an Arrow table, a dictionary, a tuple, or several of these, found int"),
        ("text", "found str"),
    ],
)
def test_an_answer_of_another_form_is_refused_and_names_the_key(answer, message):
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        list(passed(lambda key, rows, state: answer)(batches([("a", 1)], {})))
    assert raised.value.__notes__ == ["in per_key, for the key ('a',)"]


@pytest.mark.parametrize("value", ["many", 1.5, 2**70])
def test_a_value_of_another_type_is_refused_and_its_row_is_shown(value):
    def answer(key, rows, state):
        return {"k": key[0], "n": value if key == ("b",) else 1}

    def keep(key, rows, state):
        state.set(n=value if key == ("b",) else 1)

    given = [("a", 1), ("b", 2), ("c", 3)]
    with pytest.raises(
        ValueError, match=r"an answer of per_key does not fit its columns \(k string, n int64\): {'k': 'b'"
    ):
        list(passed(answer)(batches(given, {})))
    with pytest.raises(ValueError, match=r"a row of the state does not fit its columns \(k string, n int64\): {'n': "):
        list(passed(keep)(batches(given, {})))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int32()), [1, 1.5]),
        (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": 1.5}),
        (pa.struct([("n", pa.list_(pa.int64()))]), {"n": [float("nan")]}),
    ],
)
def test_whole_numbers_are_not_cut_out_of_others_however_deep(kind, value):
    work = KeyedPass(
        lambda key, rows, state: state.set(n=value), "rows", {"n": VALUE}, KEYS, pa.schema([("n", kind)]), RESULTS
    )
    with pytest.raises(ValueError, match="a row of the state does not fit its columns"):
        list(work(batches([("a", 1)], {})))


def test_workers_without_weir_can_do_it(tmp_path):
    for module in (exact_rows, state_handles, keyed_pass):
        cloudpickle.register_pickle_by_value(module)

    def count(key, rows, state):
        state.value("n").set(state.value("n").get(0) + len(rows))

    file = tmp_path / "pass"
    file.write_bytes(cloudpickle.dumps((passed(count).__call__, list(batches([("a", 1), ("a", 2)], {"a": 4})))))
    lines = [
        "import pickle, sys",
        "sys.modules.update({'weir': None, 'weir_spark': None})",
        f"work, given = pickle.load(open({str(file)!r}, 'rb'))",
        "print([row for batch in work(iter(given)) for row in batch.to_pylist()])",
    ]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False, capture_output=True, text=True)
    assert f"'{CHANGE}': {{'k': 'a', 'n': 6}}" in run.stdout, run.stderr
