"""Ready-made sources: files, tables of Delta, Iceberg, PostgreSQL and JDBC, topics of Kafka. Data only, no imports.

Invariant: a source that was declared has options that are JSON values and no secrets; accounts are Airflow connections.

The functions are those of `weir_spark.sources`. The resolver fixes once a run what is read: files, a table's version,
or the bounds of a query. What it fixes is the split, which names all that reading needs besides an account.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

from weir.code.query_rules import single_query
from weir.dataflow.arguments import (
    answers,
    copy_of,
    require,
    require_connection,
    require_delta_path,
    unknown_argument,
)
from weir.dataflow.digest_rule import DigestRule
from weir.dataflow.quality import Gate
from weir.dataflow.record_values import RecordValue
from weir.dataflow.stage import COPY, READY_MADE, Reuse, Stage, TaskSettings, source
from weir.dataflow.state_rules import tables_of
from weir.dataflow.state_schema import Kind, declared_fields
from weir.errors import Misconfigured
from weir.intervals import in_zone, time_zone
from weir.units import time_from_text

FORMATS = ("parquet", "csv", "json")

_JINJA = re.compile(
    r"\{\{\s*(ds|ts|ds_nodash|ts_nodash|data_interval_\w+|logical_date|execution_date|dag_run|params|var|conn|macros)\b"
    r"[^}]*\}\}"
)
"""A template of Airflow, which people write by habit; other doubled braces mean themselves."""

_EXAMPLE = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))

_IN_RECORDS = frozenset(
    {
        *("tinyint", "smallint", "int", "bigint", "float", "double", "string", "boolean", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)

LOCAL = "_local"
"""The end of the names of the interval's bounds in the time zone of the schedule."""

BOUNDS = ("start", "end", f"start{LOCAL}", f"end{LOCAL}")
"""The names of the bounds of an interval in a text."""


class SourceSettings(TypedDict, total=False):
    """The settings that ready-made sources share with `source`."""

    max_parallelism: int | None
    task: TaskSettings | None
    spark: Mapping[str, str] | None
    deterministic: bool
    digest: DigestRule
    quality: Gate | list[Gate] | tuple[Gate, ...]
    moved_from: str
    asset: str
    reuse: Reuse | str | None


