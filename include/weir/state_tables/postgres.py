"""The rows of a keyed state in PostgreSQL, as several checkpoints have left them, and views of them.

`NAME_rows` has the rows, each with its segment and the hash of its key; `weir_state_versions`, beside
it, the segments of each checkpoint; `weir_state_tables` whose table it is. The view `NAME` has the rows of the newest
checkpoint, `NAME_at` those of each.

Invariants: a transaction about a table takes one advisory lock first. The rows of a checkpoint and its marker are of
one transaction. A statement of a reader sees the rows of whole checkpoints, whatever is applied, moved or deleted
meanwhile, and waits for nobody but where the columns change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from weir.errors import Misconfigured
from weir.sinks.targets.postgres_catalog import exists, require_possible, schema_of
from weir.sinks.targets.postgres_columns import Column, TableColumn, as_csv, columns_of, require_storable, takes
from weir.sinks.targets.postgres_server import PostgresServer, copy, defined, in_turns, listed
from weir.state.state_files import DELETED, UPDATED
from weir.state_tables.content import Parts
from weir.state_tables.versions import At, Delete, Fold, Forget, TableVersion, all_expired_until

PAGE_ROWS: Final = 20_000
"""How many rows a transaction moves or deletes."""

CHECKPOINT: Final = "_checkpoint"
"""A column that NAME_at has besides those of the state, as `_epoch`."""

_TABLES: Final = "weir_state_tables"
_VERSIONS: Final = "weir_state_versions"
_BATCH_ROWS: Final = 16_384
_OWN: Final = (Column(DELETED, "boolean"), Column(UPDATED, "bigint"))

_DEFINED: Final = {
    _TABLES: "name text primary key, owner text not null, columns jsonb not null, keys text[] not null,"
    " next_segment bigint not null default 1, used bigint[] not null default array[]::bigint[]",
    _VERSIONS: "name text, checkpoint bigint, epoch text not null, segments bigint[] not null, expired_until bigint,"
    " parts jsonb not null, at timestamp with time zone not null default now(),"
    " primary key (name, checkpoint)",
}

_NEWEST: Final = (
    "not exists (select from {rows} newer where newer._weir_key = found._weir_key"
    " and newer._weir_segment > found._weir_segment and newer._weir_segment = any({segments}))"
)
_OF_NEWEST: Final = "(select {} from {} where name = {} order by epoch desc, checkpoint desc limit 1)"
_NEVER: Final = -(2**62)
"""Seconds since 1970 that no update is before."""


Versions = Mapping[At, tuple[TableVersion, Parts]]
"""The checkpoints that are in a table, and what each consists of."""


@dataclass(frozen=True, slots=True)
class PostgresStateTable:
    """A table of a state, which `owner` fills: DATAFLOW.STATE."""

    server: PostgresServer
    owner: str

    @contextmanager
    def open(self) -> Iterator[OpenTable]:
        """Open a transaction that holds the table's lock. Raises as PostgresServer.transaction."""
        with self.server.transaction(f"state {self.owner}") as cursor:
            schema = schema_of(cursor, self.server.table)
            name = self.server.table.rsplit(".", maxsplit=1)[-1]
            cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"weir/state/{schema}.{name}",))
            # A key's hash is that of its text, whatever account and database have; no two numbers have the same text.
            cursor.execute("set local bytea_output = 'hex'; set local extra_float_digits = 1")
            yield OpenTable(cursor, schema, name, self.owner)


