"""The types of key columns. Invariant: the keyed inputs of a stage have the same canonical key types.

Spark's `hash(1)` differs between int and bigint, so a co-partitioned join of the two would silently lose matches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from weir.errors import Misconfigured

_INTEGERS = frozenset({"tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"})
_KEPT = frozenset({"boolean", "date", "timestamp", "timestamp_ntz", "binary", "string"})
_ADVICE = {
    "float": "equal numbers may differ in their last bits: cast it to bigint or string",
    "double": "equal numbers may differ in their last bits: cast it to bigint or string",
    "decimal": "its hash depends on precision and scale: cast it to string, or to bigint after scaling",
    "array": "take out of it the elements that identify the row, or cast it to string with to_json",
    "map": "its entries have no order: take out of it what identifies the row",
    "struct": "name its fields as keys of their own: select them as columns",
    "char": "it is padded with blanks: cast it to string",
    "varchar": "cast it to string",
    "void": "a column of nulls only divides nothing: cast it to the type that it should have",
}


def canonical_type(spark_type: str) -> str:
    """Return the type that a key column of this type (Spark's `simpleString`) is cast to before it is hashed.

    All integers become bigint. Raises Misconfigured, with advice, for types that cannot be keys.
    """
    spelled = spark_type.strip().lower()
    if spelled in _INTEGERS:
        return "bigint"
    if spelled in _KEPT:
        return spelled
    root = re.split(r"[(<\s]", spelled, maxsplit=1)[0]
    advice = _ADVICE.get(root, "cast it to string or bigint")
    if root == "string":
        advice = "texts that its collation holds equal have different hashes: cast it to plain string"
    raise Misconfigured.of("dataflow.key_type_refused", spark_type=spark_type, advice=advice)


_INSTANTS = frozenset({"timestamp", "timestamp_ntz"})
"""Types with equal hashes: in a session of Weir, which is in UTC, a time without a zone is the instant in UTC."""


def require_key_of(found: str, declared: str, key: str) -> None:
    """Check that values of the type `found` can be cast to that of a state's key, so that equal ones meet.

    Raises Misconfigured.
    """
    try:
        kinds = {canonical_type(each) for each in (found, declared)}
    except Misconfigured as error:
        raise Misconfigured.of(
            "dataflow.key_type_differs", key=key, declared=declared, found=found, error=error
        ) from error
    if len(kinds) > 1 and not kinds <= _INSTANTS:
        raise Misconfigured.of("dataflow.key_cast_missing", key=key, declared=declared, found=found)


_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def key_types(spark_schema: str, keys: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the canonical types of the columns `keys` of a schema in Spark's JSON.

    Raises Misconfigured if a column is missing or its type cannot be a key; `where` names the schema in the message.
    """
    columns = {field["name"].lower(): field["type"] for field in json.loads(spark_schema)["fields"]}
    missing = [key for key in keys if key.lower() not in columns]
    if missing:
        raise Misconfigured.of("dataflow.column_missing", where=where, missing=missing, columns=columns)
    return tuple(canonical_type(_sql_name(columns[key.lower()])) for key in keys)


def require_equal_key_types(stage: str, found: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    """Check the keyed inputs of a stage, given as argument to (columns, canonical types). Raises Misconfigured."""
    if len({types for _, types in found.values()}) <= 1:
        return
    inputs = "; ".join(
        f"{argument} by {', '.join(f'{key} ({type_})' for key, type_ in zip(keys, types, strict=True))}"
        for argument, (keys, types) in found.items()
    )
    raise Misconfigured.of("dataflow.key_types_differ", stage=stage, inputs=inputs)


def _sql_name(type_: Any) -> str:
    name = type_ if isinstance(type_, str) else str(type_.get("type"))
    return _SQL_NAMES.get(name, name)