def files_source(
    name: str,
    path: str,
    *,
    format: str = "parquet",  # noqa: A002  Spark's word
    schema: str = "",
    read: str = "all",
    on_rewritten: str = "fail",
    late: str = "",
    late_epochs: int = 3,
    if_empty: str = "",
    if_missing: str = "fail",
    on_malformed: str = "fail",
    reader: Mapping[str, str] | None = None,
    conn_id: str = "",
    parallelism: int = 1,
    **settings: Unpack[SourceSettings],
) -> Stage:
    """Read the files that match `path`, such as "/data/flights/{start:%Y-%m-%d}/*.parquet".

    `{start:...}` and `{end:...}` are the bounds of the epoch's interval in UTC, in the format of strftime,
    `{start_local:...}` and `{end_local:...}` those in the time zone of the schedule. The list of files is fixed once a
    run and divided among the subtasks by size; an attempt that finds other files fails.
    `schema` is Spark DDL, which csv and json need. `reader` are options of Spark's reader, such as {"header": "true"}.
    `read="new"` reads the files that no earlier epoch has read, also late ones: then `path` names no bound of
    the interval. A file that was read and has changed since fails the task, or with `on_rewritten="report"` is named by
    `weir why`; it is not read again.
    `late` says what upkeep does about files that came or changed after an epoch had read the interval's: "report" names
    them in `weir why`, "correct" has the epoch computed again with them. It lists those of the newest `late_epochs`
    epochs again. Without it, nobody looks.
    `if_empty="empty"` reads no rows where no file matches, instead of failing, as is usual with `read="new"`; it needs
    `schema`.
    `if_missing="null"` reads nulls where no file has a column, or no line a field, that `schema` names, instead of
    failing. `on_malformed="keep"` reads a line of csv or JSON that does not fit `schema`, instead of failing: the line
    is in the column `_corrupt_record`, its file in `_corrupt_file`; both are null for lines that fit.
    `conn_id` is an Airflow connection to the object store, for the listing.
    """
    where = f"files_source({name!r})"
    _require_text(where, "path", path)
    if "://" not in path and not path.startswith("/"):
        raise Misconfigured.of("dataflow.files_path_not_absolute", where=where, path=path)
    _require_read(where, read, path)
    name_of_file = filled(where, path, _EXAMPLE).rpartition("/")[2]
    if "://" not in path and ":" in name_of_file:
        raise Misconfigured.of("dataflow.file_name_with_colon", where=where, example=name_of_file)
    if format not in FORMATS:
        raise Misconfigured.of("dataflow.format_unknown", where=where, formats=FORMATS, format=format)
    if on_rewritten not in ("fail", "report") or (on_rewritten == "report" and read == "all"):
        raise Misconfigured.of("dataflow.on_rewritten_unknown", where=where, on_rewritten=on_rewritten)
    _require_late(where, late, late_epochs, read, path)
    if_empty = if_empty or ("fail" if read == "all" else "empty")
    if if_empty not in ("fail", "empty"):
        raise Misconfigured.of("dataflow.if_empty_unknown", where=where, if_empty=if_empty)
    if if_missing not in ("fail", "null"):
        raise Misconfigured.of("dataflow.if_missing_unknown", where=where, if_missing=if_missing)
    _require_on_malformed(where, on_malformed, format, schema, reader)
    if not schema and (format != "parquet" or if_empty == "empty"):
        raise Misconfigured.of("dataflow.schema_missing", where=where)
    require(where, "schema", schema, str, 'Spark DDL such as schema="id BIGINT, at TIMESTAMP"')
    _require_reader(where, reader)
    _require_encoding(where, format, reader or {})
    if schema:
        _require_columns(where, schema, format)
        if format != "parquet":
            _require_locale(where, schema, reader or {})
    options = {
        "path": path,
        "format": format,
        "schema": schema,
        "read": read.removeprefix("all"),
        "on_rewritten": on_rewritten.removeprefix("fail"),
        "late": late,
        "late_epochs": late_epochs if late else "",
        "if_empty": if_empty,
        "if_missing": if_missing.removeprefix("fail"),
        "on_malformed": on_malformed.removeprefix("fail"),
        "reader": dict(reader or {}),
        "conn_id": conn_id,
    }
    return _source(name, "files", parallelism, options, settings, goes_on=read == "new")


def delta_source(
    name: str,
    path: str,
    *,
    partition: Mapping[str, str] | None = None,
    read: str = "all",
    conn_id: str = "",
    parallelism: int = 1,
    **settings: Unpack[SourceSettings],
) -> Stage:
    """Read the newest version of the Delta table at `path`, which is fixed once a run.

    `read="new"` reads what has been appended since the version that the epoch before has read; the first reads all. A
    commit that removed or changed rows is an error, one that only rewrote files adds nothing.

    `path` is absolute, or a URL such as "s3://lake/orders"; `conn_id` is an Airflow connection to the object store.
    Spark reads the version's Parquet files and needs no jar of Delta. `partition` reads only one partition, such as
    {"day": "{start:%Y-%m-%d}"}, with the bounds of the epoch's interval as in `files_source`.
    """
    where = f"delta_source({name!r})"
    _require_text(where, "path", path)
    if "://" not in path and not path.startswith("/"):
        raise Misconfigured.of("dataflow.delta_path_not_absolute", where=where, path=path)
    require_delta_path(where, path)
    wanted = _partition(where, partition)
    _require_read(where, read, *wanted.values())
    options = {
        "path": path.rstrip("/"),
        "partition": wanted,
        "read": read.removeprefix("all"),
        "conn_id": conn_id,
    }
    return _source(name, "delta", parallelism, options, settings, goes_on=read == "new")


