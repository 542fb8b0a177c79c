"""The digest of a result: it depends on the rows, not on their order, files and partitions.

Invariant: rows that differ in any value, null, length or nesting are hashed from different sequences, and equal rows
(-0.0 and 0.0, all NaNs, maps in any order) from the same one. Vectors: tests/golden/digest.json.

Spark's `xxhash64` skips nulls, at every depth, and refuses maps. So the values of a row or struct are hashed after a
number whose bits mark those that are null, arrays after their size, and maps as their entries sorted by key.

A stage's rule names top-level columns that are left out of the hash, and others that are rounded before it, half up.
The schema's fingerprint is of all columns, and the rule's own fingerprint is part of the digest.

Rows are measured while they are computed for something else: no job and no request of its own. pyspark's Observation
asks a server, for a remote DataFrame, whether the rows are a stream: that plans them once more. So remote rows are
observed by name, and the answer of the request that computes them has the measures.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
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
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.errors import Internal, Misconfigured
from weir.formats.manifest import OF_RESULT, OF_STORED_ROWS, ContentDigest
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.session import is_remote

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

VERSIONS = (OF_STORED_ROWS, OF_RESULT)
"""The versions of the definition, which differ where rows have a key group: only the first hashes it.

A further one needs a new number, and vectors of its own in tests/golden/digest.json."""

_ROWS = "_weir_rows"
"""The rows' name in the hash's SQL. Without one, `a.b` might be a column of a DataFrame that its stage has named a."""

_MEASURES = ("rows", "xor", "low_sum", "high_sum")
_BITS = 63
_LOW_HALF = 0xFFFFFFFF
_MASK = 2**64 - 1


def observe(df: DataFrame, rule: DigestRule = PLAIN_RULE, version: int = OF_STORED_ROWS) -> Observed:
    """Return the rows of `df`, whose measures are known once they are written, for `to_digest`.

    Raises Misconfigured for a column whose type has no canonical value, or that the rule names and cannot mean.
    """
    return observed(df.alias(_ROWS), _measures(df.schema, rule, version))


def digest_of(df: DataFrame, rule: DigestRule = PLAIN_RULE, version: int = OF_STORED_ROWS) -> ContentDigest:
    """Compute the digest of a DataFrame by a query of its own: for tests, and for data that is there already."""
    row = df.alias(_ROWS).agg(*_measures(df.schema, rule, version)).collect()[0]
    return to_digest(df.schema, row.asDict(), rule, version)


def hashed(df: DataFrame, counted: StructType, name: str) -> DataFrame:
    """Return the rows of `df` with a column `name`, the hash of the columns `counted`; `sums` aggregates hashes."""
    return df.alias(_ROWS).select("*", F.expr(row_hash(counted)).alias(name))


def sums(hashes: Column) -> tuple[Column, Column, Column, Column]:
    """Return the aggregates of hashes: rows, xor, sums of low and high halves; nulls are no rows.

    The sums overflow, which is an error, beyond 2**31 rows a partition.
    """
    return (
        F.count(hashes).alias("rows"),
        F.bit_xor(hashes).alias("xor"),
        F.sum(hashes.bitwiseAND(F.lit(_LOW_HALF))).alias("low_sum"),
        F.sum(F.shiftrightunsigned(hashes, 32)).alias("high_sum"),
    )


def measures(values: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return the values that Spark has computed for `sums`, as numbers."""
    rows, xor, low_sum, high_sum = (int(value or 0) for value in values)
    return rows, xor & _MASK, low_sum, high_sum


def to_digest(
    schema: StructType, measured: Mapping[str, Any], rule: DigestRule = PLAIN_RULE, version: int = OF_STORED_ROWS
) -> ContentDigest:
    """Make a digest of the measures; a key-group column never counts for the schema."""
    if not measured.keys() >= {*_MEASURES}:
        raise Internal.of("results.digest_not_observed", values=dict(measured))
    values = dict(zip(_MEASURES, measures([measured[name] for name in _MEASURES]), strict=True))
    return ContentDigest(schema=schema_fingerprint(schema), **values, version=version, rule=rule.fingerprint)


