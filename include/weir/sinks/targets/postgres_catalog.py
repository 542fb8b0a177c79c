"""What the catalog of PostgreSQL says of a table: where it is, its columns, and what may refuse rows by their values.

Invariant: what refuses every row is refused here by name; what may refuse some is known before a version is published,
so that the load is tried first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg2 import sql

from weir.dataflow.targets import LONGEST_NAME
from weir.errors import Misconfigured
from weir.sinks.rows import Ends
from weir.sinks.targets.postgres_columns import EPOCH_COLUMN, Column, TableColumn, holds_times

_LONGEST_ENTRY: Final = 2000
"""The bytes of a row of an index that are never too many: a B-tree takes 2704."""

_PAGE: Final = 8000
"""The bytes of a row that always has room in a page, once its long values are stored elsewhere."""

_WIDTHS: Final = {"smallint": 8, "integer": 8, "bigint": 8, "real": 8, "double precision": 8, "boolean": 1, "date": 8}
_WIDEST: Final = 24
"""The bytes of other values in a row: a timestamp, a numeric of 38 digits, a pointer to a long text."""

_KINDS: Final = {"S": "a sequence", "m": "a materialized view", "i": "an index", "c": "a type", "f": "a foreign table"}

_MOST_COLUMNS: Final = 1599
"""The columns of a table beside that of the epoch."""

_OF_TABLE: Final = """
with target as (select oid, relkind from pg_class where oid = to_regclass(%(table)s)),
     tree as (select oid from target union select relid from target, pg_partition_tree(target.oid))
select relkind::text, row_security_active(target.oid),
    exists (select from pg_trigger where tgrelid = target.oid and tgtype & 68 = 68),
    exists (select from pg_rewrite where ev_class = target.oid and ev_type <> '1' and is_instead),
    array_remove(array[
        case when relkind = 'v' then 'it is a view' end,
        case when current_setting('server_encoding') not in ('UTF8', 'SQL_ASCII')
            then 'its database has not all characters' end,
        case when exists (select from pg_rewrite join tree on ev_class = tree.oid where ev_type <> '1')
            then 'it has rules' end,
        case when exists (select from pg_trigger join tree on tgrelid = tree.oid
            where not tgisinternal and tgenabled in ('O', 'A')) then 'it has triggers' end,
        case when exists (select from pg_constraint join tree on tree.oid in (conrelid, confrelid)
            where contype in ('c', 'f', 'x', 't')) then 'it has constraints' end,
        case when exists (select from pg_partitioned_table join tree on partrelid = tree.oid where partdefid = 0)
            then 'it has partitions' end,
        case when exists (select from pg_attribute join pg_type on pg_type.oid = atttypid
            where attrelid = target.oid and attnum > 0 and typtype = 'd') then 'it has domains' end,
        case when exists (select from pg_attribute where attrelid = target.oid and attgenerated <> '')
            then 'it has generated columns' end,
        case when exists (select from pg_attrdef where adrelid = target.oid
            and pg_get_expr(adbin, adrelid) !~ %(harmless)s) then 'a default is computed' end,
        case when exists (select from pg_attribute part join tree on attrelid = tree.oid and attrelid <> target.oid
            where attnotnull and attnum > 0 and not exists (select from pg_attribute whole
                where whole.attrelid = target.oid and whole.attname = part.attname and whole.attnotnull))
            then 'a partition takes no nulls' end,
        case when exists (select from pg_class join tree using (oid)
            join pg_namespace on pg_namespace.oid = relnamespace
            join pg_publication_tables on schemaname = nspname and tablename = relname
            where relreplident = 'n' or (relreplident = 'd'
                and not exists (select from pg_index where indrelid = tree.oid and indisprimary)))
            then 'it is replicated, and has no replica identity' end,
        case when row_security_active(target.oid) then 'it has row-level security' end,
        case when exists (select from unnest(%(needs)s) need where not has_table_privilege(target.oid, need))
            then 'its rights are those of columns' end
    ], null)
from target
"""

_HARMLESS: Final = (
    r"""^(now\(\)|CURRENT_[A-Z_]+|gen_random_uuid\(\)|true|false|NULL|[-0-9.]+|'[^']*')(::[\w ().,"\[\]]+)?$"""
)
"""Expressions of defaults that never fail; the next number of a sequence may be refused, or be its last."""

