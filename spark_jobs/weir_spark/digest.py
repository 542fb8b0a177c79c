"""The digest of a result: what the rows are, whatever their order, files and partitions.

Invariant: rows that differ in any value, null, length or nesting are hashed from different sequences, and equal rows
(-0.0 and 0.0, all NaNs, maps in any order) from the same one. Vectors: tests/golden/digest.json.

Spark's `xxhash64` skips nulls, at every depth, and refuses maps. So the values of a row or struct are hashed behind a
number whose bits say which of them are null, arrays behind their size, and maps as their entries sorted by key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from weir.errors import Internal, Misconfigured
from weir.results.layout import KEY_GROUP_COLUMN
from weir.results.manifest import ContentDigest

_PLAIN = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
_BITS = 63
_LOW_HALF = 0xFFFFFFFF
_MASK = 2**64 - 1


def measures(schema: StructType) -> tuple[Column, ...]:
    """The aggregates that make the digest of rows of `schema`: rows, xor, low_sum, high_sum.

    The sums are longs of 32-bit halves and overflow (an error, not a wrong digest) beyond 2**31 rows a partition.
    Raises Misconfigured for a column whose type has no canonical value, and names it.
    """
    hashed = row_hash(schema)
    return (
        F.count(F.lit(1)).alias("rows"),
        F.bit_xor(hashed).alias("xor"),
        F.sum(hashed.bitwiseAND(F.lit(_LOW_HALF))).alias("low_sum"),
        F.sum(F.shiftrightunsigned(hashed, 32)).alias("high_sum"),
    )


def row_hash(schema: StructType) -> Column:
    """The 64-bit hash of a row of `schema`, over null flags and canonical values, in the columns' order."""
    values = [F.col(quoted(field.name)) for field in schema.fields]
    types = [(field.dataType, f"column {field.name}") for field in schema.fields]
    return F.xxhash64(*_flagged(values, types))


def to_digest(schema: StructType, measured: Mapping[str, Any]) -> ContentDigest:
    """Make a digest of what `measures` gave; a key-group column counts for the hash, not for the schema."""
    if not measured.keys() >= {"rows", "xor", "low_sum", "high_sum"}:
        raise Internal(f"Spark has not observed the digest of a result: found {dict(measured)}")
    return ContentDigest(
        schema=schema_fingerprint(schema),
        rows=int(measured["rows"]),
        xor=int(measured["xor"] or 0) & _MASK,
        low_sum=int(measured["low_sum"] or 0),
        high_sum=int(measured["high_sum"] or 0),
    )


def digest_of(df: DataFrame) -> ContentDigest:
    """Compute the digest of a DataFrame by a query of its own: for tests, and for data that is there already."""
    schema = df.schema
    row = df.agg(*measures(schema)).collect()[0]
    return to_digest(schema, row.asDict())


def schema_fingerprint(schema: StructType) -> str:
    """16 hexadecimal digits over names (as they are spelled) and types, in order; without nullability and metadata."""
    fields = [[field.name, _signature(field.dataType)] for field in schema.fields if field.name != KEY_GROUP_COLUMN]
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()[:16]


def quoted(name: str) -> str:
    """Spell a column's name so that Spark takes dots and backticks in it as they are."""
    return "`" + name.replace("`", "``") + "`"


def _signature(data_type: DataType) -> Any:
    if isinstance(data_type, StructType):
        return ["struct", [[field.name, _signature(field.dataType)] for field in data_type.fields]]
    if isinstance(data_type, ArrayType):
        return ["array", _signature(data_type.elementType)]
    if isinstance(data_type, MapType):
        return ["map", _signature(data_type.keyType), _signature(data_type.valueType)]
    return data_type.simpleString()


def _flagged(values: Sequence[Column], types: Sequence[tuple[DataType, str]]) -> list[Column]:
    """The numbers of null bits, one for 63 values, and then the values in their canonical forms."""
    bits = [_null_bits(values[first : first + _BITS]) for first in range(0, len(values), _BITS)]
    return bits + [_canonical(value, *kind) for value, kind in zip(values, types, strict=True)]


def _null_bits(values: Sequence[Column]) -> Column:
    zero = F.lit(0).cast("bigint")
    bits = [
        F.when(value.isNull(), F.lit(1 << place).cast("bigint")).otherwise(zero) for place, value in enumerate(values)
    ]
    return _or(bits)


def _or(bits: Sequence[Column]) -> Column:
    """All bits in one number, by halves: a plan as deep as a row is wide is refused by Spark Connect."""
    if len(bits) == 1:
        return bits[0]
    half = len(bits) // 2
    return _or(bits[:half]).bitwiseOR(_or(bits[half:]))


def _canonical(value: Column, data_type: DataType, where: str) -> Column:
    """An expression that is null where `value` is, and whose hash stands for the value everywhere else."""
    if isinstance(data_type, StructType):
        return _canonical_struct(value, data_type, where)
    if isinstance(data_type, ArrayType):
        return _canonical_array(value, data_type, where)
    if isinstance(data_type, MapType):
        return _canonical_map(value, data_type, where)
    if isinstance(data_type, (FloatType, DoubleType)):
        return _canonical_number(value, data_type)
    if isinstance(data_type, StringType) and data_type.collation != "UTF8_BINARY":
        return F.collate(value, "UTF8_BINARY")
    if type(data_type) in _PLAIN:
        return value
    raise Misconfigured(
        f"{where} is of type {data_type.simpleString()}, which has no canonical value to digest: cast it in the stage, "
        "intervals to numbers of days or seconds, variants to strings (to_json)"
    )


def _canonical_number(value: Column, data_type: DataType) -> Column:
    zero, nan = F.lit(0.0).cast(data_type), F.lit(float("nan")).cast(data_type)
    return F.when(F.isnan(value), nan).when(value == zero, zero).otherwise(value)


def _canonical_struct(value: Column, data_type: StructType, where: str) -> Column:
    values = [value.getField(field.name) for field in data_type.fields]
    return _tuple(*_flagged(values, [(field.dataType, f"{where}.{field.name}") for field in data_type.fields]))


def _canonical_array(value: Column, data_type: ArrayType, where: str) -> Column:
    def element(each: Column) -> Column:
        return _tuple(*_flagged([each], [(data_type.elementType, f"{where}[]")]))

    return _tuple(F.array_size(value), F.transform(value, element))


def _canonical_map(value: Column, data_type: MapType, where: str) -> Column:
    def entry(each: Column) -> Column:
        key = _canonical(each.getField("key"), data_type.keyType, f"{where} (keys)")
        return _tuple(key, *_flagged([each.getField("value")], [(data_type.valueType, f"{where} (values)")]))

    # Keys are unique and never null, so that the order of the entries is that of their keys.
    entries = F.map_entries(value)
    return _tuple(F.array_size(entries), F.sort_array(F.transform(entries, entry)))


def _tuple(*parts: Column) -> Column:
    return F.struct(*[part.alias(f"_{number}") for number, part in enumerate(parts)])
