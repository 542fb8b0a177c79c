"""The partition that a source declares: values are compared in the column's type."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.transforms import DayTransform
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import resolved
from tests.weir_spark.sources.test_iceberg import ORDERS, Lake

from weir.dataflow import delta_source, iceberg_source
from weir.errors import Misconfigured
from weir_spark.sources.folders import NULL
from weir_spark.sources.partitions import value_of

MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC).replace(tzinfo=None)
TYPES = [
    (pa.int32(), 1, ["1", "01", "+1", "{start:%m}"], ["1.0", "x", "2147483648", ""]),
    (pa.int8(), -1, ["-1", "-01"], ["128", "1_0"]),
    (pa.int64(), 20130101, ["{start:%Y%m%d}"], ["{start:%Y-%m-%d}"]),
    (pa.date32(), date(2013, 1, 1), ["{start:%Y%m%d}", "2013-1-1", "{start}"], ["2013-01", "2013-02-30", "{start:%m}"]),
    (pa.bool_(), True, ["true", "TRUE", "1"], ["2", "wahr"]),
    (pa.decimal128(9, 2), Decimal("1.50"), ["1.5", "01.500", "15e-1"], ["1.505", "NaN", "12345678"]),
    (pa.float32(), 0.1, ["0.1", "1e-1"], ["one", "1e39"]),
    (pa.float64(), float("nan"), ["NaN", "nan"], ["null"]),
    (pa.timestamp("us"), MIDNIGHT, ["{start}", "2013-01-01", "2013-01-01T00:00:00.0000000"], ["yesterday", "2013"]),
    (pa.timestamp("us", "UTC"), MIDNIGHT.replace(tzinfo=UTC), ["{start}", "2013-01-01 05:30+05:30"], ["24:00"]),
    (pa.string(), "01", ["01", "{start:%m}"], []),
    (pa.string(), "a b/c%20+é:{}", ["a b/c%20+é:{{}}"], []),
]


def of_delta(path, text, column="p"):
    return resolved(delta_source("orders", path, partition={column: text}))


@pytest.mark.parametrize(("kind", "value", "equal", "wrong"), TYPES)
def test_a_partition_is_found_by_its_value_and_no_other_text_passes_for_one(tmp_path, kind, value, equal, wrong):
    at = pa.array([value, None], kind)
    delta, columns = str(tmp_path / "delta"), {"v": pa.array([1, 2], pa.int32()), "p": at}
    write_deltalake(delta, pa.table(columns), partition_by=["p"])
    tables = [lambda text: of_delta(delta, text)]
    if kind in (pa.int32(), pa.date32(), pa.float32(), pa.timestamp("us", "UTC")):
        lake = Lake(tmp_path / "lake", [("v", pa.int32()), ("p", kind)], ["p"])
        lake.append(**columns)
        tables.append(lambda text: lake.splits(iceberg_source("orders", "lake.db.orders", partition={"p": text})))
    for read in tables:
        for text in [*equal, NULL]:
            (split,) = read(text)
            assert [len(group["files"]) for group in split["groups"]] == [1], text
            (found,) = (group["values"]["p"] for group in split["groups"])
            assert (found is None) is (text == NULL)
        for text in wrong:
            if text:
                with pytest.raises(Misconfigured, check=of_kind("sources.partition_value_unfit", column="p")):
                    read(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("decimal(38,10)", "1234567890123456789012345678.0123456789"), ("long", "-9223372036854775808")],
)
def test_long_numbers_are_exact(kind, text):
    assert value_of(kind, text) == Decimal(text)
    with pytest.raises(ValueError):  # noqa: PT011
        value_of(kind, f"{text}1" if kind == "long" else f"1{text}")


def test_times_are_exact_to_the_microsecond_or_refused():
    assert value_of("timestamp", "2013-01-01 00:00:00.000001") != value_of("timestamp", "2013-01-01")
    with pytest.raises(ValueError, match="microseconds"):
        value_of("timestamp", "2013-01-01 00:00:00.0000001")


def test_a_day_without_rows_has_no_files_and_a_day_that_python_lacks_does_not_hide_it(tmp_path):
    path = str(tmp_path / "orders")
    days = pa.array([2932897, 15706], pa.int32()).cast(pa.date32())
    write_deltalake(path, pa.table({"v": [1, 2], "p": days}), partition_by=["p"])
    (split,) = resolved(delta_source("orders", path))
    assert [group["values"]["p"] for group in split["groups"]] == ["10000-01-01", "2013-01-01"]
    with pytest.raises(Misconfigured, check=of_kind("sources.partition_not_comparable")):
        of_delta(path, "2013-01-01")
    DeltaTable(path).delete("v = 1")
    assert of_delta(path, "2013-01-02")[0]["groups"] == []
    assert len(of_delta(path, "2013-01-01")[0]["groups"]) == 1


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("column", ["V", "P", "v", "p.x"])
def test_a_column_that_is_no_partition_is_refused_also_where_there_are_no_files(tmp_path, is_empty, column):
    path = str(tmp_path / "orders")
    rows = pa.table({"v": pa.array([1], pa.int32()), "p": ["a"]})
    write_deltalake(path, rows.slice(0, 0) if is_empty else rows, partition_by=["p"])
    with pytest.raises(Misconfigured, match=f"{column}", check=of_kind("sources.table_not_partitioned")):
        of_delta(path, "1", column)
    lake = Lake(tmp_path / "lake", [("v", pa.int32()), ("p", pa.string())], ["p"])
    if not is_empty:
        lake.append(**{name: rows[name] for name in rows.column_names})
    stage = iceberg_source("orders", "lake.db.orders", partition={column: "1"})
    with pytest.raises(Misconfigured, match=f"{column}", check=of_kind("sources.table_not_partitioned")):
        lake.splits(stage)


def test_a_transform_of_iceberg_is_no_value_of_its_column(tmp_path):
    lake = Lake(tmp_path / "lake", [("v", pa.int32()), ("day", pa.date32())])
    with lake.table.update_spec() as spec:
        spec.add_field("day", DayTransform(), "day_of")
    with pytest.raises(Misconfigured, check=of_kind("sources.table_not_partitioned", column="day")):
        lake.splits(replace(ORDERS, options={**ORDERS.options, "partition": {"day": "2013-01-01"}}))