def iceberg_source(
    name: str,
    table: str,
    *,
    partition: Mapping[str, str] | None = None,
    read: str = "all",
    parallelism: int = 1,
    **settings: Unpack[SourceSettings],
) -> Stage:
    """Read the current snapshot of an Iceberg table, which is fixed once a run.

    `read="new"` reads what has been appended since the snapshot that the epoch before has read; the first reads all. A
    snapshot that overwrote or deleted rows is an error, one that only rewrote files adds nothing.

    `table` is "catalog.namespace.table"; the catalog is the id of an Airflow connection of type iceberg, as in
    `iceberg`. Spark reads the snapshot's Parquet files and needs no jar of Iceberg.
    `partition` is as in `delta_source`, for columns by whose values the table is partitioned.
    """
    where = f"iceberg_source({name!r})"
    _require_text(where, "table", table)
    if table.count(".") < 2 or not all(table.split(".")):
        raise Misconfigured.of("dataflow.iceberg_table_malformed", where=where, table=table)
    wanted = _partition(where, partition)
    _require_read(where, read, *wanted.values())
    options = {"table": table, "partition": wanted, "read": read.removeprefix("all")}
    return _source(name, "iceberg", parallelism, options, settings, goes_on=read == "new")


@answers({"parallelism": "there is one subtask, since several would read at several moments: leave it out"})
def postgres_source(
    name: str, conn_id: str, query: str, *, mark: str = "", keep: str = "", **settings: Unpack[SourceSettings]
) -> Stage:
    """Read the rows of a query of PostgreSQL, by COPY in one transaction of the task.

    `query` may name the bounds of the epoch's interval, as psycopg2 does: "select * from orders where at >= %(start)s
    and at < %(end)s"; any other percent sign is doubled. `%(start_local)s` and `%(end_local)s` are what the clocks of
    the schedule's time zone show then, without a zone, for columns of the types date and timestamp. `conn_id` is an
    Airflow connection of type postgres. There is one subtask: several would read at several moments.

    `mark` reads what was added since the epoch before: it is a column of the type xid8 that the database fills, by
    "mark xid8 not null default pg_current_xact_id()". Rows of a transaction that is open are read once it has ended, by
    a later epoch; a sequence or a time would leave them out. A row that is updated is read again only where the update
    sets the mark.

    `keep="copy"` keeps the rows as they are first read: later attempts of the run read that copy.
    """
    where = f"postgres_source({name!r})"
    require_connection(where, conn_id, "postgres")
    _require_text(where, "query", query)
    try:
        query % dict.fromkeys(BOUNDS, "")
    except (KeyError, ValueError, TypeError) as error:
        raise Misconfigured.of(
            "dataflow.query_placeholder_unknown", where=where, name=type(error).__name__, error=error
        ) from error
    single_query(where, query)
    require(where, "mark", mark, str, 'the name of a column of the type xid8, such as mark="added_by"')
    bound = next((each for each in BOUNDS if f"%({each})s" in query), "")
    if mark and bound:
        raise Misconfigured.of("dataflow.mark_and_interval", where=where, bound=bound)
    options = {"conn_id": conn_id, "query": query, "mark": mark, "keep": keep}
    return _source(name, "postgres", 1, options, settings, goes_on=bool(mark))


