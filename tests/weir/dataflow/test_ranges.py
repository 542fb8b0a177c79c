"""What other forms hold of Spark's values, drawn at the edges and compared with the libraries themselves."""

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv

from weir.dataflow.ranges import DAY, Form, fits, fits_decimal, measured, range_of

WHOLE = ("byte", "short", "integer", "long")
TIMES = ("date", "timestamp", "timestamp_ntz")
ARROW = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}


@st.composite
def at_edges(draw, types):
    """A type, and one of its values: near an edge of it, or of any form."""
    kind = draw(st.sampled_from(types))
    own = range_of(Form.SPARK, kind)
    ranges = [found for form in Form if (found := range_of(form, kind)) is not None]
    edge = draw(st.sampled_from([0, *(each.low for each in ranges), *(each.high for each in ranges)]))
    value = edge + draw(st.sampled_from([1, DAY]) if kind != "date" else st.just(1)) * draw(st.integers(-3, 3))
    return kind, min(max(value, own.low), own.high)


@given(at_edges(WHOLE))
def test_a_whole_number_goes_through_floats_unchanged_where_the_table_says_so(drawn):
    kind, value = drawn
    if fits(Form.FLOAT64, kind, value):
        assert int(float(value)) == value
    if fits(Form.FLOAT32, kind, value):
        assert int(struct.unpack("f", struct.pack("f", float(value)))[0]) == value


@pytest.mark.parametrize(("form", "float_type"), [(Form.FLOAT32, np.float32), (Form.FLOAT64, np.float64)])
def test_the_first_number_beyond_a_float_is_another_one_there(form, float_type):
    high = range_of(form, "long").high
    assert int(float_type(high)) == high
    assert int(float_type(high + 1)) == high
    assert not fits(form, "long", 0, high + 1)


@given(at_edges(TIMES))
def test_python_has_a_day_or_moment_exactly_where_the_table_says_so(drawn):
    kind, value = drawn
    try:
        found = pa.scalar(value, pa.int64()).cast(ARROW[kind]) if kind != "date" else pa.scalar(value, pa.int32())
        found = found.cast(ARROW[kind]).as_py()
    except (OverflowError, ValueError):
        assert not fits(Form.PYTHON, kind, value)
    else:
        assert fits(Form.PYTHON, kind, value)
        assert measured(found) == value


@given(at_edges(TIMES))
def test_arrow_writes_a_day_or_moment_as_the_text_of_it_where_the_table_says_so(drawn):
    kind, value = drawn
    if not fits(Form.ARROW_TEXT, kind, value):
        return
    out = pa.BufferOutputStream()
    array = pa.array([value], pa.int32() if kind == "date" else pa.int64()).cast(ARROW[kind])
    csv.write_csv(pa.RecordBatch.from_arrays([array], names=["a"]), out, csv.WriteOptions(include_header=False))
    year, rest = out.getvalue().to_pybytes().decode().strip().rstrip("Z").split("-", 1)
    years = int(year) // 400 * 400 - 2000  # the calendar repeats itself after 146,097 days
    text = f"{int(year) - years}-{rest}"
    found = date.fromisoformat(text) if kind == "date" else datetime.fromisoformat(text)
    assert measured(found) + years // 400 * 146_097 * (1 if kind == "date" else DAY) == value


@given(at_edges(("timestamp_ntz",)), st.sampled_from([(Form.PANDAS_NS, "ns"), (Form.PANDAS_US, "us")]))
def test_pandas_has_a_moment_exactly_where_the_table_says_so(drawn, form):
    kind, value = drawn
    made = pa.array([value], pa.timestamp("us"))
    try:
        found = made.cast(pa.timestamp(form[1])).to_pandas().astype(f"datetime64[{form[1]}]")
    except (pa.ArrowInvalid, pd.errors.OutOfBoundsDatetime):
        assert not fits(form[0], kind, value)
    else:
        is_same = not found.isna()[0] and int(found.astype("int64")[0]) == value * (1000 if form[1] == "ns" else 1)
        assert is_same or not fits(form[0], kind, value)


@given(
    st.integers(-(10**39), 10**39), st.integers(-2, 40), st.sampled_from([(38, 18), (38, 0), (38, 38), (5, 2), (1, 1)])
)
def test_a_decimal_fits_exactly_where_arrow_has_it(unscaled, scale, kind):
    value = Decimal(f"{unscaled}E{-scale}")
    try:
        has_it = pa.scalar(value, pa.decimal128(*kind)).as_py() == value
    except pa.ArrowInvalid:
        has_it = False
    assert fits_decimal(value, *kind) is has_it


@pytest.mark.parametrize(
    ("form", "kind", "value", "is_held"),
    [
        (Form.SPARK, "decimal", Decimal("1e38"), False),
        (Form.SPARK, "decimal", Decimal("9" * 38), True),
        (Form.SPARK, "decimal", Decimal("NaN"), False),
        (Form.FLOAT64, "decimal", Decimal("0.5"), True),
        (Form.FLOAT64, "decimal", Decimal("0.1"), False),
        (Form.FLOAT32, "double", 0.1, False),
        (Form.FLOAT32, "double", float("nan"), True),
        (Form.FLOAT32, "double", 1e300, False),
        (Form.POSTGRES, "string", "a\0", False),
        (Form.PYTHON, "string", "a\0", True),
        (Form.PYTHON, "date", date.max, True),
        (Form.PANDAS_NS, "timestamp", datetime(2262, 4, 12, tzinfo=UTC), False),
        (Form.PANDAS_NS, "timestamp", datetime(2262, 4, 11, tzinfo=UTC), True),
        (Form.PANDAS_NS, "date", date(1677, 9, 21), False),
        (Form.POSTGRES, "date", -2_440_589, False),
        (Form.POSTGRES, "timestamp", measured(date.max) * DAY * 20, True),
        (Form.POSTGRES, "timestamp", measured(date.max) * DAY * 40, False),
        (Form.PYTHON, "interval", timedelta.max, True),
        (Form.FLOAT64, "long", None, True),
    ],
)
def test_what_a_form_holds(form, kind, value, is_held):
    assert fits(form, kind, value) is is_held
