"""The rows of a query of PostgreSQL as a source.

Invariant: the rows are those of one snapshot of the database, all of them or an error, and a task holds few at a time.

COPY streams them into Parquet files in the store, in the process that has the account: the task's, or the driver's
that was submitted. Spark reads these files; they are deleted when the attempt ends.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from weir.code.query_rules import single_query
from weir.connections import Connection
from weir.dataflow.resolving import Resolved
from weir.dataflow.sources import BOUNDS, LOCAL, bounds_of, when_it_reads
from weir.errors import Misconfigured, Retryable, first_line
from weir.extras import needed_for
from weir.intervals import Moment, shown
from weir.refusals import is_login_refused, is_passing, login_line
from weir_spark.files.paths import WHOLE
from weir_spark.sources.loading import load_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from weir.dataflow.resolving import ResolveContext
    from weir_spark.region.context import StageContext


_SPARK_TYPES: Final[Mapping[int, str]] = {
    16: "boolean",
    17: "binary",
    20: "long",
    21: "short",
    23: "integer",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}
"""PostgreSQL's numbers of types and Spark's names. Numeric has its own; all other types are read as text."""

_BYTEA: Final = 17
_NUMERIC: Final = 1700
_XID8: Final = 5069
_MOST_DIGITS: Final = 38
_PLAIN_DECIMAL: Final = "decimal(38,18)"
"""For a numeric without precision, as Spark's JDBC reader has it. A value that does not fit exactly is an error."""

_PLAIN_VALUE: Final = r"^-?0*[0-9]{0,20}(\.[0-9]{0,18}0*)?$"
"""The texts that it holds. They are compared here: Arrow makes another number of one with more digits."""

_BLOCK_BYTES: Final = 16 * 2**20
"""How much text is parsed at a time; a longer row is refused."""