@answers({"parallelism": 'there is one subtask: write reader={"numPartitions": ...} and what else Spark asks for'})
def jdbc_source(
    name: str,
    conn_id: str,
    query: str,
    *,
    driver: str = "",
    reader: Mapping[str, str] | None = None,
    keep: str = "",
    **settings: Unpack[SourceSettings],
) -> Stage:
    """Read a table or a query by the JDBC driver of the Spark that computes.

    `query` is a table's name, or begins with "select" or "with"; `{start:...}` and `{end:...}` are the bounds of the
    epoch's interval in UTC, as in "... where at >= '{start:%Y-%m-%d}'", and `{start_local:...}` and `{end_local:...}`
    those in the time zone of the schedule; other braces are doubled. `conn_id` is an Airflow connection whose host is
    the URL, "jdbc:...". `driver` is its Java class, by default that of the connection's extra `driver_class`. `reader`
    are options of Spark's reader, such as fetchsize, or partitionColumn, lowerBound, upperBound and numPartitions, with
    which Spark reads a table in parallel. `keep="copy"` keeps the rows as they are first read: later attempts of the
    run read that copy.
    """
    where = f"jdbc_source({name!r})"
    require_connection(where, conn_id, 'jdbc, whose host is the URL "jdbc:..."')
    _require_text(where, "query", query)
    single_query(where, filled(where, query, _EXAMPLE), is_any_dialect=True)
    _require_reader(where, reader)
    options = {"conn_id": conn_id, "query": query, "driver": driver, "reader": dict(reader or {}), "keep": keep}
    return _source(name, "jdbc", 1, options, settings)


@answers({"topics": "topic", "schema": 'write value=json("id BIGINT")', "format": 'write value=json("id BIGINT")'})
def kafka_source(
    name: str,
    conn_id: str,
    *,
    topic: str,
    value: type[bytes] | RecordValue = bytes,
    bounds: str = "offsets",
    idle: str = "",
    on_malformed: str = "fail",
    keep: str = "",
    parallelism: int = 1,
    **settings: Unpack[SourceSettings],
) -> Stage:
    """Read what has come into a topic of Kafka since the epoch before. Needs `weir[kafka]`.

    Columns: `key` (bytes), `value`, `headers` (an array of structs of `key` and `value`), `partition`, `offset`,
    `timestamp`. `value` is bytes, or with `json(schema)` or `avro(schema)` a struct; it is null for a tombstone.
    Offsets are divided among the subtasks; they are fixed once a run, and a repair reads the same.
    `bounds="offsets"` reads to the last stable offset at the first begin, and at first from what is there.
    `bounds="epoch"` reads to the first record whose time is the interval's end or later; where a partition has none,
    the task waits for it as long as `idle`, such as "10 minutes" (by default "1 minute"), and then reads to the last
    stable offset. Records may have times outside the interval: by offset, none is read twice or left out.
    `on_malformed="keep"` reads a value that does not fit the schema as null, with its bytes in the column
    `_corrupt_record`, instead of failing. `keep="copy"` keeps the rows as they are first read: later attempts of the
    run read that copy, also of offsets that the brokers have dropped or compacted. `conn_id` is an Airflow connection
    of type kafka; `moved_from` is the name that the source had before.
    """
    where = f"kafka_source({name!r})"
    require_connection(where, conn_id, "kafka")
    _require_text(where, "topic", topic)
    if value is not bytes and not isinstance(value, RecordValue):
        raise Misconfigured.of("dataflow.kafka_value_unknown", where=where, value=value)
    if bounds not in ("offsets", "epoch"):
        raise Misconfigured.of("dataflow.kafka_bounds_unknown", where=where, bounds=bounds)
    if idle and bounds != "epoch":
        raise Misconfigured.of("dataflow.kafka_idle_needless", where=where)
    schema = value.schema if isinstance(value, RecordValue) else ""
    _require_on_malformed(where, on_malformed, "json" if schema else "bytes", schema, None)
    if schema:
        _require_columns(where, schema, "json")
        for column, field in declared_fields(schema).items():
            if not _is_in_records(field.kind):
                raise Misconfigured.of(
                    "dataflow.kafka_type_unknown", where=where, name=column, type=str(field.kind).upper()
                )
    if bounds == "epoch":
        idle = idle or "1 minute"
        time_from_text(f"{where}: idle", idle)
    options = {
        "conn_id": conn_id,
        "topic": topic,
        "schema": schema,
        "avro": value.avro if isinstance(value, RecordValue) else "",
        "bounds": bounds,
        "idle": idle,
        "on_malformed": on_malformed.removeprefix("fail"),
        "keep": keep,
    }
    return _source(name, "kafka", parallelism, options, settings, goes_on=True)