_INDEXES: Final = """
with target as (select to_regclass(%(table)s)::oid as oid),
     tree as (select oid from target union select relid from target, pg_partition_tree(target.oid))
select indisunique,
    amname in ('btree', 'brin', 'hash') and indexprs is null and indpred is null and indrelid = target.oid
        and coalesce(to_jsonb(pg_index) ->> 'indnullsnotdistinct', 'false') = 'false',
    (select array_agg(attname::text) from pg_attribute where attrelid = indrelid and attnum = any(indkey))
from target, pg_index join tree on indrelid = tree.oid join pg_class on pg_class.oid = indexrelid
    join pg_am on pg_am.oid = relam
where not relispartition
"""

_NEEDS: Final = {
    "replace_epoch": ["insert", "select", "delete"],
    "append": ["insert", "select"],
    "upsert": ["insert", "select", "update"],
}


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a table has besides columns: what may refuse rows by their values, and the columns of plain indexes.

    `unique` are those of unique ones, besides the key of a merge.
    """

    refusing: Sequence[str]
    indexed: Sequence[Sequence[str]]
    unique: Sequence[Sequence[str]] = ()

    def compared(self, columns: Sequence[Column]) -> list[Sequence[str]]:
        """Return the columns of unique indexes that a version alone has the values of, besides the epoch's."""
        given = {each.name for each in columns}
        return [names for names in self.unique if set() < set(names) - {EPOCH_COLUMN} <= given]

    def trial_of(self, columns: Sequence[Column], longest: Mapping[str, int]) -> str | None:
        """Tell why the load of a version has to be tried before it is published; None where it need not.

        `longest` has the bytes of the longest value by the name of a column of texts.
        """
        if self.refusing:
            return ", ".join(self.refusing)
        if len(self.compared(columns)) < len(self.unique):
            return "a column with a default is unique"
        for names in self.indexed:
            if sum(longest.get(name, _WIDEST) for name in names) > _LONGEST_ENTRY:
                return f"a value of {', '.join(names)} is long, and they have an index"
        width = sum(_WIDTHS.get(each.type, _WIDEST) for each in columns)
        return "a row is wide" if width + len(columns) // 8 > _PAGE else None


def schema_of(cursor: Any, declared: str) -> str:
    """Return the schema of a table, as the server resolves its name; that of a new one where there is none yet."""
    if "." in declared:
        return declared.split(".", maxsplit=1)[0]
    cursor.execute(
        "select coalesce((select nspname from pg_class join pg_namespace on pg_namespace.oid = relnamespace"
        " where pg_class.oid = to_regclass(%s)), current_schema())::text",
        (sql.Identifier(declared).as_string(cursor),),
    )
    found = cursor.fetchone()[0]
    if found is None:
        raise Misconfigured.of("sinks.postgres_schema_missing", declared=declared)
    return str(found)


def exists(cursor: Any, table: sql.Composable) -> bool:
    """Report whether there is a table, or another relation, of a name."""
    cursor.execute("select to_regclass(%s)", (table.as_string(cursor),))
    return cursor.fetchone()[0] is not None


def columns_there(cursor: Any, schema: str, name: str) -> dict[str, TableColumn]:
    """Return the columns of a table by their names: those that the account may use."""
    cursor.execute(
        "select column_name, data_type, numeric_precision, numeric_scale, character_maximum_length,"
        " is_nullable = 'YES', column_default is not null or is_identity = 'YES' or is_generated = 'ALWAYS',"
        " datetime_precision, is_generated = 'ALWAYS', coalesce(identity_generation = 'ALWAYS', false)"
        " from information_schema.columns where table_name = %s and table_schema = %s",
        (name, schema),
    )
    return {row[0]: TableColumn(*row) for row in cursor.fetchall()}


def require_no_other_case(cursor: Any, table: str, schema: str, name: str) -> None:
    """Require that no table is there whose name differs from that of a new one only in its capitals."""
    cursor.execute(
        "select relname::text from pg_class join pg_namespace on pg_namespace.oid = relnamespace"
        " where nspname = %s and lower(relname) = lower(%s) and relname <> %s and relkind in ('r', 'p', 'v', 'm', 'f')",
        (schema, name, name),
    )
    found = cursor.fetchone()
    if found is not None:
        raise Misconfigured.of("sinks.postgres_table_case", table=table, found=found[0], schema=schema)


def require_same_case(table: str, names: Collection[str], existing: Mapping[str, TableColumn]) -> None:
    """Require that no column is there in another case: beside it, a second one would have a part of the values."""
    lower = {name.lower(): name for name in existing}
    for name in names:
        if name not in existing and name.lower() in lower:
            raise Misconfigured.of("sinks.postgres_column_case", table=table, column=lower[name.lower()], name=name)