def row_hash(schema: StructType, rule: DigestRule = PLAIN_RULE, version: int = OF_STORED_ROWS) -> str:
    """Return the 64-bit hash of a row of `schema` as SQL, over null flags and canonical values, in the columns' order.

    As text, since Spark Connect refuses a tree of calls as deep as nested types make it.
    """
    _check_rule(schema, rule)
    ignored = {*rule.ignore, *([KEY_GROUP_COLUMN] if version == OF_RESULT else [])}
    fields = [field for field in schema.fields if field.name not in ignored]
    values = [f"{_ROWS}.{quoted(field.name)}" for field in fields]
    counted = [_counted(value, field, rule) for value, field in zip(values, fields, strict=True)]
    # Where all columns are left out, the number of rows still counts.
    return f"xxhash64({', '.join([*_bits(values), *counted]) or '0L'})"


def schema_fingerprint(schema: StructType) -> str:
    """16 hexadecimal digits over names (as they are spelled) and types, in order; without nullability and metadata."""
    fields = [[field.name, type_signature(field.dataType)] for field in schema.fields if field.name != KEY_GROUP_COLUMN]
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()[:16]


def is_same(one: str, other: str, data_type: DataType) -> Column:
    """Return the condition that two values, as SQL, are the same for a digest; two nulls are.

    A digest has a bit for each null beside the canonical value, which is the same of a null and of a struct of nulls.
    """
    sides = [", ".join(_flagged([each], [(data_type, each)])) for each in (one, other)]
    return F.expr(" <=> ".join(f"struct({each})" for each in sides))


def comparable(value: str, field: StructField, rule: DigestRule = PLAIN_RULE) -> str:
    """Return a value of a column, as SQL, in a form that is equal, grouped and ordered as the digest counts it.

    Raises Misconfigured for a type that has no canonical value.
    """
    counted = _counted(value, field, rule)
    return _tuple(*_bits([value]), counted) if isinstance(field.dataType, StructType) else counted


def quoted(name: str) -> str:
    """Spell a column's name so that Spark takes dots and backticks in it as they are."""
    return "`" + name.replace("`", "``") + "`"


def type_signature(data_type: DataType) -> Any:
    """Return a type as JSON values, without nullability and metadata at any depth."""
    if isinstance(data_type, StructType):
        return ["struct", [[field.name, type_signature(field.dataType)] for field in data_type.fields]]
    if isinstance(data_type, ArrayType):
        return ["array", type_signature(data_type.elementType)]
    if isinstance(data_type, MapType):
        return ["map", type_signature(data_type.keyType), type_signature(data_type.valueType)]
    return data_type.simpleString()


def _check_rule(schema: StructType, rule: DigestRule) -> None:
    types = {field.name: field.dataType for field in schema.fields if field.name != KEY_GROUP_COLUMN}
    there = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
    for column in (*rule.round, *rule.ignore):
        if column not in types:
            does = "rounds" if column in rule.round else "ignores"
            raise Misconfigured.of("results.digest_column_missing", does=does, column=column, there=there)
    for column in rule.round:
        if not isinstance(types[column], NumericType):
            raise Misconfigured.of(
                "results.digest_column_not_numeric",
                column=column,
                type=types[column].simpleString(),
                there=there,
            )


def _counted(value: str, field: StructField, rule: DigestRule) -> str:
    """Return the part of a column's value that is hashed; whole numbers have no places to round.

    Rounding a double takes a decimal, so that it is called once, and never gives a negative zero.
    """
    places, kind = rule.round.get(field.name), field.dataType
    if places is not None and isinstance(kind, (FloatType, DoubleType)):
        return f"if(isnan({value}), {kind.simpleString()}('NaN'), round({value}, {places}))"
    if places is not None and isinstance(kind, DecimalType):
        return f"round({value}, {places})"
    return _canonical(value, kind, f"column {field.name}", 0)


def _measures(schema: StructType, rule: DigestRule, version: int) -> tuple[Column, ...]:
    return sums(F.expr(row_hash(schema, rule, version)))


def _flagged(values: Sequence[str], types: Sequence[tuple[DataType, str]], depth: int = 0) -> list[str]:
    """The numbers of null bits, one for 63 values, and then the values in their canonical forms."""
    return [*_bits(values), *(_canonical(value, *kind, depth) for value, kind in zip(values, types, strict=True))]


