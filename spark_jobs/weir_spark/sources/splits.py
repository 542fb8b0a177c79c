"""Divides files among the subtasks of a source. Invariant: each goes to one subtask, and equal ones to the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from weir.errors import Misconfigured
from weir_spark.files.paths import is_hidden, is_lost_on_hadoop, spark_path

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A Parquet file of a table's version; `values` are those of columns that are read from the table's metadata.

    A value is a text that Spark casts to the column's type, or None.
    """

    path: str
    bytes: int
    values: tuple[tuple[str, str | None], ...] = ()


def shares(sized: Iterable[tuple[T, int]], parallelism: int) -> list[list[T]]:
    """Divide items, each with a size, into `parallelism` runs of neighbours with about equal sizes.

    Neighbours stay together, since they are often of one partition of a table. A run may be empty.
    """
    items = list(sized)
    total = sum(size for _, size in items)
    found: list[list[T]] = [[] for _ in range(parallelism)]
    before = 0
    for item, size in items:
        # An item goes where its middle lies.
        middle = 2 * before + size
        found[min(middle * parallelism // (2 * total), parallelism - 1) if total else 0].append(item)
        before += size
    return found


def table_splits(
    files: Sequence[LiveFile], parallelism: int, schema: Mapping[str, Any], what: str, **more: Any
) -> list[dict[str, Any]]:
    """Return the split of each subtask, as `read_groups` reads it. Raises Misconfigured for names that Spark ignores.

    `what` names the version for people, `more` for programs.
    """
    hidden = next((each.path for each in files if is_hidden(each.path)), None)
    if hidden is not None:
        raise Misconfigured.of("sources.table_file_hidden", what=what, hidden=hidden)
    lost = next((each.path for each in files if is_lost_on_hadoop(each.path)), None)
    if lost is not None:
        raise Misconfigured.of("sources.table_path_unfit", what=what, lost=lost)
    ordered = sorted(files, key=lambda each: (_sortable(each), each.path))
    return [
        {
            **more,
            "reads": f"{what}: {len(files)} file(s), {sum(each.bytes for each in files)} bytes",
            "schema": schema,
            "groups": [
                {"values": dict(values), "files": [spark_path(each.path) for each in group]}
                for values, group in groupby(share, key=lambda each: each.values)
            ],
        }
        for share in shares([(each, each.bytes) for each in ordered], parallelism)
    ]


def divided_anew(splits: Sequence[Mapping[str, Any]], parallelism: int) -> list[dict[str, Any]]:
    """Return the same files of a table in as many splits as there are subtasks now."""
    files = [(group["values"], file) for split in splits for group in split["groups"] for file in group["files"]]
    return [
        {
            **splits[0],
            "groups": [
                {"values": values, "files": [file for _, file in group]}
                for values, group in groupby(share, key=lambda each: each[0])
            ],
        }
        for share in shares([(each, 1) for each in files], parallelism)
    ]


def nullable_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return Spark's JSON of a schema without what only its table knows: all is nullable, and has no metadata.

    So that a subtask without files has the columns of those with some.
    """
    return {"type": "struct", "fields": [_nullable_field(each) for each in schema["fields"]]}


def _nullable_field(field: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": field["name"], "type": _nullable(field["type"]), "nullable": True, "metadata": {}}


def _nullable(kind: Any) -> Any:
    if not isinstance(kind, Mapping):
        return kind
    if kind["type"] == "struct":
        return nullable_schema(kind)
    if kind["type"] == "array":
        return {"type": "array", "elementType": _nullable(kind["elementType"]), "containsNull": True}
    return {
        "type": "map",
        "keyType": _nullable(kind["keyType"]),
        "valueType": _nullable(kind["valueType"]),
        "valueContainsNull": True,
    }


def _sortable(file: LiveFile) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for _, value in file.values]
