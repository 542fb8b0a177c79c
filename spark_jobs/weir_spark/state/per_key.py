"""Calls a function once for each key that occurs in rows, with the state of that key.

Invariant: only keys that occur are loaded; results and changes come out of one pass, so that they belong together.

Rows and states are shuffled and sorted by key, and the workers call the function key by key. So a key costs a call,
where `cogroup` with `applyInPandas` makes a stream of Arrow's for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import ParseException, PythonException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StructType

from weir.errors import Misconfigured
from weir_spark.results.digest import computed_once, quoted
from weir_spark.state import exact_rows, handles, keyed_pass
from weir_spark.state.exact_rows import NotHeld
from weir_spark.state.handles import LIST, MAP, VALUE
from weir_spark.state.keyed_pass import CHANGE, DELETED, KEY, RESULT, ROW, STATE, KeyedPass
from weir_spark.state.reader import BROADCAST_ROWS, StoredState

_NOTHING = "_weir_nothing"
FORMS = ("pandas", "arrow", "rows")
ALL, OF_ROWS = "key", "rows"
_NOT_HELD = re.compile(rf"\b{NotHeld.__name__}: (.*)")


@dataclass(frozen=True, slots=True)
class Passed:
    """The computed result of a pass: results of the function, rows of the state to set, and keys to delete."""

    results: DataFrame
    set_rows: DataFrame
    deleted_keys: DataFrame


def per_key(
    stored: StoredState,
    look_up: Callable[[DataFrame], DataFrame],
    rows: DataFrame,
    function: Callable[..., Any],
    schema: str,
    form: str,
    order_by: Sequence[str],
    entries: str,
) -> Passed:
    """Call the function for all keys of `rows`; `look_up` gives the visible rows of keys that can be broadcast.

    Of a state with a `map_key` all entries of these keys are loaded, or with `entries="rows"` those that `rows` name.

    Raises Misconfigured where rows, schema or form are not what they should be, and for values that a column does not
    hold; errors of the function pass through.
    """
    keys = stored.read.state.divided_by
    is_of_rows = entries == OF_ROWS
    by = stored.keys if is_of_rows else keys
    _check(stored, rows, form, order_by, entries, by)
    count, rows = computed_once(rows)  # they are read twice, and must be the same
    _require_range(stored, rows, by)
    key = _struct(stored, keys)
    wanted = rows.select(_struct(stored, by).alias(KEY)).distinct().select(f"{KEY}.*")
    is_few = count <= BROADCAST_ROWS or wanted.count() <= BROADCAST_ROWS
    known = look_up(wanted) if is_few else stored.rows(wanted, is_broadcast=False)
    values = [field.name for field in stored.schema.fields if field.name not in keys]
    kept = F.struct(*[F.col(quoted(name)) for name in values] or [F.expr("true").alias(_NOTHING)])
    of_entry = [_struct(stored, stored.read.state.map_key).alias(STATE)] if is_of_rows else []
    one = rows.select(key.alias(KEY), F.struct(*map(quoted, rows.columns)).alias(ROW), *of_entry)
    other = known.select(key.alias(KEY), kept.alias(STATE))
    together = one.unionByName(other, allowMissingColumns=True).repartition(KEY)
    order = [F.col(f"{ROW}.{quoted(name)}") for name in order_by]
    ordered = together.sortWithinPartitions(KEY, F.col(ROW).isNotNull(), *order)
    results = _schema(stored, schema)
    try:
        passed = ordered.mapInArrow(*_pass(stored, function, form, results, is_of_rows=is_of_rows))
        done = passed.localCheckpoint(eager=True)
    except PythonException as error:
        not_held = _NOT_HELD.search(str(error))
        if not_held is None:
            raise
        raise Misconfigured.of(
            "state.per_key_value_unfit", state=stored.read.state.name, not_held=not_held[1]
        ) from error
    changes = done.where(F.col(DELETED).isNotNull())
    return Passed(
        done.where(F.col(DELETED).isNull()).select(f"{RESULT}.*"),
        changes.where(~F.col(DELETED)).select(f"{CHANGE}.*").select(*map(quoted, stored.schema.fieldNames())),
        changes.where(F.col(DELETED)).select(f"{CHANGE}.*").select(*map(quoted, stored.keys)),
    )


def _struct(stored: StoredState, keys: Sequence[str]) -> Column:
    """Return key columns of rows in the types of the state."""
    return F.struct(*[F.col(quoted(name)).cast(stored.schema[name].dataType).alias(name) for name in keys])


def _require_range(stored: StoredState, rows: DataFrame, by: Sequence[str]) -> None:
    outside = stored.outside(rows.schema, by)
    found = [] if outside is None else rows.where(outside).select(*map(quoted, by)).limit(1).collect()
    if found:
        raise Misconfigured.of(
            "state.key_out_of_range",
            state=stored.read.state.name,
            found=found[0],
            keys=[f"{stored.schema[key].dataType.simpleString()} ({key})" for key in by],
        )


def _pass(
    stored: StoredState, function: Callable[..., Any], form: str, results: StructType, *, is_of_rows: bool
) -> tuple[Any, StructType]:
    """Return the function for `mapInArrow`, and the schema of its rows."""
    for module in (exact_rows, handles, keyed_pass):
        cloudpickle.register_pickle_by_value(module)
    names = stored.read.state.divided_by
    keys = StructType([stored.schema[name] for name in names])
    values = StructType([field for field in stored.schema.fields if field.name not in names])
    kinds = {field.name: _kind(field.dataType) for field in values.fields}
    arrow = [to_arrow_schema(each, timezone="UTC") for each in (keys, values, results)]
    work = KeyedPass(function, form, kinds, *arrow, map_key=stored.read.state.map_key, is_of_rows=is_of_rows)
    out = StructType().add(RESULT, results).add(CHANGE, StructType([*keys.fields, *values.fields]))
    return work.__call__, out.add(DELETED, BooleanType())


def _kind(data_type: DataType) -> str:
    if isinstance(data_type, ArrayType):
        return LIST
    return MAP if isinstance(data_type, MapType) else VALUE


def _schema(stored: StoredState, schema: str) -> StructType:
    try:
        return stored.session.createDataFrame([], schema).schema
    except ParseException as error:
        raise Misconfigured.of(
            "state.per_key_schema_malformed", state=stored.read.state.name, schema=schema, error=error
        ) from error


def _check(
    stored: StoredState, rows: DataFrame, form: str, order_by: Sequence[str], entries: str, by: Sequence[str]
) -> None:
    name = stored.read.state.name
    if entries not in (ALL, OF_ROWS):
        raise Misconfigured.of("state.per_key_entries_unknown", name=name, entries=entries)
    if entries == OF_ROWS and not stored.read.state.map_key:
        raise Misconfigured.of("state.per_key_entries_of_none", name=name)
    if form not in FORMS:
        raise Misconfigured.of("state.per_key_form_unknown", name=name, form=form, forms=FORMS)
    types = {field.name: field.dataType for field in rows.schema.fields}
    if len(types) < len(rows.columns):
        raise Misconfigured.of("state.per_key_column_twice", name=name, columns=rows.columns)
    stored.require_keys(rows.schema, "per_key", by)
    for column in order_by:
        if column not in types:
            raise Misconfigured.of("state.per_key_column_missing", name=name, column=column, types=types)
