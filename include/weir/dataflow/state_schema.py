"""The columns of a state or another schema, parsed from Spark's DDL or Spark's JSON, without Spark.

Invariant: two spellings give equal values exactly if they mean the same type (LONG and BIGINT, `STRUCT<a: INT>` and
`struct<a:int>`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.dataflow.ranges import MOST_DIGITS
from weir.errors import Message, Misconfigured
from weir.wording import did_you_mean

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[A-Za-z0-9_]+|[<>(),:])")
_SAME = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "timestamp_ltz": "timestamp",
    "timestamp with local time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_TYPES = frozenset(
    {
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string", "char", "varchar"),
        *("binary", "void", "variant", "date", "time", "timestamp", "timestamp_ntz", "interval"),
        *("geography", "geometry", "struct", "array", "map"),
    }
)
_MEANT = {
    **dict.fromkeys(("datetime", "datetime2", "smalldatetime", "timestamptz", "timestampz"), "timestamp"),
    **dict.fromkeys(("text", "str", "varchar2", "nvarchar", "uuid", "json", "object", "enum"), "string"),
    **dict.fromkeys(("int64", "uint32", "int8", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "int4", "uint16", "serial"), "int"),
    **dict.fromkeys(("float64", "float8"), "double"),
    **dict.fromkeys(("float32", "float4"), "float"),
    **dict.fromkeys(("number", "money"), "decimal"),
    **dict.fromkeys(("bytes", "blob", "bytea", "varbinary"), "binary"),
    **dict.fromkeys(("bool", "bit"), "boolean"),
}
"""Words of other systems, and the type of Spark that is meant: one that only looks alike would be another."""

_NOT_KEPT = {
    "char": "write STRING; what is padded with blanks is so in the rows",
    "varchar": "write STRING",
    "void": "write the type that it should have",
    "variant": "write STRING, and to_json and parse_json in the function",
    "interval": "write BIGINT, a number of months, days or seconds",
    "time": "write STRING, or BIGINT for its seconds",
    "geometry": "write BINARY, and st_asbinary in the function",
    "geography": "write BINARY, and st_asbinary in the function",
    **dict.fromkeys(
        ("struct", "array", "map"), "write the types of its parts, like STRUCT<a: BIGINT> or ARRAY<BIGINT>"
    ),
}
"""The types of rows that have no digest, so that no result and no state can hold them, and what to write instead."""

_MORE_WORDS = ("collate", "with", "without")
"""Words that continue the name of a type; an interval takes any word."""

_IN_JSON = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}

_ENDS = (",", ">", ")")
_CLAUSES = ("not", "comment", "default")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NESTED = {"array": ("element",), "map": ("key", "value")}


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: its name with its arguments ("decimal(10,2)"), and the parts of a nested type by name."""

    name: str
    parts: tuple[tuple[str, Kind], ...] = ()
    collation: str = field(default="", compare=False)
    """The collation of a string; Spark's JSON has it elsewhere, so it is not compared."""

    @property
    def root(self) -> str:
        """Its name without arguments."""
        return re.split(r"[ (]", self.name, maxsplit=1)[0]

    def all(self) -> Iterator[Kind]:
        """Yield it and the types in it, at any depth."""
        yield self
        for _, part in self.parts:
            yield from part.all()

    def __str__(self) -> str:
        if self.name == "struct":
            return f"struct<{','.join(f'{name}:{kind}' for name, kind in self.parts)}>"
        if self.parts:
            return f"{self.name}<{','.join(str(kind) for _, kind in self.parts)}>"
        return self.name + self.collation


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a state."""

    name: str
    kind: Kind
    is_required: bool = False
    """True if the column was declared NOT NULL."""

    def __str__(self) -> str:
        return f"{self.name} {self.kind}{' NOT NULL' if self.is_required else ''}"


Fields = Mapping[str, Field]
"""The columns of a state by name, in their order."""


def ddl_of(fields: Fields) -> str:
    """Return the columns as DDL, for a message."""
    return ", ".join(str(each) for each in fields.values())


def fields_of_ddl(schema: str) -> Fields:
    """Parse DDL like "tailnum STRING, flights BIGINT". Raises Misconfigured."""
    found = tuple(_Parser(schema).fields(last=""))
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not found or twice:
        what = f"has the column {', '.join(twice)} twice" if twice else "has no columns"
        raise Misconfigured.of("dataflow.schema_malformed", schema=schema, what=what)
    return {each.name: each for each in found}


def declared_fields(schema: str) -> Fields:
    """Parse DDL that a DAG file declares: every type is one that Spark has. Raises Misconfigured.

    What is recorded is only parsed: a later Spark may have types that this module does not know.
    """
    fields = fields_of_ddl(schema)
    for each in fields.values():
        for name in (kind.root for kind in each.kind.all() if kind.root not in _TYPES):
            known = [each.upper() for each in (*_TYPES, *_SAME)]
            others = "write it like BIGINT, DOUBLE, STRING or TIMESTAMP"
            hint = did_you_mean(_MEANT.get(name, name).upper(), known, others, form="{}")
            raise Misconfigured.of("dataflow.type_unknown", schema=schema, each=each.name, type=name.upper(), hint=hint)
    return fields


def stored_fields(schema: str, *, has_collations: bool = True) -> Fields:
    """Parse DDL of rows that are kept in the store: `declared_fields`, of types that have a digest.

    Without `has_collations` texts are kept without one. Raises Misconfigured.
    """
    fields = declared_fields(schema)
    for each in fields.values():
        for kind in (kind for kind in each.kind.all() if not kind.parts):
            advice = _NOT_KEPT.get(kind.root)
            if kind.collation and not has_collations:
                advice = "write STRING, and collate(...) where the function compares it"
            if advice is not None:
                raise Misconfigured.of(
                    "dataflow.type_not_stored", each=each.name, type=str(kind).upper(), advice=advice
                )
        for problem in (problem for kind in each.kind.all() for problem in _impossible(kind)):
            raise Misconfigured.of(
                "dataflow.type_refused", each=each.name, type=str(each.kind).upper(), problem=problem
            )
    _require_apart(fields, schema)
    return fields


def _require_apart(names: Iterable[str], what: str) -> None:
    found = dict[str, str]()
    for name in names:
        other = found.setdefault(name.lower(), name)
        if other is not name:
            raise Misconfigured.of("dataflow.names_alike", what=what, other=other, name=name)


def _impossible(kind: Kind) -> Iterator[str]:
    """Yield what Spark refuses of a type although it knows all its parts."""
    if kind.name == "struct":
        _require_apart([name for name, _ in kind.parts], str(kind))
    if kind.name == "map" and any(each.name == "map" for each in kind.parts[0][1].all()):
        yield "and Spark has no map whose keys are maps: write the keys as STRING, by to_json"
    decimal = _DECIMAL.fullmatch(kind.name)
    if decimal and not int(decimal[2]) <= int(decimal[1]) <= MOST_DIGITS:
        yield f"and a decimal has at most {MOST_DIGITS} digits, of which the scale counts some"


def fields_of_json(spark_schema: str) -> Fields:
    """Parse Spark's JSON of a schema, in which every column may be null."""
    columns = json.loads(spark_schema)["fields"]
    return {each["name"]: Field(each["name"], _kind_of_json(each["type"])) for each in columns}