class OpenTable:
    """A table in a transaction."""

    def __init__(self, cursor: Any, schema: str, name: str, owner: str) -> None:
        self._cursor, self._schema, self._name, self._owner = cursor, schema, name, owner
        self._shown = f"{schema}.{name}"

    def versions(self) -> Versions:
        """Return the checkpoints that are in the table, and what they consist of; none where somebody dropped it.

        Raises Misconfigured where another state has the table.
        """
        if not all(exists(self._cursor, self._id(each)) for each in _DEFINED):
            return {}
        owner = self._one("select owner from {tables} where name = {name}")
        if owner not in (None, self._owner):
            raise Misconfigured.of("state_tables.owned_by_another", table=self._shown, other=owner, owner=self._owner)
        if owner is None or not exists(self._cursor, self._rows):
            return {}
        self._execute("select epoch, checkpoint, segments, expired_until, parts from {versions} where name = {name}")
        return {
            (at := At(epoch, number)): (
                TableVersion(at, tuple(segments), until),
                {subtask: (digest, first, last) for subtask, (digest, first, last) in parts.items()},
            )
            for epoch, number, segments, until, parts in self._cursor.fetchall()
        }

    def used(self) -> list[int]:
        """Return the segments that may have rows."""
        return list(self._one("select used from {tables} where name = {name}") or ())

    # Adding a checkpoint

    def prepare(self, spark_schema: str, keys: Sequence[str]) -> bool:
        """Make table and views of a state, or change their columns; report whether the table is new.

        It is made anew where the key is another one, or a column has a type that does not hold what is there. Raises
        Misconfigured for columns that a table cannot have, where something else has one of the names, and where
        somebody's view needs a column that goes.
        """
        columns = columns_of(spark_schema)
        require_possible(self._shown, columns)
        if any(each.name == CHECKPOINT for each in columns):
            raise Misconfigured.of("state_tables.column_taken", table=self._shown, column=CHECKPOINT)
        self._make_own_tables()
        return in_turns(self._cursor, lambda: self._prepare(columns, keys))

    def _prepare(self, columns: Sequence[Column], keys: Sequence[str]) -> bool:
        is_own = self._one("select owner from {tables} where name = {name}") is not None
        if is_own and exists(self._cursor, self._rows):
            now = {each.name: TableColumn.made_for(each) for each in columns}
            before = self._columns()
            is_held = all(each.name not in now or takes(now[each.name], each) for each in before)
            if is_held and self._keys() == [*keys]:
                self._change_columns(before, columns)
                return False
            self._drop_views()
            self._execute("drop table {rows}")
        self._create(columns, keys)
        return True

    def add_changes(self, spark_schema: str, tables: Iterable[pa.Table], onto: TableVersion) -> tuple[int, ...]:
        """Add rows that have changed since a version as a segment upon its own; return all of them."""
        return (*onto.segments, self._insert(spark_schema, tables))

    def add_all(self, spark_schema: str, tables: Iterable[pa.Table], onto: TableVersion | None) -> tuple[int, ...]:
        """Add all rows of a checkpoint, as far as they differ from a version; return its segments (None: as one)."""
        if onto is None:
            return (self._insert(spark_schema, tables),)
        return (*onto.segments, self._insert_different(spark_schema, tables, onto))

    def enter(self, version: TableVersion, parts: Parts, replaced: Sequence[At]) -> None:
        """Mark a checkpoint as being in the table, in the place of others."""
        self.forget([version.at, *replaced])
        self._execute(
            "insert into {versions} (name, checkpoint, epoch, segments, expired_until, parts)"
            " values ({name}, {checkpoint}, {epoch}, {segments}, {until}, {parts})",
            checkpoint=version.at.checkpoint,
            epoch=version.at.epoch,
            segments=list(version.segments),
            until=version.expired_until,
            parts=json.dumps(parts),
        )

    def index(self) -> None:
        """Make the indexes of a new table, by which readers and the next checkpoints find rows."""
        self._execute("create unique index on {rows} (_weir_key, _weir_segment)")
        self._execute("create index on {rows} (_weir_segment)")
        self._execute("create index on {rows} (_weir_updated) where _weir_updated is not null")
        self._execute("create index on {rows} ({keys})", keys=listed(self._keys()))
        self._execute("analyze {rows}")

    def _insert(self, spark_schema: str, tables: Iterable[pa.Table]) -> int:
        segment = self._new_segment()
        self._execute(
            "insert into {rows} ({names}, _weir_key, _weir_segment)"
            " select {names}, {key}, {segment} from weir_loading loaded",
            names=listed(self._load(spark_schema, tables)),
            key=self._key("loaded"),
            segment=segment,
        )
        return segment

    def _insert_different(self, spark_schema: str, tables: Iterable[pa.Table], onto: TableVersion) -> int:
        segment, names, keys = self._new_segment(), self._load_wanted(spark_schema, tables), self._keys()
        self._execute(
            "with found as (select found.* from {rows} found"
            " where found._weir_segment = any({segments}) and {newest})"
            " insert into {rows} ({names}, _weir_key, _weir_segment)"
            " select {shown}, coalesce(wanted._weir_key, found._weir_key), {segment}"
            " from weir_wanted wanted full join found on found._weir_key = wanted._weir_key"
            " where case when wanted._weir_key is null then not found._weir_deleted"
            " when found._weir_key is null or found._weir_deleted then true else {differs} end",
            segments=list(onto.segments),
            newest=self._newest(sql.Literal(list(onto.segments))),
            names=listed(names),
            shown=sql.SQL(", ").join(_shown(each, is_key=each in keys) for each in names),
            segment=segment,
            differs=_any_differs(self._columns()),
        )
        return segment

    # Comparing

    def differing(self, spark_schema: str, tables: Iterable[pa.Table], version: TableVersion) -> int:
        """Count the keys that a version shows with other rows than these, or only one of both has.

        A column that came later, or went and came again, is not compared.
        """
        self._load_wanted(spark_schema, tables)
        own = {each.name for each in columns_of(spark_schema)}
        segments = sql.SQL("{}::bigint[]").format(sql.Literal(list(version.segments)))
        self._execute(
            "select count(*) from weir_wanted wanted full join"
            " (select found.* from {rows} found where found._weir_segment = any({segments}) and {visible} and {newest})"
            " found on found._weir_key = wanted._weir_key"
            " where wanted._weir_key is null or found._weir_key is null or {differs}",
            segments=segments,
            visible=_visible(sql.Literal(version.expired_until)),
            newest=self._newest(segments),
            differs=_any_differs(each for each in self._columns() if each.name in own),
        )
        return int(self._cursor.fetchone()[0])

    # Removing

    def carry_out(self, step: Forget | Delete | Fold | None, versions: Sequence[TableVersion]) -> bool:
        """Do a step that adds nothing; None: delete what has expired. Report whether there may be another one."""
        expired_until = all_expired_until(versions)
        match step:
            case Forget(gone):
                self.forget(gone)
            case Delete(segments):
                self.delete_page(segments)
            case Fold():
                self.fold_page(step, expired_until)
            case None:
                return expired_until is not None and self.expire_page(expired_until)
        return True

    def forget(self, versions: Sequence[At]) -> None:
        """Take checkpoints out: no view shows them any more."""
        numbers = [each.checkpoint for each in versions]
        self._execute("delete from {versions} where name = {name} and checkpoint = any({numbers})", numbers=numbers)

    def delete_page(self, segments: Sequence[int]) -> None:
        """Delete some rows of segments that no version names; they are not used any more when there are none left."""
        self._execute(
            "delete from {rows} where ctid = any(array("
            "select ctid from {rows} where _weir_segment = any({segments}) limit {most}))",
            segments=list(segments),
            most=PAGE_ROWS,
        )
        if self._cursor.rowcount < PAGE_ROWS:
            self._end_use(segments)

    def fold_page(self, fold: Fold, expired_until: int | None) -> None:
        """Move some rows into the segment below; it is named in the place of both when there are none left."""
        self._execute(
            "create temporary table weir_page on commit drop as"
            " select _weir_key from {rows} where _weir_segment = {segment} limit {most}",
            segment=fold.segment,
            most=PAGE_ROWS,
        )
        moved = self._cursor.rowcount
        self._execute("analyze weir_page")
        self._execute("delete from {rows} changed using weir_page {of_page}", of_page=_of_page(fold.into))
        of_page = _of_page(fold.segment)
        if fold.is_lowest:
            self._execute(
                "delete from {rows} changed using weir_page {of_page}"
                " and (changed._weir_deleted or changed._weir_updated <= {until})",
                of_page=of_page,
                until=expired_until,
            )
        self._execute(
            "update {rows} changed set _weir_segment = {into} from weir_page {of_page}", into=fold.into, of_page=of_page
        )
        if moved < PAGE_ROWS:
            self._execute(
                "update {versions} set segments = array_remove(segments, {segment}::bigint) where name = {name}",
                segment=fold.segment,
            )
            self._end_use([fold.segment])

    def expire_page(self, expired_until: int) -> bool:
        """Delete some rows that have expired in every version; report whether there may be more.

        One that hides a row of a later update stays: it was compared with a version that is no epoch before its own.
        """
        self._execute(
            "delete from {rows} where ctid = any(array("
            "select found.ctid from {rows} found where found._weir_updated <= {until} and not exists ("
            "select from {rows} below where below._weir_key = found._weir_key"
            " and below._weir_segment < found._weir_segment and (below._weir_updated > {until}) is not false"
            ") limit {most}))",
            until=expired_until,
            most=PAGE_ROWS,
        )
        return int(self._cursor.rowcount) == PAGE_ROWS

    # Tables, views and columns

    def _make_own_tables(self) -> None:
        if all(exists(self._cursor, self._id(each)) for each in _DEFINED):
            return
        self._execute("select pg_advisory_xact_lock(hashtextextended('weir_state_tables', 0))")
        for name, columns in _DEFINED.items():
            if not exists(self._cursor, self._id(name)):
                self._execute(f"create table {{own}} ({columns})", own=self._id(name))

    def _create(self, columns: Sequence[Column], keys: Sequence[str]) -> None:
        """Make table and views. Of one that somebody has dropped only the markers are left."""
        self._execute("delete from {versions} where name = {name}")
        self._execute("delete from {tables} where name = {name}")
        names = (self._view, self._view_at, self._rows)
        taken = [each.as_string(self._cursor) for each in names if exists(self._cursor, each)]
        if taken:
            raise Misconfigured.of("state_tables.name_taken", table=self._shown, taken=taken)
        self._execute(
            "create table {rows} ({defined}, _weir_key bytea not null, _weir_segment bigint not null)",
            defined=sql.SQL(", ").join(map(defined, (*columns, *_OWN))),
        )
        self._execute(
            "insert into {tables} (name, owner, columns, keys) values ({name}, {owner}, {columns}, {keys}::text[])",
            owner=self._owner,
            columns=_as_json(columns),
            keys=list(keys),
        )
        self._make_views(columns)

    def _change_columns(self, before: Sequence[Column], columns: Sequence[Column]) -> None:
        """Give table and views the columns that the state has now; those that were there before keep their order."""
        now, known = {each.name: each for each in columns}, {each.name for each in before}
        new = [each for each in columns if each.name not in known]
        kept = [now[each.name] for each in before if each.name in now]
        if kept == [*before] and not new and exists(self._cursor, self._view) and exists(self._cursor, self._view_at):
            return
        if kept != [*before]:  # only then: who may read the views is lost with them
            self._drop_views()
        for each in before:
            column = sql.Identifier(each.name)
            if each.name not in now:
                self._execute("alter table {rows} drop column {column}", column=column)
            elif now[each.name] != each:
                kind = sql.SQL(now[each.name].type)
                self._execute("alter table {rows} alter column {column} type {kind}", column=column, kind=kind)
        for each in new:
            self._execute("alter table {rows} add column {defined}", defined=defined(each))
        self._execute("update {tables} set columns = {columns} where name = {name}", columns=_as_json([*kept, *new]))
        self._make_views([*kept, *new])

    def _drop_views(self) -> None:
        try:
            self._execute("drop view if exists {view}, {view_at}")
        except psycopg2.errors.DependentObjectsStillExist as error:
            detail = error.diag.message_detail
            raise Misconfigured.of("state_tables.view_needed", table=self._shown, detail=detail) from error

    def _make_views(self, columns: Sequence[Column]) -> None:
        shown = sql.SQL(", ").join(sql.SQL("found.{}").format(sql.Identifier(each.name)) for each in columns)
        of_newest = [
            sql.SQL(_OF_NEWEST).format(sql.Identifier(each), self._id(_VERSIONS), sql.Literal(self._name))
            for each in ("segments", "expired_until")
        ]
        segments = sql.SQL("{}::bigint[]").format(of_newest[0])
        self._execute(
            "create or replace view {view} as select {shown} from {rows} found"
            " where found._weir_segment = any({segments}) and {visible} and {newest}",
            shown=shown,
            segments=segments,
            visible=_visible(of_newest[1]),
            newest=self._newest(segments),
        )
        self._execute(
            "create or replace view {view_at} as select of.epoch as _epoch, of.checkpoint as _checkpoint, {shown}"
            " from {versions} of join {rows} found on found._weir_segment = any(of.segments)"
            " where of.name = {name} and {visible} and {newest}",
            shown=shown,
            visible=_visible(sql.Identifier("of", "expired_until")),
            newest=self._newest(sql.Identifier("of", "segments")),
        )

    def _newest(self, segments: sql.Composable) -> sql.Composable:
        """Whether a row is in the last of these segments that has one of its key."""
        return sql.SQL(_NEWEST).format(rows=self._rows, segments=segments)

    # Rows

    def _load(self, spark_schema: str, tables: Iterable[pa.Table]) -> list[str]:
        """Copy rows into a temporary table, and return its columns; what another schema has not is null.

        Raises Misconfigured with the column of a value that PostgreSQL cannot hold.
        """
        columns = [*self._columns(), *_OWN]
        names = [each.name for each in columns]
        self._execute("drop table if exists pg_temp.weir_loading, pg_temp.weir_wanted")
        self._execute(
            "create temporary table weir_loading on commit drop as select {names} from {rows} with no data",
            names=listed(names),
        )
        own = {each.name: each for each in (*columns_of(spark_schema), *_OWN)}
        given = [each for each in columns if each.name in own and takes(TableColumn.made_for(each), own[each.name])]
        for table in tables:
            rows = as_csv(given, self._storable(given, table), None)
            copy(self._cursor, sql.Identifier("weir_loading"), [each.name for each in given], rows)
        return names

    def _load_wanted(self, spark_schema: str, tables: Iterable[pa.Table]) -> list[str]:
        """Copy the rows of a checkpoint into a temporary table, each with the hash of its key, as `_load` does."""
        names = self._load(spark_schema, tables)
        self._execute(
            "create temporary table weir_wanted on commit drop as"
            " select loaded.*, {key} as _weir_key from weir_loading loaded",
            key=self._key("loaded"),
        )
        self._execute("analyze weir_wanted")
        return names

    def _storable(self, columns: Sequence[Column], table: pa.Table) -> Iterator[pa.RecordBatch]:
        existing = {each.name: TableColumn.made_for(each) for each in columns}
        checked = [each for each in columns if each.is_text or each.is_time or each.is_json]
        for batch in table.to_batches(_BATCH_ROWS):
            require_storable(self._shown, checked, existing, [batch])
            yield batch

    def _new_segment(self) -> int:
        """Return a number that has never been used: also where rows are newer than what was restored beside them."""
        found = self._one(
            "with next as (select greatest(of.next_segment, 1 + (select max(_weir_segment) from {rows})) as number"
            " from {tables} of where of.name = {name})"
            " update {tables} of set next_segment = next.number + 1, used = of.used || next.number from next"
            " where of.name = {name} returning next.number"
        )
        return int(found)

    def _end_use(self, segments: Sequence[int]) -> None:
        self._execute(
            "update {tables} set used = array(select each from unnest(used) each where each <> all({segments}))"
            " where name = {name}",
            segments=list(segments),
        )

    def _columns(self) -> list[Column]:
        return [Column(name, kind) for name, kind in self._one("select columns from {tables} where name = {name}")]

    def _keys(self) -> list[str]:
        return list(self._one("select keys from {tables} where name = {name}"))

    def _key(self, of: str) -> sql.Composable:
        """The hash of a key: a null is a value like others, and no key is too long for an index."""
        values = sql.SQL(", ").join(sql.SQL(f"{of}.{{}}").format(sql.Identifier(each)) for each in self._keys())
        return sql.SQL("substr(sha256(convert_to(row({})::text, 'UTF8')), 1, 16)").format(values)

    def _one(self, statement: str) -> Any:
        """Return the one value that a statement about this table gives; None where there is none."""
        self._execute(statement)
        found = self._cursor.fetchone()
        return None if found is None else found[0]

    def _execute(self, statement: str, **values: Any) -> None:
        """Execute a statement, which names tables and values; no value is one of psycopg2: names may have a percent."""
        known = {
            "tables": self._id(_TABLES),
            "versions": self._id(_VERSIONS),
            "rows": self._rows,
            "view": self._view,
            "view_at": self._view_at,
            "name": self._name,
        }
        given = {
            name: each if isinstance(each, sql.Composable) else sql.Literal(each)
            for name, each in (known | values).items()
        }
        self._cursor.execute(sql.SQL(statement).format(**given))

    def _id(self, name: str) -> sql.Composable:
        return sql.Identifier(self._schema, name)

    @property
    def _rows(self) -> sql.Composable:
        return self._id(f"{self._name}_rows")

    @property
    def _view(self) -> sql.Composable:
        return self._id(self._name)

    @property
    def _view_at(self) -> sql.Composable:
        return self._id(f"{self._name}_at")


