"""Recorded columns in Arrow's words and in Spark's DDL."""

import json

import pyarrow as pa
import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.manifest import ContentDigest
from weir.reading.opened import together
from weir.state.spark_schema import arrow_schema, spark_ddl


def schema(*fields):
    return json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": False, "metadata": {}} for n, t in fields]}
    )


def struct(*fields):
    return json.loads(schema(*fields))


def array(element):
    return {"type": "array", "elementType": element, "containsNull": True}


def entries(key, value):
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("kind", "arrow", "ddl"),
    [
        ("string", pa.string(), "string"),
        ("varchar(10)", pa.string(), "varchar(10)"),
        ("char(3)", pa.string(), "char(3)"),
        ("string collate UNICODE", pa.string(), "string collate UNICODE"),
        ("binary", pa.binary(), "binary"),
        ("boolean", pa.bool_(), "boolean"),
        ("byte", pa.int8(), "byte"),
        ("short", pa.int16(), "short"),
        ("integer", pa.int32(), "integer"),
        ("long", pa.int64(), "long"),
        ("float", pa.float32(), "float"),
        ("double", pa.float64(), "double"),
        ("decimal(20,4)", pa.decimal128(20, 4), "decimal(20,4)"),
        ("date", pa.date32(), "date"),
        ("timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
        ("timestamp_ntz", pa.timestamp("us"), "timestamp_ntz"),
        (array("long"), pa.list_(pa.field("element", pa.int64())), "array<long>"),
        (entries("string", "double"), pa.map_(pa.string(), pa.float64()), "map<string, double>"),
        (
            struct(("a b", "long"), ("c`d", array("string"))),
            pa.struct([("a b", pa.int64()), ("c`d", pa.list_(pa.field("element", pa.string())))]),
            "struct<`a b`: long, `c``d`: array<string>>",
        ),
    ],
    ids=str,
)
def test_each_type_has_its_words(kind, arrow, ddl):
    assert arrow_schema(schema(("x", kind))) == pa.schema([pa.field("x", arrow)])
    assert spark_ddl(schema(("x", kind))) == f"`x` {ddl}"


def test_columns_keep_their_order_and_their_odd_names():
    odd = schema(("b", "long"), ("odd, `name`", "string"))
    assert arrow_schema(odd).names == ["b", "odd, `name`"]
    assert spark_ddl(odd) == "`b` long, `odd, ``name``` string"


@pytest.mark.parametrize("kind", ["variant", "interval day to second", {"type": "udt", "sqlType": "long"}], ids=str)
def test_a_type_that_arrow_lacks_is_sent_to_spark(kind):
    with pytest.raises(Misconfigured, check=of_kind("state.type_unfit_for_arrow")):
        arrow_schema(schema(("x", kind)))


def test_a_type_of_a_users_own_is_read_as_what_it_is_stored_as():
    assert spark_ddl(schema(("x", {"type": "udt", "sqlType": array("double")}))) == "`x` array<double>"


def digest(rows, xor, low, high, **more):
    return ContentDigest(schema="k:bigint", rows=rows, xor=xor, low_sum=low, high_sum=high, **more)


def test_digests_of_partitions_add_up_to_that_of_all_rows():
    parts = [digest(2, 0b1100, 5, 7), digest(3, 0b1010, 11, 13), digest(0, 0, 0, 0)]
    assert together(parts) == together(parts[::-1]) == str(digest(5, 0b0110, 16, 20))
    assert together(parts[:1]) == str(parts[0])


def test_digests_of_other_definitions_do_not_add_up():
    parts = [digest(2, 1, 5, 7), digest(3, 2, 11, 13, version=2)]
    assert together(parts) == f"{parts[0]}|{parts[1]}"