def json_of_columns(spark_schema: str, names: Iterable[str]) -> str:
    """Return Spark's JSON of some columns of a schema, which has all of them, as it has them."""
    columns = {each["name"]: each for each in json.loads(spark_schema)["fields"]}
    return json.dumps({"type": "struct", "fields": [columns[name] for name in names]})


def spark_json(fields: Fields) -> str:
    """Write columns as Spark's JSON of a schema, nullable throughout."""
    return json.dumps(_struct(tuple((each.name, each.kind) for each in fields.values())))


def _struct(parts: tuple[tuple[str, Kind], ...]) -> dict[str, Any]:
    fields = [{"name": name, "type": _json_of_kind(kind), "nullable": True, "metadata": {}} for name, kind in parts]
    return {"type": "struct", "fields": fields}


def _json_of_kind(kind: Kind) -> Any:
    if kind.name == "struct":
        return _struct(kind.parts)
    parts = {name: _json_of_kind(part) for name, part in kind.parts}
    if kind.name == "array":
        return {"type": "array", "elementType": parts["element"], "containsNull": True}
    if kind.name == "map":
        return {"type": "map", "keyType": parts["key"], "valueType": parts["value"], "valueContainsNull": True}
    return _IN_JSON.get(kind.name, kind.name)


def _kind_of_json(found: Any) -> Kind:
    if not isinstance(found, dict):
        return _named(str(found))
    root = found["type"]
    if root == "struct":
        return Kind("struct", tuple((each["name"], _kind_of_json(each["type"])) for each in found["fields"]))
    if root == "array":
        return Kind("array", (("element", _kind_of_json(found["elementType"])),))
    if root == "map":
        return Kind("map", (("key", _kind_of_json(found["keyType"])), ("value", _kind_of_json(found["valueType"]))))
    return _kind_of_json(found["sqlType"]) if "sqlType" in found else _named(str(root))