_SESSION: Final = (
    "set local datestyle = 'ISO'; set local intervalstyle = 'iso_8601'; set local timezone = 'UTC';"
    " set local extra_float_digits = 1"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the query's answer: its number of a type in PostgreSQL, and its type in Spark."""

    name: str
    oid: int
    spark_type: str


def resolve(ctx: ResolveContext) -> list[dict[str, Any]] | Resolved:
    """Return the bounds of the interval, or of the marks: the rows are those that PostgreSQL has when an attempt reads.

    Raises Misconfigured and Retryable.
    """
    conn_id, query = str(ctx.options["conn_id"]), str(ctx.options["query"])
    if ctx.options.get("mark"):
        return _marked(ctx, conn_id, query, str(ctx.options["mark"]))
    when = when_it_reads(ctx.options, "PostgreSQL")
    what = f"what {conn_id} has for {shown(ctx.interval)} {when}"
    named = {each for each in BOUNDS if f"%({each})s" in query}
    found = bounds_of(ctx.interval, ctx.zone, named if isinstance(ctx.interval, Moment) else {"start", "end", *named})
    bounds = {name: (at.replace(tzinfo=None) if name.endswith(LOCAL) else at).isoformat() for name, at in found.items()}
    return [{"reads": what, "conn_id": conn_id, "query": query, **bounds}]


def _marked(ctx: ResolveContext, conn_id: str, query: str, mark: str) -> Resolved:
    """Return the range of the marks from where the epoch before ended to the oldest transaction that is still open.

    What has a mark below that is committed, or never will be. A transaction that is open has its rows read once it has
    ended, by a later epoch.
    """
    before = None if ctx.previous is None else int(ctx.previous.position["xid"])
    if ctx.recorded is not None:
        end = int(ctx.recorded.position["xid"])
    else:
        with _transaction(ctx.connection(conn_id)) as cursor:
            end = _oldest_open(cursor, conn_id, query, mark)
        if before is not None and end < before:
            raise Misconfigured.of("sources.postgres_other_server", conn_id=conn_id, before=before, end=end)
    split = {
        "reads": f"what {conn_id} has with {mark} from {before or 0} to {end - 1} {when_it_reads(ctx.options)}: what "
        "transactions have added that had ended, and were open or had not begun for the epoch before",
        "conn_id": conn_id,
        "query": query,
        "mark": mark,
        "from": str(before or 0),
        "to": str(end),
    }
    return Resolved([split], {"xid": str(end)})


def _oldest_open(cursor: Any, conn_id: str, query: str, mark: str) -> int:
    """Return the number of the oldest transaction that is open. Raises Misconfigured for another mark."""
    inner = cursor.mogrify(single_query("postgres_source", query), {}).decode()
    found = next((each for each in _columns(cursor, inner, conn_id) if each.name == mark), None)
    if found is None or found.oid != _XID8:
        kind = "no column of the query"
        if found is not None:
            cursor.execute("select format_type(%s, null)", (found.oid,))
            kind = f"of the type {cursor.fetchone()[0]}"
        raise Misconfigured.of("sources.postgres_mark_unfit", conn_id=conn_id, mark=mark, kind=kind)
    name = _identifier(mark)
    cursor.execute(f"select exists (select from (\n{inner}\n) weir_source where {name} is null)")  # noqa: S608
    if cursor.fetchone()[0]:
        raise Misconfigured.of("sources.postgres_mark_null", conn_id=conn_id, mark=mark)
    cursor.execute("select pg_snapshot_xmin(pg_current_snapshot())::text")
    return int(cursor.fetchone()[0])


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Load the rows into Parquet files and have Spark read these. Raises Misconfigured or Retryable."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from weir_spark.results.digest import quoted  # noqa: PLC0415

    columns, paths = load(ctx.connection(split["conn_id"]), split, ctx.create_file)
    fields = [{"name": each.name, "type": _stored(each), "nullable": True, "metadata": {}} for each in columns]
    rows = (
        ctx.spark.read.schema(StructType.fromJson({"type": "struct", "fields": fields}))
        .options(**WHOLE)
        .parquet(*paths)
    )
    hexadecimal = {each.name: F.unhex(F.col(quoted(each.name))) for each in columns if each.oid == _BYTEA}
    return rows.withColumns(hexadecimal) if hexadecimal else rows


def load(
    connection: Connection, split: Mapping[str, Any], create_file: Callable[[str, bytes], str]
) -> tuple[list[Column], list[str]]:
    """Write the rows of a split into Parquet files, and return the columns and the files' paths."""
    with _transaction(connection) as cursor:
        bounds = {name: datetime.fromisoformat(split[name]) for name in BOUNDS if name in split}
        query = cursor.mogrify(single_query("postgres_source", split["query"]), bounds).decode()
        if "mark" in split:
            query = _of_marks(query, split)
        columns = _columns(cursor, query, connection.id)
        return columns, load_tables(_tables(cursor, query, columns), create_file)


def _of_marks(query: str, split: Mapping[str, Any]) -> str:
    name = _identifier(split["mark"])
    bounds = f"{name} >= '{int(split['from'])}'::xid8 and {name} < '{int(split['to'])}'::xid8"
    return f"select * from (\n{query}\n) weir_marked where {bounds}"  # noqa: S608  the query is the dataflow's own


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _transaction(connection: Connection) -> Iterator[Any]:
    """Open a transaction that reads one snapshot, and end it."""
    with needed_for(f"the source of connection {connection.id}", "it is read: the task, or the driver in a cluster"):
        import psycopg2  # noqa: PLC0415  only such a source needs it
    try:
        session = psycopg2.connect(**connection.for_libpq())
        try:
            session.set_session(isolation_level="REPEATABLE READ", readonly=True)
            session.set_client_encoding("UTF8")
            with session, session.cursor() as cursor:
                cursor.execute(_SESSION)
                yield cursor
        finally:
            session.close()
    except psycopg2.Error as error:
        is_away = is_passing(error.pgcode) and not isinstance(error, psycopg2.ProgrammingError)
        if is_away and not is_login_refused(error):
            raise Retryable.of(
                "sources.postgres_silent", connection_id=connection.id, said=login_line(error)
            ) from error
        if is_away:
            raise Misconfigured.of(
                "connections.postgres_login_refused", conn_id=connection.id, said=login_line(error)
            ) from error
        is_late = isinstance(error, psycopg2.errors.QueryCanceled)
        hint = ": give the account more time, by its statement_timeout, or read less" if is_late else ""
        raise Misconfigured.of(
            "sources.postgres_query_refused", connection_id=connection.id, error=first_line(error), hint=hint
        ) from error


def _columns(cursor: Any, query: str, conn_id: str) -> list[Column]:
    cursor.execute(f"select * from (\n{query}\n) weir_source limit 0")  # noqa: S608  the query is the dataflow's own
    found = [Column(each.name, each.type_code, _spark_type(each, conn_id)) for each in cursor.description]
    names = [each.name.lower() for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Misconfigured.of("sources.postgres_names_twice", conn_id=conn_id, twice=twice)
    return found


def _spark_type(described: Any, conn_id: str) -> str:
    if described.type_code != _NUMERIC:
        return _SPARK_TYPES.get(described.type_code, "string")
    precision, scale = described.precision, described.scale
    if precision is None or precision >= 65535:
        return _PLAIN_DECIMAL
    if precision > _MOST_DIGITS or not 0 <= scale <= precision:
        raise Misconfigured.of(
            "sources.postgres_too_many_digits",
            described=described.name,
            conn_id=conn_id,
            precision=precision,
            scale=scale,
            most_digits=_MOST_DIGITS,
        )
    return f"decimal({precision},{scale})"


def _stored(column: Column) -> str:
    return "string" if column.oid == _BYTEA else column.spark_type


def _parsed(column: Column) -> str:
    return "string" if _is_plain(column) else _stored(column)


def _is_plain(column: Column) -> bool:
    return column.oid == _NUMERIC and column.spark_type == _PLAIN_DECIMAL


def _tables(cursor: Any, query: str, columns: Sequence[Column]) -> Iterator[pa.Table]:
    """Yield the rows, some at a time; first a table without rows."""
    import pyarrow as pa  # noqa: PLC0415

    from weir.state.spark_schema import arrow_type  # noqa: PLC0415  it imports pyarrow

    schema = pa.schema([(each.name, arrow_type(_stored(each))) for each in columns])
    yield schema.empty_table()
    for batch in _batches(cursor, query, columns):
        yield pa.Table.from_batches([batch], schema)


def _batches(cursor: Any, query: str, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Stream the rows: COPY writes into a pipe in a thread, and they are parsed here."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import csv  # noqa: PLC0415

    from weir.state.spark_schema import arrow_type  # noqa: PLC0415

    expressions = ", ".join(_expression(each) for each in columns)
    selected = f"select {expressions} from (\n{query}\n) weir_source"  # noqa: S608  the query is the dataflow's own
    statement = f"copy ({selected}) to stdout (format csv, header)"
    read_end, write_end = os.pipe()
    copying = _Copy(cursor, statement, write_end)
    rows = 0
    try:
        with os.fdopen(read_end, "rb") as text:
            copying.start()
            try:
                for batch in csv.open_csv(
                    text,
                    read_options=csv.ReadOptions(block_size=_BLOCK_BYTES),
                    # A row of one null is an empty line.
                    parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                    convert_options=csv.ConvertOptions(
                        column_types={each.name: arrow_type(_parsed(each)) for each in columns},
                        strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                        null_values=[""],
                        true_values=["t"],
                        false_values=["f"],
                    ),
                ):
                    rows += batch.num_rows
                    yield _exact(batch, columns)
            except pa.ArrowInvalid as error:
                copying.require_no_error()
                place = _PLACE.search(str(error))
                named = f" of the column {columns[int(place[1])].name}" if place else ""
                raise Misconfigured(_unreadable(named, str(error))) from error
    finally:
        copying.join()
    copying.require_no_error()
    if rows != copying.rows:
        raise Retryable.of("sources.postgres_rows_missing", rows=rows, sent=copying.rows)


_PLACE: Final = re.compile(r"CSV column #(\d+)")


def _unreadable(named: str, what: str) -> str:
    return (
        f"a value of the query{named} cannot be read: {what}. Cast or round it in the query (NaN and more digits than "
        "numeric declares, infinity, years before Christ and after 9999 have no place in Spark's types)"
    )


def _exact(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """Make numbers of the texts of numerics without precision. Raises Misconfigured for one that is another number."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    arrays = list(batch.columns)
    for at, column in enumerate(columns):
        if not _is_plain(column):
            continue
        texts = arrays[at]
        others = texts.filter(pc.invert(pc.match_substring_regex(texts, _PLAIN_VALUE)))
        if len(others):
            what = f"{others[0]} does not fit into {_PLAIN_DECIMAL}"
            raise Misconfigured(_unreadable(f" of the column {column.name}", what))
        short = pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+$", r"\1")
        arrays[at] = pc.replace_substring_regex(short, r"\.$", "").cast(pa.decimal128(38, 18))
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


class _Copy(threading.Thread):
    """Runs COPY into the writing end of a pipe, and closes it: its reader sees an end, whatever has happened."""

    def __init__(self, cursor: Any, statement: str, write_end: int) -> None:
        super().__init__(name="weir-copy", daemon=True)
        self._cursor, self._statement, self._write_end = cursor, statement, write_end
        self._error: Exception | None = None
        self.rows = 0

    def run(self) -> None:
        try:
            with os.fdopen(self._write_end, "wb") as text:
                self._cursor.copy_expert(self._statement, text)
            self.rows = int(self._cursor.rowcount)
        except Exception as error:  # noqa: BLE001  it is raised where the rows are read
            self._error = error

    def require_no_error(self) -> None:
        """Raise the error of COPY, if there was one: its reader has seen a part of the rows."""
        self.join()
        if self._error is not None:
            raise self._error


def _expression(column: Column) -> str:
    name = _identifier(column.name)
    if column.oid == _BYTEA:
        return f"encode({name}, 'hex') as {name}"
    return f"{name}::text as {name}" if column.spark_type == "string" else name