def _of_page(segment: int) -> sql.Composable:
    of_page = "page where changed._weir_key = page._weir_key and changed._weir_segment = {}"
    return sql.SQL(of_page).format(sql.Literal(segment))


def _visible(expired_until: sql.Composable) -> sql.Composable:
    """Whether a row is neither deleted nor has expired."""
    has_expired = "found._weir_updated <= coalesce({}, {})"
    return sql.SQL(f"not found._weir_deleted and ({has_expired}) is not true").format(
        expired_until, sql.Literal(_NEVER)
    )


def _shown(name: str, *, is_key: bool) -> sql.Composable:
    """The value of a column of a row that differs: of one that has gone, its key."""
    if name == DELETED:
        return sql.SQL("wanted._weir_key is null")
    shown = "case when wanted._weir_key is null then found.{0} else wanted.{0} end" if is_key else "wanted.{}"
    return sql.SQL(shown).format(sql.Identifier(name))


def _any_differs(columns: Iterable[Column]) -> sql.Composable:
    """Whether a row has another value in any of these columns, or was last updated at another time."""
    return sql.SQL(" or ").join(map(_differs, (*columns, Column(UPDATED, "bigint"))))


def _differs(column: Column) -> sql.Composable:
    """Whether a column has another value, also one that PostgreSQL holds for equal: 0.0 and -0.0."""
    shown = "{0}::text" if column.type in ("real", "double precision") else "{0}"
    return sql.SQL(f"wanted.{shown} is distinct from found.{shown}").format(sql.Identifier(column.name))


def _as_json(columns: Sequence[Column]) -> str:
    return json.dumps([[each.name, each.type] for each in columns])