def filled(where: str, text: str, interval: tuple[datetime, datetime], zone: str = "UTC") -> str:
    """Return the text with the bounds of an interval for `{start:...}`, `{end:...}`, and in a zone `{start_local:...}`.

    Raises Misconfigured.
    """
    rendered = _JINJA.search(text)
    if rendered:
        raise Misconfigured.of(
            "dataflow.airflow_template", where=where, text=text, rendered=rendered[0], placeholders=_PLACEHOLDERS
        )
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        if names - set(BOUNDS):
            raise Misconfigured.of(
                "dataflow.placeholder_unknown",
                where=where,
                text=text,
                names=sorted(names - set(BOUNDS))[0],
                placeholders=_PLACEHOLDERS,
            )
        return text.format(**bounds_of(interval, zone, names))
    except (ValueError, IndexError) as error:
        raise Misconfigured.of("dataflow.placeholder_malformed", where=where, text=text, error=error) from error


_PLACEHOLDERS = (
    "{start:%Y-%m-%d} and {end:%Y-%m-%d}, the bounds of the epoch's interval in UTC, or {start_local:%Y-%m-%d} and "
    "{end_local:%Y-%m-%d}, those in the time zone of the schedule"
)


def bounds_of(interval: tuple[datetime, datetime], zone: str, names: Collection[str]) -> dict[str, datetime]:
    """Return the bounds of an interval that have these names. Raises Misconfigured for one that it does not have."""
    found: dict[str, datetime] = {}
    for name in names:
        own = in_zone(interval, zone if name.endswith(LOCAL) else "UTC")
        found[name] = own[0] if name.removesuffix(LOCAL) == "start" else own[1]
    return found


def days_in_utc(text: str, zone: str) -> Iterator[tuple[str, str]]:
    """Yield what in a path, query or argument gives another day in UTC than in a zone, and what gives the day there."""
    if zone == "UTC":
        return
    for found in _PLACEHOLDER.finditer(text):
        if _is_other_day(found[2] or "", zone):
            yield found[0], found[0].replace(found[1], f"{found[1]}{LOCAL}", 1)
    if _is_other_day("%Y-%m-%d", zone):
        for found in _DAY_OF_BOUND.finditer(text):
            bound, place = found[1] or found[3] or found[5], found[2] or found[4] or found[6] or found[7]
            local = f"%({bound}{LOCAL})s::date" if bound else f"{{{{ ctx.local_interval[{place}].date }}}}"
            yield found[0], local


def _is_other_day(form: str, zone: str) -> bool:
    days = [datetime(2025, month, 1, tzinfo=time_zone(zone)) for month in (1, 7)]
    return any(format(day.astimezone(UTC), form) != format(day, form) for day in days)


_ANY_BOUND = re.compile(rf"(?<!\{{)\{{(start|end)({LOCAL})?(:[^{{}}]*)?\}}")
_PLACEHOLDER = re.compile(r"(?<!\{)\{(start|end)(?::([^{}]*))?\}")
_BOUND = r"(?:%\((start|end)\)s|\{\{\s*ctx\.interval\[([01])\]\s*\}\})"
_DAY_OF_BOUND = re.compile(
    rf"{_BOUND}\s*::\s*date\b|(?:date|to_date)\s*\(\s*{_BOUND}\s*\)|cast\s*\(\s*{_BOUND}\s+as\s+date\s*\)"
    r"|\{\{\s*ctx\.interval\[([01])\]\.date\s*\}\}",
    re.IGNORECASE,
)
"""The day of a bound: in SQL, and in the arguments of an application."""


