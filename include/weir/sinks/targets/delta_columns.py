"""Columns of a version in a Delta table: what the table's schema becomes, and what cannot be published into it.

delta-rs commits whatever files it is given, also those that violate what the table promises its readers. Invariant:
such files are refused here, with the column or property that is in the way.

Source of what a writer has to keep: Delta's protocol, "Requirements for Writers".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from weir.dataflow.state_evolution import is_readable
from weir.dataflow.state_schema import Field, Fields, Kind, fields_of_json, spark_json
from weir.errors import Message, Misconfigured

OWNER: Final = "weir.owner"
"""The property of a table that names the sink that publishes into it."""

_TYPES: Final = frozenset(
    {
        *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean"),
        *("string", "binary", "date", "timestamp", "timestamp_ntz"),
    }
)
_TEXTS: Final = ("char(", "varchar(")
_WITHOUT_ZONE: Final = "timestamp_ntz"
_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")

_FEATURES: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns"),
        *("columnMapping", "timestampNtz", "v2Checkpoint", "variantType"),
    }
)
"""The features of a table that files can be added to without more; whether some are used, the checks below tell.

delta-rs gives a new table some that it does not use.
"""

_PROPERTIES: Final = {
    "delta.appendOnly": "an epoch that is published again replaces rows",
    "delta.setTransactionRetentionDuration": "it would drop the markers of what is published",
}
"""Properties that must not be set, with the reason."""

_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."
_COLUMN_RULES: Final = (
    "delta.generationExpression",
    "delta.identity.",
    "delta.invariants",
    "__CHAR_VARCHAR_TYPE_STRING",
)


def columns_of(spark_schema: str, partition: str) -> Fields:
    """Return the columns of a version. Raises Misconfigured for a type or name that a table cannot have."""
    found = {name: Field(name, _stored(name, each.kind)) for name, each in fields_of_json(spark_schema).items()}
    taken = [name for name in found if name.lower() == partition.lower() or _NOT_IN_NAMES & set(name)]
    if taken:
        raise Misconfigured.of(
            "sinks.delta_column_refused",
            taken=taken[0],
            characters="".join(sorted(_NOT_IN_NAMES)),
            partition=partition,
        )
    return found


def _stored(column: str, kind: Kind) -> Kind:
    if kind.parts:
        return Kind(kind.name, tuple((name, _stored(column, part)) for name, part in kind.parts))
    if kind.name.startswith(_TEXTS):
        return Kind("string")
    if kind.name not in _TYPES and not kind.name.startswith("decimal("):
        raise Misconfigured.of("sinks.delta_type_missing", column=column, kind=kind)
    return Kind(kind.name)


def new_schema(columns: Fields, partition: str) -> str:
    """Return the schema of a new table, as JSON."""
    return spark_json({**columns, partition: Field(partition, Kind("string"))})


def schema_with(table: str, schema: str, columns: Fields, partition: str, *, may_change: bool) -> str:
    """Return the schema of a table with all columns of a version in it: added at the end, or widened.

    `table` names the table, `schema` is its schema as JSON. No column is dropped or narrowed. Raises Misconfigured with
    all that differs; where `may_change` is False, also for columns that would have to be added or widened.
    """
    fields = json.loads(schema)["fields"]
    existing = fields_of_json(schema)
    problems, changes = list(_problems(fields, existing, columns, partition)), []
    for name, column in columns.items():
        if name not in existing:
            changes.append(f"{name} is missing, expected {column.kind}")
            fields.append(_field(column))
        elif not is_readable(column.kind, existing[name].kind):
            changes.append(f"{name} is {existing[name].kind}, expected {column.kind}")
            place = list(existing).index(name)
            fields[place] = {**fields[place], "type": _field(column)["type"]}
    if problems or (changes and not may_change):
        cure = "" if problems else ': declare create="if_missing", which adds and widens columns, or do it yourself'
        raise Misconfigured.of(
            "sinks.delta_columns_unfit",
            table=table,
            problems=[*problems, *([] if may_change else changes)],
            cure=cure or ". Change the table, or cast the columns in the stage that the sink reads",
        )
    return json.dumps({"type": "struct", "fields": fields}) if changes else schema


def _field(column: Field) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(spark_json({column.name: column}))["fields"][0]
    return found


def _problems(fields: list[dict[str, Any]], existing: Fields, columns: Fields, partition: str) -> Iterator[str]:
    lower = {name.lower(): name for name in existing}
    for name, column in columns.items():
        there = lower.get(name.lower(), name)
        if there != name:
            yield f"{name} is spelled {there}"
        elif name in existing and not _is_one_wider(existing[name].kind, column.kind):
            yield Message("sinks.delta_column_differs", name=name, kind=existing[name].kind, expected=column.kind)
    for each in fields:
        name = each["name"]
        if not each["nullable"] and name not in columns and name != partition:
            yield Message("sinks.delta_column_left_out", name=name)
        if _has_required_parts(each["type"]):
            yield Message("sinks.delta_parts_not_null", name=name)
        if name == partition and each["type"] != "string":
            yield Message("sinks.delta_partition_not_text", name=name, each=each["type"])
        rule = next((key for key in each["metadata"] if key.startswith(_COLUMN_RULES)), None)
        if rule:
            yield Message("sinks.delta_rule_unknown", name=name, rule=rule)


def _is_one_wider(was: Kind, now: Kind) -> bool:
    return is_readable(was, now) or is_readable(now, was)


def _has_required_parts(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return False
    if kind["type"] == "struct":
        return any(not each["nullable"] or _has_required_parts(each["type"]) for each in kind["fields"])
    if kind["type"] == "array":
        return not kind["containsNull"] or _has_required_parts(kind["elementType"])
    return not kind["valueContainsNull"] or any(_has_required_parts(kind[each]) for each in ("keyType", "valueType"))


def required_columns(schema: str, columns: Fields) -> list[str]:
    """Return the columns of a version in which the table allows no null."""
    return [each["name"] for each in json.loads(schema)["fields"] if not each["nullable"] and each["name"] in columns]


def require_no_nulls(table: str, names: Collection[str], batches: Iterable[pa.RecordBatch]) -> None:
    """Require that these columns have no nulls. Raises Misconfigured."""
    for batch in batches:
        for name in names:
            if batch.column(name).null_count:
                raise Misconfigured.of("sinks.delta_null_refused", table=table, name=name)


def require_usable(
    table: str,
    partitions: Collection[str],
    properties: Mapping[str, str],
    features: Collection[str],
    partition: str,
) -> None:
    """Require a table whose promises hold for files that are added. Raises Misconfigured with all that do not."""
    problems = [f"{key} is set: {why}" for key, why in _PROPERTIES.items() if properties.get(key, "false") != "false"]
    problems += [f"it has the constraint {key}" for key in properties if key.startswith(_CONSTRAINT)]
    if properties.get(_MAPPING, "none") != "none":
        problems.append(Message("sinks.delta_maps_columns", properties=properties[_MAPPING], mapping=_MAPPING))
    foreign = sorted(set(features) - _FEATURES)
    if foreign:
        problems.append(Message("sinks.delta_feature_foreign", foreign=foreign))
    if list(partitions) != [partition]:
        problems.append(
            Message(
                "sinks.delta_partitioned_otherwise", partitions=", ".join(partitions) or "nothing", partition=partition
            )
        )
    if problems:
        raise Misconfigured.of("sinks.delta_table_unfit", table=table, problems=problems)


def require_features(table: str, columns: Fields, features: Collection[str]) -> None:
    """Require the feature that columns need which are added: without it nobody could open the table any more."""
    needs = [name for name, each in columns.items() if any(kind.name == _WITHOUT_ZONE for kind in each.kind.all())]
    if needs and "timestampNtz" not in features:
        raise Misconfigured.of("sinks.delta_feature_missing", table=table, needs=needs[0])
