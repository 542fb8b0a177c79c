"""What a function is given and what it answers, without Spark: each value stays what it was, or is refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_spark.state.exact_rows import NotHeld, of_arrow, of_dicts, of_pandas, to_pandas

BIG = 2**53 + 1
TZ = pa.timestamp("us", "UTC")
AT = datetime(2020, 1, 1, 13, tzinfo=UTC)


def maybe(values):
    return st.one_of(st.none(), values)


longs = maybe(st.one_of(st.sampled_from([BIG, -BIG, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1)))
times = st.datetimes(timezones=st.just(UTC))
KINDS = [
    (pa.int64(), longs),
    (pa.int8(), maybe(st.integers(-128, 127))),
    (pa.bool_(), maybe(st.booleans())),
    (pa.float64(), maybe(st.floats(allow_nan=False))),
    (pa.float32(), maybe(st.floats(width=32, allow_nan=False))),
    (pa.decimal128(38, 3), maybe(st.decimals(-(10**34), 10**34, places=3))),
    (pa.string(), maybe(st.text())),
    (pa.binary(), maybe(st.binary())),
    (pa.date32(), maybe(st.dates())),
    (TZ, maybe(times)),
    (pa.timestamp("us"), maybe(st.datetimes())),
    (pa.list_(pa.int64()), maybe(st.lists(longs, max_size=4))),
    (pa.list_(pa.list_(pa.int64())), maybe(st.lists(maybe(st.lists(longs, max_size=3)), max_size=3))),
    (
        pa.struct([("a", pa.int64()), ("b", pa.bool_())]),
        maybe(st.fixed_dictionaries({"a": longs, "b": maybe(st.booleans())})),
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        maybe(st.dictionaries(st.text(max_size=2), longs, max_size=3).map(lambda each: [*each.items()])),
    ),
]
SCHEMA = pa.schema([(f"c{i}", kind) for i, (kind, _) in enumerate(KINDS)])
rows_of_all_types = st.lists(
    st.fixed_dictionaries({f"c{i}": values for i, (_, values) in enumerate(KINDS)}), min_size=1, max_size=4
)


@given(rows_of_all_types)
def test_what_goes_through_pandas_arrow_or_dictionaries_comes_back_as_it_was(rows) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for back in (
        of_pandas(to_pandas(table), SCHEMA),
        of_arrow(table, SCHEMA),
        of_dicts(table.to_pylist(), SCHEMA, "a row"),
    ):
        assert back.to_pylist() == table.to_pylist()


def test_whole_numbers_are_of_a_nullable_type_where_the_group_has_a_null() -> None:
    frame = to_pandas(pa.table({"n": [BIG, None], "m": [1, 2]}))
    assert [str(each) for each in frame.dtypes] == ["Int64", "int64"]
    assert (frame["n"].sum(), frame["n"].isna().tolist()) == (BIG, [False, True])
    assert to_pandas(pa.table({"n": pa.array([], pa.int64())}))["n"].dtype == "int64"


def test_missing_values_of_pandas_are_nulls_in_every_form() -> None:
    schema = pa.schema([("n", pa.int64()), ("at", TZ)])
    rows = of_dicts([{"n": pd.NA, "at": pd.NaT}, {"n": 1, "at": AT}], schema, "a row")
    frame = of_pandas(pd.DataFrame({"n": [math.nan, 1.0], "at": pd.to_datetime([None, AT])}), schema)
    assert rows.to_pylist() == frame.to_pylist() == [{"n": None, "at": None}, {"n": 1, "at": AT}]


REFUSED = [
    (pa.int64(), 1.5),
    (pa.int64(), Decimal("1.5")),
    (pa.int64(), "12"),
    (pa.int32(), 2**33),
    (pa.float64(), BIG),
    (pa.float32(), 1e300),
    (pa.decimal128(10, 2), Decimal("1.555")),
    (pa.date32(), datetime(2020, 1, 1, 13, tzinfo=UTC)),
    (pa.date32(), 5),
    (TZ, 5),
    (TZ, pd.Timestamp(1577836800000000123)),
    (pa.bool_(), 2),
    (pa.string(), 12),
    (pa.list_(pa.int64()), [1, 1.5]),
    (pa.list_(pa.date32()), [datetime(2020, 1, 1, 13, tzinfo=UTC)]),
    (pa.struct([("a", pa.int64())]), {"a": 1, "z": 2}),
    (pa.struct([("a", pa.float32())]), {"a": -1e300}),
    (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": Decimal("0.5")}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)]),
    (pa.list_(pa.string()), "ab"),
    (pa.list_(pa.int64()), b"ab"),
    (pa.struct([("a", pa.list_(pa.string()))]), {"a": "ab"}),
    (pa.int64(), np.bool_(True)),
    (pa.float64(), True),
    (pa.timestamp("us"), datetime(2020, 1, 1, 13, tzinfo=timezone(timedelta(hours=9)))),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=repr)
def test_a_value_that_its_column_does_not_hold_is_refused_in_each_form(kind, value) -> None:
    schema = pa.schema([("n", kind)])
    with pytest.raises(ValueError, match="a row does not fit its columns"):
        of_dicts([{"n": None}, {"n": value}], schema, "a row")
    for series in (pd.Series([value]), pd.Series([value, None], dtype=object)):
        with pytest.raises(ValueError, match="the column n of an answer does not fit"):
            of_pandas(pd.DataFrame({"n": series}), schema)


def test_a_moment_of_numpy_that_arrow_cannot_convert_is_refused_with_its_row() -> None:
    with pytest.raises(NotHeld, match="a row does not fit its columns"):
        of_dicts([{"at": np.datetime64("2020-01-01T00:00:00.000001")}], pa.schema([("at", TZ)]), "a row")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), pa.array(["12"])),
        (pa.int64(), pa.array([AT], TZ)),
        (pa.int64(), pa.array([timedelta(days=1)])),
        (pa.int64(), pa.array([Decimal("1.5")])),
        (pa.float64(), pa.array(["1e400"])),
        (pa.float64(), pa.array([BIG])),
        (pa.float64(), pa.array([Decimal(BIG)])),
        (pa.timestamp("us"), pa.array([AT], pa.timestamp("us", "Asia/Tokyo"))),
        (pa.list_(pa.timestamp("us")), pa.array([[AT]], pa.list_(pa.timestamp("us", "Asia/Tokyo")))),
        (pa.decimal128(4, 2), pa.array([100])),
        (pa.float32(), pa.array([1e300])),
        (pa.decimal128(10, 2), pa.array([0.125])),
        (pa.date32(), pa.array([AT], TZ)),
        (TZ, pa.array([5])),
        (TZ, pa.array([1577836800000000123], pa.timestamp("ns", "UTC"))),
        (pa.bool_(), pa.array([2])),
        (pa.string(), pa.array([1.5])),
        (pa.struct([("a", pa.int64())]), pa.array([{"a": 1, "z": 2}])),
        (pa.list_(pa.decimal128(10, 2)), pa.array([[0.5, 0.125]])),
    ],
)
def test_arrow_is_not_trusted_to_convert(kind, values) -> None:
    with pytest.raises(ValueError, match="the column n of an answer does not fit"):
        of_arrow(pa.table({"n": values}), pa.schema([("n", kind)]))


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), pd.Series([1.0, math.nan]), [1, None]),
        (pa.int64(), pd.Series([Decimal(2), None], dtype=object), [2, None]),
        (pa.int16(), pd.Series([300]), [300]),
        (pa.decimal128(4, 2), pd.Series([99]), [Decimal("99.00")]),
        (pa.float64(), pd.Series([Decimal("0.1")], dtype=pd.ArrowDtype(pa.decimal128(4, 2))), [0.1]),
        (pa.timestamp("us"), pd.Series([AT], dtype=object), [AT.replace(tzinfo=None)]),
        (pa.float32(), pd.Series([0.1]), [float(np.float32(0.1))]),
        (pa.float32(), pd.Series([math.inf]), [math.inf]),
        (pa.string(), pd.Series(["a", None], dtype="category"), ["a", None]),
        (pa.string(), pd.Series([math.nan]), [None]),
        (pa.date32(), pd.Series(pd.to_datetime(["2020-01-01"])), [date(2020, 1, 1)]),
        (TZ, pd.Series([datetime(2020, 1, 1, 18, tzinfo=timezone(timedelta(hours=5)))]), [AT]),
        (pa.list_(pa.int64()), pd.Series([np.array([1.0, math.nan])]), [[1, None]]),
        (pa.map_(pa.string(), pa.int64()), pd.Series([{"a": 1}]), [[("a", 1)]]),
    ],
)
def test_what_a_column_holds_is_taken_whatever_it_is_called(kind, values, expected) -> None:
    assert of_pandas(pd.DataFrame({"n": values}), pa.schema([("n", kind)]))["n"].to_pylist() == expected