def _require_read(where: str, read: object, *texts: str) -> None:
    """Require that a source that reads what is new does so by what it has read, and not by the interval."""
    if read not in ("all", "new"):
        raise Misconfigured.of("dataflow.read_unknown", where=where, read=read)
    bound = next((found[0] for text in texts for found in [_ANY_BOUND.search(text)] if found), None)
    if read == "new" and bound is not None:
        raise Misconfigured.of("dataflow.read_new_by_interval", where=where, bound=bound)


def _require_late(where: str, late: object, late_epochs: object, read: str, path: str) -> None:
    """Require that a source which asks for late files reads those of its interval."""
    if late not in ("", "report", "correct"):
        raise Misconfigured.of("dataflow.late_unknown", where=where, late=late)
    if isinstance(late_epochs, bool) or not isinstance(late_epochs, int) or late_epochs < 1:
        raise Misconfigured.of("dataflow.late_epochs_wrong", where=where, late_epochs=late_epochs)
    if late and read == "new":
        raise Misconfigured.of("dataflow.late_with_new", where=where, late=late)
    if late and _ANY_BOUND.search(path) is None:
        raise Misconfigured.of("dataflow.late_without_interval", where=where, late=late, path=path)


def _partition(where: str, partition: Mapping[str, str] | None) -> dict[str, str]:
    require(where, "partition", copy_of(partition), Mapping, 'partition={"day": "{start:%Y-%m-%d}"}')
    for column, value in (partition or {}).items():
        _require_text(where, f"partition[{column!r}]", value)
        filled(where, value, _EXAMPLE)
    return dict(partition or {})


def _require_columns(where: str, schema: str, form: str) -> None:
    try:
        fields = declared_fields(schema)
    except Misconfigured as error:
        raise Misconfigured.of("dataflow.columns_wrong", where=where, error=error) from error
    seen: dict[str, str] = {}
    for name, field in fields.items():
        if any(each.name.startswith(("char", "varchar")) for each in field.kind.all()):
            raise Misconfigured.of("dataflow.type_without_files", where=where, type=str(field.kind).upper(), name=name)
        if form == "csv" and field.kind.parts:
            raise Misconfigured.of("dataflow.type_without_csv", where=where, name=name, type=str(field.kind).upper())
        if form == "json" and _has_keys_of_another_type(field.kind):
            raise Misconfigured.of("dataflow.map_key_not_a_text", where=where, name=name, type=str(field.kind).upper())
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise Misconfigured.of("dataflow.columns_alike", where=where, other=other, name=name)


def _is_in_records(kind: Kind) -> bool:
    """Report whether a type can be read from JSON of Kafka."""
    return all(each.parts or each.name in _IN_RECORDS or each.name.startswith("decimal") for each in kind.all())


def _has_keys_of_another_type(kind: Kind) -> bool:
    return any(each.parts[0][1].name != "string" for each in kind.all() if each.name == "map" and each.parts)


def _require_on_malformed(where: str, chosen: str, form: str, schema: str, reader: Mapping[str, str] | None) -> None:
    if chosen not in ("fail", "keep"):
        raise Misconfigured.of("dataflow.on_malformed_unknown", where=where, chosen=chosen)
    if chosen == "fail":
        return
    if form == "parquet":
        raise Misconfigured.of("dataflow.on_malformed_of_parquet", where=where)
    if any(str(each).lower() in ("mode", "columnnameofcorruptrecord") for each in reader or ()):
        raise Misconfigured.of("dataflow.on_malformed_and_reader", where=where)
    if any(each in schema.lower() for each in ("_corrupt_record", "_corrupt_file")):
        raise Misconfigured.of("dataflow.on_malformed_column_taken", where=where)


def _require_reader(where: str, reader: object) -> None:
    require(where, "reader", copy_of(reader), Mapping, 'reader={"header": "true"}')


