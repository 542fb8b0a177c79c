"""Converts the recorded columns of a manifest to Arrow schemas and Spark DDL.

Invariant: a reader gets the recorded columns, whatever the files have.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from weir.errors import Misconfigured

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_schema(spark_schema: str) -> pa.Schema:
    """Translate Spark's JSON of a schema, nullable throughout. Raises Misconfigured for a type that Arrow lacks."""
    return pa.schema([pa.field(each["name"], arrow_type(each["type"])) for each in _fields(spark_schema)])


def spark_ddl(spark_schema: str) -> str:
    """Translate Spark's JSON of a schema into the DDL that a reader takes, nullable throughout."""
    return ", ".join(f"{_quoted(each['name'])} {_ddl(each['type'])}" for each in _fields(spark_schema))


def column_types(spark_schema: str) -> dict[str, str]:
    """Return the types of the columns of Spark's JSON of a schema, in DDL, by name: without nullability."""
    return {each["name"]: _ddl(each["type"]) for each in _fields(spark_schema)}


def _fields(spark_schema: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(spark_schema)["fields"]
    return found


def arrow_type(kind: Any) -> pa.DataType:
    """Translate a type of Spark's JSON. Raises Misconfigured for one that Arrow lacks."""
    if isinstance(kind, dict):
        return _nested_arrow(kind)
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    found = _ARROW.get("string" if kind.startswith(("char(", "varchar(", "string ")) else kind)
    if found is None:
        raise Misconfigured.of("state.type_unfit_for_arrow", kind=kind)
    return found


def _nested_arrow(kind: dict[str, Any]) -> pa.DataType:
    if kind["type"] == "struct":
        return pa.struct([pa.field(each["name"], arrow_type(each["type"])) for each in kind["fields"]])
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"])))
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    raise Misconfigured.of("state.type_unfit_for_arrow", kind=kind["type"])


def _ddl(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "struct":
        inner = ", ".join(f"{_quoted(each['name'])}: {_ddl(each['type'])}" for each in kind["fields"])
        return f"struct<{inner}>"
    if kind["type"] == "array":
        return f"array<{_ddl(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_ddl(kind['keyType'])}, {_ddl(kind['valueType'])}>"
    return _ddl(kind.get("sqlType", kind["type"]))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
