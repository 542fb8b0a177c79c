"""Values in Avro: each is what the bytes of the specification say, or is refused."""

import json
import random
import struct
from decimal import Decimal

import msgspec
import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import avro
from weir.errors import Misconfigured
from weir_spark.sources.kafka_avro import decoder_of


def record(*fields, name="r"):
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


def decoded(kind, data):
    return decoder_of(json.dumps(record(("v", kind))))(data)["v"]


def logical(kind, of, **more):
    return {"type": of, "logicalType": kind, **more}


FIXED = {"type": "fixed", "name": "two", "size": 2}
ENUM = {"type": "enum", "name": "suit", "symbols": ["A", "B"]}
PAIR = record(("x", FIXED), ("y", "two"), name="pair")
VALUES = [
    ("boolean", b"\1", True, "BOOLEAN"),
    ("int", b"\1", -1, "INT"),
    ("int", b"\xff\xff\xff\xff\x0f", -(2**31), "INT"),
    ("long", b"\x80\1", 64, "BIGINT"),
    ("long", b"\xfe" + b"\xff" * 8 + b"\1", 2**63 - 1, "BIGINT"),
    ("float", struct.pack("<f", 0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0], "FLOAT"),
    ("double", struct.pack("<d", 0.1), 0.1, "DOUBLE"),
    ("bytes", b"\4\0\xff", b"\0\xff", "BINARY"),
    ("string", b"\6foo", "foo", "STRING"),
    (["null", "string"], b"\2\2a", "a", "STRING"),
    (["string", "null"], b"\2", None, "STRING"),
    ({"type": "array", "items": "long"}, b"\4\6\x36\0", [3, 27], "ARRAY<BIGINT>"),
    ({"type": "array", "items": "long"}, b"\3\4\6\x36\2\2\0", [3, 27, 1], "ARRAY<BIGINT>"),
    ({"type": "map", "values": ["null", "int"]}, b"\2\2k\2\6\0", {"k": 3}, "MAP<STRING, INT>"),
    (FIXED, b"ab", b"ab", "BINARY"),
    (ENUM, b"\2", "B", "STRING"),
    (PAIR, b"1234", {"x": b"12", "y": b"34"}, "STRUCT<`x`: BINARY, `y`: BINARY>"),
    (logical("date", "int"), b"\1", -1, "DATE"),
    (logical("timestamp-millis", "long"), b"\2", 1000, "TIMESTAMP"),
    (logical("timestamp-micros", "long"), b"\1", -1, "TIMESTAMP"),
    (logical("local-timestamp-micros", "long"), b"\2", 1, "TIMESTAMP_NTZ"),
    (logical("uuid", "string"), b"\2a", "a", "STRING"),
    (logical("decimal", "bytes", precision=4, scale=2), b"\4\xff\x85", Decimal("-1.23"), "DECIMAL(4,2)"),
    (logical("decimal", "fixed", precision=4, name="d", size=2), b"\0\x7b", Decimal(123), "DECIMAL(4,0)"),
]


@pytest.mark.parametrize(("kind", "data", "value", "ddl"), VALUES)
def test_a_value_is_read_as_the_specification_has_it(kind, data, value, ddl):
    schema = json.dumps(record(("v", kind)))
    assert decoded(kind, data) == value
    assert avro(schema).schema == f"`v` {ddl}"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("boolean", b"\2"),
        ("int", b"\x80\x80\x80\x80\x10"),
        ("long", b"\xff" * 9 + b"\2"),
        ("string", b"\2\xff"),
        ("string", b"\1a"),
        ("int", b"\2\2"),
        (["null", "int"], b"\1\2"),
        (["null", "int"], b"\4\2"),
        (ENUM, b"\1"),
        (logical("decimal", "bytes", precision=2, scale=2), b"\2\x64"),
    ],
)
def test_bytes_that_are_no_value_are_refused(kind, data):
    with pytest.raises(msgspec.DecodeError):
        decoded(kind, data)


def test_no_bytes_that_were_changed_or_cut_off_raise_another_error():
    fields = record(*((f"f{at}", kind) for at, (kind, *_) in enumerate(VALUES) if kind not in (FIXED, ENUM)))
    data = b"".join(data for kind, data, *_ in VALUES if kind not in (FIXED, ENUM))
    decode, chance = decoder_of(json.dumps(fields)), random.Random(1)
    assert decode(data)
    for end in range(len(data)):
        with pytest.raises(msgspec.DecodeError):
            decode(data[:end])
    for _ in range(2000):
        other = bytearray(data)
        other[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode(bytes(other))
        except msgspec.DecodeError:
            continue


def test_a_value_with_the_id_of_a_schema_in_a_registry_is_refused_with_that_reason():
    with pytest.raises(msgspec.DecodeError, match="registry"):
        decoded("long", b"\0\0\0\0\7\2")


@pytest.mark.parametrize(
    "kind",
    [
        "null",
        ["int", "string"],
        ["null", "int", "string"],
        logical("time-millis", "int"),
        logical("timestamp-nanos", "long"),
        logical("duration", "fixed", name="d", size=12),
        logical("decimal", "bytes", precision=39),
        {"type": "array", "items": "r"},
        {"type": "record", "name": "empty", "fields": []},
        "unknown",
    ],
)
def test_a_type_that_spark_has_not_is_refused_where_it_is_declared(kind):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.avro_type_refused")):
        avro(json.dumps(record(("v", kind))))


@pytest.mark.parametrize("schema", ["{", '"int', "7", '{"type": "record"}'])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.avro_malformed")):
        avro(schema)