def _named(text: str) -> Kind:
    if " collate " in text:
        root, _, collation = text.partition(" collate ")
        return Kind(root, collation=f" collate {collation}")
    root, bracket, rest = text.lower().partition("(")
    name = _SAME.get(root.strip(), root.strip())
    if name == "decimal" and not bracket:
        return Kind("decimal(10,0)")
    if name == "decimal" and "," not in rest:
        rest = rest.replace(")", ",0)")
    return Kind(f"{name}{bracket}{rest.replace(' ', '')}")


class _Parser:
    """A recursive-descent parser of a list of columns."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split(text))

    def _split(self, text: str) -> Iterator[str]:
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(Message("dataflow.not_readable_on", text=text[at:].strip()[:20]))
            yield found[1]
            at = found.end()

    def _wrong(self, what: str) -> Misconfigured:
        return Misconfigured.of("dataflow.schema_malformed", schema=self._text, what=what)

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, wanted: str = "") -> str:
        if not self._tokens or (wanted and self._tokens[0] != wanted):
            raise self._wrong(
                Message("dataflow.token_unexpected", found=self._next() or "its end", wanted=wanted or "something")
            )
        return self._tokens.pop(0)

    def fields(self, last: str) -> Iterator[Field]:
        """Parse the columns up to the token `last` (empty: to the end)."""
        while self._next() != last:
            yield self._field()
            if self._next() != last:
                self._take(",")
                if self._next() == last:
                    raise self._wrong(Message("dataflow.comma_at_the_end"))

    def _field(self) -> Field:
        name = self._take()
        if name in ("<", *_ENDS, ":"):
            raise self._wrong(Message("dataflow.column_name_expected", name=name))
        if self._next() == ":":
            self._take()
        kind, is_required = self._kind(), False
        while self._next().lower() in _CLAUSES:
            clause = self._take().lower()
            if clause == "not":
                is_required = self._take().lower() == "null"
            else:
                self._take()
        return Field(name[1:-1].replace("``", "`") if name.startswith("`") else name, kind, is_required)

    def _kind(self) -> Kind:
        root = self._take().lower()
        if root in _ENDS or root in (":", "<", "("):
            raise self._wrong(Message("dataflow.column_without_type"))
        if root == "struct" and self._next() == "<":
            self._take()
            parts = tuple((each.name, each.kind) for each in self.fields(last=">"))
            self._take(">")
            return Kind("struct", parts)
        if root in _NESTED and self._next() == "<":
            return self._nested(root)
        words = [root]
        while self._next() == "(" or self._continues(words):
            words.append(self._arguments() if self._next() == "(" else f" {self._take().lower()}")
        return _named("".join(words))

    def _continues(self, words: list[str]) -> bool:
        word = self._next().lower()
        if word in ("", *_ENDS, *_CLAUSES):
            return False
        is_long = words[0] == "interval" or any(each.strip() in _MORE_WORDS for each in words)
        return is_long or word in _MORE_WORDS

    def _nested(self, root: str) -> Kind:
        self._take("<")
        parts = []
        for place, name in enumerate(_NESTED[root]):
            if place:
                self._take(",")
            parts.append((name, self._kind()))
        self._take(">")
        return Kind(root, tuple(parts))

    def _arguments(self) -> str:
        taken = ""
        while not taken.endswith(")"):
            taken += self._take()
        return taken
