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
    ordered = sorted(
        files, key=lambda each: ([(value is not None, value or "") for _, value in each.values], each.path)
    )
    return [
        {
            **more,
            "reads": f"{what}: {len(files)} file(s), {sum(each.bytes for each in files)} bytes",
            "schema": schema,
            "groups": _groups((dict(each.values), spark_path(each.path)) for each in share),
        }
        for share in shares([(each, each.bytes) for each in ordered], parallelism)
    ]


def divided_anew(splits: Sequence[Mapping[str, Any]], parallelism: int) -> list[dict[str, Any]]:
    """Return the same files of a table in as many splits as there are subtasks now."""
    files = [(group["values"], file) for split in splits for group in split["groups"] for file in group["files"]]
    return [{**splits[0], "groups": _groups(share)} for share in shares([(each, 1) for each in files], parallelism)]


def _groups(files: Iterable[tuple[dict[str, str | None], str]]) -> list[dict[str, Any]]:
    """Return files, each with its values, as groups of neighbours with the same values."""
    return [
        {"values": values, "files": [file for _, file in group]}
        for values, group in groupby(files, key=lambda each: each[0])
    ]