def _require_encoding(where: str, form: str, reader: Mapping[str, str]) -> None:
    """Refuse an encoding whose lines Spark cannot find: it looks for a byte that ends a line, not for a character."""
    given = {str(key).lower(): str(value) for key, value in reader.items()}
    encoding = given.get("encoding", given.get("charset", ""))
    plain = re.sub(r"[-_ ]", "", encoding).lower()
    if plain in ("", "utf8") or given.get("multiline", "").lower() == "true":
        return
    is_wide = plain.startswith(("utf16", "utf32"))
    needs_end = is_wide or form == "json"
    if (is_wide and not plain.endswith(("le", "be"))) or (needs_end and not given.get("linesep")):
        raise Misconfigured.of("dataflow.encoding_without_lines", where=where, encoding=encoding)


def _require_locale(where: str, schema: str, reader: Mapping[str, str]) -> None:
    """Refuse numbers of another language: in 1.234 a German reads thousands, Spark so too or not, by their type."""
    locale = next((str(value) for key, value in reader.items() if str(key).lower() == "locale"), "en")
    if re.split("[-_]", locale)[0].lower() == "en":
        return
    numbers = [
        name
        for name, field in declared_fields(schema).items()
        if any(each.name.startswith(("decimal", "double", "float")) for each in field.kind.all())
    ]
    if numbers:
        raise Misconfigured.of("dataflow.locale_with_numbers", where=where, locale=locale, numbers=numbers)


def when_it_reads(options: Mapping[str, Any], kind: str = "") -> str:
    """Say at which moment of a run the rows of a source without versions are read."""
    if options.get("keep") == COPY:
        return "when the first attempt reads, which copies it"
    return f"when an attempt reads: {kind} has no versions" if kind else "when an attempt reads"


def _source(
    name: str,
    kind: str,
    parallelism: int,
    options: Mapping[str, Any],
    settings: SourceSettings,
    *,
    goes_on: bool = False,
) -> Stage:
    for what in ("conn_id", "driver"):
        require(f"{kind}_source({name!r})", what, options.get(what, ""), str, f'{what}="..."')
    if options.get("keep", "") not in ("", COPY):
        raise Misconfigured.of("dataflow.keep_unknown", where=f"{kind}_source({name!r})", keep=options["keep"])
    unknown = [each for each in settings if each not in SourceSettings.__annotations__]
    if unknown:
        problem = unknown_argument(f"{kind}_source({name!r})", unknown[0], [*options, *SourceSettings.__annotations__])
        of_reader = f' (an option of Spark\'s reader is written as reader={{"{unknown[0]}": ...}})'
        raise Misconfigured.of(
            "dataflow.source_option_wrong", problem=problem, of_reader=of_reader if "reader" in options else ""
        )
    return source(
        name,
        f"{READY_MADE}{kind}:read",
        resolve=f"{READY_MADE}{kind}:resolve",
        parallelism=parallelism,
        options={key: value for key, value in options.items() if value not in ("", {})},
        goes_on=goes_on,
        **settings,
    )


def connections_of(stage: Stage) -> dict[str, str]:
    """Return the ids of the connections that a stage names: for targets, tables of states, a ready-made source."""
    own = [each for each in stage.targets if ":" not in each.kind]
    found = {str(each.options.get("conn_id") or ""): f"its target {each}" for each in own}
    found |= {str(table.options["conn_id"]): f"the table of {state}" for state, table in tables_of([stage])}
    if (stage.resolve or "").startswith("weir_spark.sources."):
        catalog = str(stage.options.get("table", "")).partition(".")[0] if ".iceberg:" in str(stage.resolve) else ""
        found[str(stage.options.get("conn_id") or catalog)] = "its source"
    return {conn_id: who for conn_id, who in found.items() if conn_id}


def _require_text(where: str, what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise Misconfigured.of("dataflow.text_empty", where=where, what=what, value=value)
