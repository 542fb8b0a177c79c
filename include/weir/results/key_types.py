"""The types of key columns. Invariant: inputs that one stage reads by key are divided alike, or not read at all.

`hash(1)` as an int and as a bigint differ, so a co-partitioned join would silently lose its matches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weir.errors import Misconfigured
from weir.topology.key_hash import canonical_type

_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def key_types(spark_schema: str, keys: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The canonical types of the columns `keys` of a schema in Spark's JSON.

    Raises Misconfigured if a column is missing or its type cannot be a key; `where` names whose schema it is.
    """
    columns = {field["name"].lower(): field["type"] for field in json.loads(spark_schema)["fields"]}
    missing = [key for key in keys if key.lower() not in columns]
    if missing:
        raise Misconfigured(f"{where} has no column {', '.join(missing)}; it has {', '.join(columns)}")
    return tuple(canonical_type(_sql_name(columns[key.lower()])) for key in keys)


def require_equal_key_types(stage: str, found: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    """Check the keyed inputs of a stage, given as argument to (columns, canonical types). Raises Misconfigured."""
    if len({types for _, types in found.values()}) <= 1:
        return
    shown = "; ".join(
        f"{argument} by {', '.join(f'{key} ({type_})' for key, type_ in zip(keys, types, strict=True))}"
        for argument, (keys, types) in found.items()
    )
    raise Misconfigured(
        f"the keyed inputs of stage {stage} have different key types, so equal keys would not meet: {shown}. "
        "Cast the columns to one type in the stages that write them"
    )


def _sql_name(type_: Any) -> str:
    name = type_ if isinstance(type_, str) else str(type_.get("type"))
    return _SQL_NAMES.get(name, name)