def facts_of(cursor: Any, table: sql.Composable, shown: str, mode: str, keys: Sequence[str]) -> TableFacts:
    """Ask for what may refuse rows; of a table that is still to be made, what it will have.

    Raises Misconfigured for a table that takes no rows, or not in one transaction.
    """
    named = table.as_string(cursor)
    cursor.execute(_OF_TABLE, {"table": named, "needs": _NEEDS[mode], "harmless": _HARMLESS})
    there = cursor.fetchone()
    if there is None:
        return TableFacts([], [keys])
    kind, is_secured, takes_inserts, has_instead, refusing = there
    if kind in _KINDS:
        what = f"{_KINDS[kind]}: publish into a table, whose rows and marker change in one transaction"
        raise Misconfigured.of("sinks.postgres_not_a_table", shown=shown, what=what)
    if has_instead:
        raise Misconfigured.of("sinks.postgres_rule", shown=shown)
    if kind == "v" and mode != "upsert" and not takes_inserts:
        raise Misconfigured.of("sinks.postgres_view", shown=shown)
    if is_secured and mode != "upsert":
        raise Misconfigured.of("sinks.postgres_row_security", shown=shown)
    cursor.execute(_INDEXES, {"table": named})
    indexes = [(is_unique, is_plain, names or []) for is_unique, is_plain, names in cursor.fetchall()]
    plain = [names for _, is_plain, names in indexes if is_plain]
    unique = [names for is_unique, is_plain, names in indexes if is_unique and is_plain and set(names) != set(keys)]
    if len(plain) < len(indexes):
        refusing.append("it has an index of expressions, of some rows, of a partition or of another method")
    if unique and mode == "upsert":
        refusing.append(f"{', '.join(unique[0])} is unique")
    return TableFacts(refusing, plain, [] if mode == "upsert" else unique)


def require_writable(
    table: str, columns: Sequence[Column], existing: Mapping[str, TableColumn], *, is_merged: bool
) -> None:
    """Require that values can be given to the columns: none is generated, and none of a merge is always an identity."""
    for name in (*(each.name for each in columns), EPOCH_COLUMN):
        found = existing[name]
        if found.is_generated:
            raise Misconfigured.of("sinks.postgres_column_generated", name=name, table=table)
        if found.is_identity and is_merged:
            raise Misconfigured.of("sinks.postgres_identity", name=name, table=table)


def require_possible(table: str, columns: Sequence[Column]) -> None:
    """Require names that PostgreSQL keeps, and no more columns than a table has. Raises Misconfigured."""
    taken = [
        each.name
        for each in columns
        if each.name == EPOCH_COLUMN or len(each.name.encode()) > LONGEST_NAME or "\0" in each.name
    ]
    if taken:
        raise Misconfigured.of(
            "sinks.postgres_column_refused",
            taken=taken[0],
            table=table,
            longest_name=LONGEST_NAME,
            epoch_column=EPOCH_COLUMN,
        )
    if len(columns) > _MOST_COLUMNS:
        raise Misconfigured.of(
            "sinks.postgres_too_many_columns",
            columns=len(columns),
            table=table,
            most=_MOST_COLUMNS,
            epoch_column=EPOCH_COLUMN,
        )


def to_scan(
    columns: Sequence[Column], existing: Mapping[str, TableColumn], facts: TableFacts, ends: Mapping[str, Ends | None]
) -> list[Column]:
    """Return the columns of which `require_storable` has to see the values.

    Of days and moments these are columns whose least and greatest values in the files' footers are unknown or not held,
    and those that PostgreSQL would round.
    """
    indexed = {name for names in facts.indexed for name in names}

    def is_seen(column: Column) -> bool:
        found = existing[column.name]
        if column.is_text or column.is_json or not found.is_nullable:
            return True
        if column.is_time:
            known = ends.get(column.name)
            is_rounded = column.type != "date" and found.fraction not in (None, 6)
            return is_rounded or known is None or not holds_times(column, *known)
        return column.type == "bytea" and column.name in indexed

    return [each for each in columns if is_seen(each)]


def require_merged(cursor: Any, table: sql.Composable, shown: str, keys: Sequence[str], loaded: sql.Composable) -> None:
    """Require a row of the table for each loaded one: a trigger may leave out some. Raises Misconfigured."""
    equal = sql.SQL(" and ").join(sql.SQL("found.{0} = loaded.{0}").format(sql.Identifier(key)) for key in keys)
    cursor.execute(
        sql.SQL("select {} from {} loaded where not exists (select from {} found where {}) limit 1").format(
            sql.SQL(", ").join(sql.SQL("loaded.{}").format(sql.Identifier(key)) for key in keys), loaded, table, equal
        )
    )
    found = cursor.fetchone()
    if found is not None:
        raise Misconfigured.of("sinks.postgres_row_left_out", shown=shown, values=dict(zip(keys, found, strict=True)))
