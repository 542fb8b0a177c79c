"""How the values of a topic's records are read: as JSON by Spark DDL, or as Avro by the schema that wrote them.

Invariant: a type of Avro has a type of Spark with the same values, or the declaration is refused.

Source: Avro 1.12's specification, and Spark's "Data Source for Avro" for what becomes which type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from json import JSONDecodeError, loads
from typing import Any, Final, NoReturn

from weir.dataflow.arguments import require
from weir.dataflow.ranges import MOST_DIGITS
from weir.errors import Misconfigured

__all__ = ["AvroType", "RecordValue", "avro", "avro_type", "json"]

NULL: Final = "null"
UNION: Final = "union"

_PLAIN: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
_LOGICAL: Final = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
    ("string", "uuid"): "STRING",
}


@dataclass(frozen=True, slots=True)
class RecordValue:
    """How the values of records are read: as JSON objects with these columns, or as Avro by a schema."""

    schema: str
    avro: str = ""


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type of Avro whose references are resolved.

    `name` is that of Avro, or of its logical type. Parts are a record's fields, a union's branches by their types, and
    what an array or a map has.
    """

    name: str
    ddl: str
    parts: tuple[tuple[str, AvroType], ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    """The bytes of a fixed type; 0 for one that says its own length."""
    digits: int = 0
    scale: int = 0


def json(schema: str) -> RecordValue:
    """Read the values of records as JSON objects; `schema` is Spark DDL, such as "id BIGINT, at TIMESTAMP"."""
    require("json", "schema", schema, str, 'Spark DDL such as json("id BIGINT, at TIMESTAMP")')
    return RecordValue(schema)


def avro(schema: str) -> RecordValue:
    """Read the values of records as data in Avro; `schema` is the JSON of the record type that they were written by.

    Values that begin with the id of a schema in a registry are not read.
    """
    require("avro", "schema", schema, str, "the text of an .avsc file")
    fields = ", ".join(f"`{name}` {part.ddl}" for name, part in avro_type(schema).parts)
    return RecordValue(fields, avro=schema)


def avro_type(schema: str) -> AvroType:
    """Parse the JSON of a schema whose type is a record. Raises Misconfigured."""
    try:
        found = _Schema().type(loads(schema), "its value", "")
    except (JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Misconfigured.of("dataflow.avro_malformed", problem=f"{type(error).__name__}: {error}") from error
    if found.name != "record":
        raise Misconfigured.of("dataflow.avro_type_refused", where="its value", type=found.name)
    return found


class _Schema:
    """The named types of a schema, while it is parsed."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}
        """None for one that is being parsed: a type that contains itself."""

    def type(self, given: Any, where: str, namespace: str) -> AvroType:
        if isinstance(given, list):
            return self._union(given, where, namespace)
        if isinstance(given, str):
            return AvroType(given, _PLAIN[given]) if given in _PLAIN else self._reference(given, where, namespace)
        kind = given["type"]
        if "logicalType" in given:
            return self._logical(given, where, namespace)
        if kind == "array":
            element = self.type(given["items"], f"{where}[]", namespace)
            return AvroType(kind, f"ARRAY<{element.ddl}>", (("element", element),))
        if kind == "map":
            value = self.type(given["values"], f"{where}[]", namespace)
            return AvroType(kind, f"MAP<STRING, {value.ddl}>", (("value", value),))
        is_named = kind in ("record", "enum", "fixed")
        return self._defined(given, where, namespace) if is_named else self.type(kind, where, namespace)

    def _logical(self, given: Mapping[str, Any], where: str, namespace: str) -> AvroType:
        kind, logical = given["type"], given["logicalType"]
        if logical != "decimal" or kind not in ("bytes", "fixed"):
            return AvroType(str(logical), _LOGICAL.get((kind, logical)) or _refused(where, f"{kind} as {logical}"))
        return _decimal(given, where) if kind == "bytes" else self._defined(given, where, namespace)

    def _defined(self, given: Mapping[str, Any], where: str, namespace: str) -> AvroType:
        """Parse a type that has a name, which others may refer to."""
        full = _full_name(given, namespace)
        if full in self._named:
            _refused(where, f"a second type {full}")
        self._named[full] = None
        if given["type"] == "record":
            made = self._record(given["fields"], where, full.rpartition(".")[0])
        elif given["type"] == "enum":
            made = AvroType("enum", "STRING", symbols=tuple(map(str, given["symbols"])))
        else:
            made = _decimal(given, where) if "logicalType" in given else AvroType("fixed", "BINARY", size=_size(given))
        self._named[full] = made
        return made

    def _union(self, branches: list[Any], where: str, namespace: str) -> AvroType:
        parts = [
            (str(each), AvroType(NULL, "") if each == NULL else self.type(each, where, namespace)) for each in branches
        ]
        values = [part for _, part in parts if part.name != NULL]
        if len(values) != 1 or len(parts) > 2:
            _refused(where, f"a union of {', '.join(name for name, _ in parts)}")
        return AvroType(UNION, values[0].ddl, tuple(parts))

    def _record(self, fields: list[Any], where: str, namespace: str) -> AvroType:
        parts = tuple((each["name"], self.type(each["type"], f"{where}.{each['name']}", namespace)) for each in fields)
        if not parts:
            _refused(where, "a record without fields")
        return AvroType("record", f"STRUCT<{', '.join(f'`{name}`: {part.ddl}' for name, part in parts)}>", parts)

    def _reference(self, name: str, where: str, namespace: str) -> AvroType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            _refused(where, f"{name}, which contains itself" if full in self._named else name)
        return found


def _full_name(given: Mapping[str, Any], namespace: str) -> str:
    name, space = str(given["name"]), given.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _size(given: Mapping[str, Any]) -> int:
    size = int(given["size"])
    if size < 1:
        raise ValueError(f"{given['name']} has the size {size}")
    return size


def _decimal(given: Mapping[str, Any], where: str) -> AvroType:
    digits, scale = int(given["precision"]), int(given.get("scale", 0))
    if not 0 <= scale <= digits <= MOST_DIGITS or digits == 0:
        _refused(where, f"a decimal of {digits} digits, {scale} of them after the point")
    size = _size(given) if given["type"] == "fixed" else 0
    return AvroType("decimal", f"DECIMAL({digits},{scale})", size=size, digits=digits, scale=scale)


def _refused(where: str, kind: str) -> NoReturn:
    raise Misconfigured.of("dataflow.avro_type_refused", where=where, type=kind)