def _bits(values: Sequence[str]) -> list[str]:
    return [_null_bits(values[first : first + _BITS]) for first in range(0, len(values), _BITS)]


def _null_bits(values: Sequence[str]) -> str:
    return " | ".join(f"if({value} is null, {1 << place}L, 0L)" for place, value in enumerate(values))


def _canonical(value: str, data_type: DataType, where: str, depth: int) -> str:
    """An expression that is null where `value` is, and whose hash stands for the value everywhere else.

    `depth` counts the lambdas around it, whose variables must differ.
    """
    if isinstance(data_type, StructType):
        return _canonical_struct(value, data_type, where, depth)
    if isinstance(data_type, ArrayType):
        return _canonical_array(value, data_type, where, depth)
    if isinstance(data_type, MapType):
        return _canonical_map(value, data_type, where, depth)
    if isinstance(data_type, (FloatType, DoubleType)):
        kind = data_type.simpleString()
        return f"if(isnan({value}), {kind}('NaN'), if({value} = {kind}(0), {kind}(0), {value}))"
    if isinstance(data_type, StringType) and data_type.collation != "UTF8_BINARY":
        return f"collate({value}, 'UTF8_BINARY')"
    if type(data_type) in _PLAIN:
        return value
    raise Misconfigured.of("results.type_without_digest", where=where, type=data_type.simpleString())


def _canonical_struct(value: str, data_type: StructType, where: str, depth: int) -> str:
    values = [f"{value}.{quoted(field.name)}" for field in data_type.fields]
    return _tuple(*_flagged(values, [(field.dataType, f"{where}.{field.name}") for field in data_type.fields], depth))


def _canonical_array(value: str, data_type: ArrayType, where: str, depth: int) -> str:
    each = f"_each{depth}"
    element = _tuple(*_flagged([each], [(data_type.elementType, f"{where}[]")], depth + 1))
    return _tuple(f"array_size({value})", f"transform({value}, {each} -> {element})")


def _canonical_map(value: str, data_type: MapType, where: str, depth: int) -> str:
    each, entries = f"_each{depth}", f"map_entries({value})"
    key = _canonical(f"{each}.key", data_type.keyType, f"{where} (keys)", depth + 1)
    kept = _flagged([f"{each}.value"], [(data_type.valueType, f"{where} (values)")], depth + 1)
    # Keys are unique and never null, so that the order of the entries is that of their keys.
    return _tuple(f"array_size({entries})", f"sort_array(transform({entries}, {each} -> {_tuple(key, *kept)}))")


def _tuple(*parts: str) -> str:
    return "named_struct(" + ", ".join(f"'_{number}', {part}" for number, part in enumerate(parts)) + ")"


@dataclass(frozen=True, slots=True)
class Observed:
    """Rows, and what is measured once that these, or rows that are made of them, are computed."""

    rows: DataFrame
    _name: str
    _observation: Observation | None

    def measures(self, computed: DataFrame) -> Mapping[str, Any]:
        """Return the measures, from the DataFrame that was written or computed. Raises Internal if there are none."""
        if self._observation is not None:
            return dict(self._observation.get)
        info = computed.executionInfo
        found: dict[str, dict[str, Any]] = dict(info.flows) if info is not None else {}
        if self._name not in found:
            raise Internal.of("results.not_observed", name=self._name, found=sorted(found))
        return found[self._name]


def observed(rows: DataFrame, measures: Sequence[Column]) -> Observed:
    """Return the rows, to be measured when they are computed."""
    name = f"weir-{uuid.uuid4()}"
    if is_remote(rows.sparkSession):
        return Observed(rows.observe(name, *measures), name, None)
    observation = Observation(name)
    return Observed(rows.observe(observation, *measures), name, observation)


def computed_once(rows: DataFrame) -> tuple[int, DataFrame]:
    """Compute rows, keep them in Spark's blocks, and count them."""
    seen = observed(rows, [F.count(F.lit(1)).alias("rows")])
    kept = seen.rows.localCheckpoint(eager=True)
    return int(seen.measures(seen.rows)["rows"]), kept
