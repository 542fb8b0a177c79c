"""A table of PostgreSQL: an epoch's rows and its marker change in one transaction.

Invariant 12: every transaction about a sink takes one advisory lock first, reads the marker after it, and writes rows
and marker together. So the marker is that of the rows, whoever was killed when, and an answer that was lost is found.
A table is the one that the server resolves its name to: lock and marker are the same under every spelling.

Source of the protocol: PostgreSQL's manual on explicit locking, and on COPY.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import psycopg2
from psycopg2 import sql

from weir.errors import Misconfigured, Retryable
from weir.sinks.protocol import (
    ROLLED_BACK,
    Held,
    Outcome,
    Reach,
    SinkTarget,
    TargetAway,
    TargetConflict,
    Token,
    Version,
    outcome_of,
)
from weir.sinks.rows import Counted, batches, ends_of_times
from weir.sinks.targets.postgres_catalog import (
    TableFacts,
    columns_there,
    exists,
    facts_of,
    require_merged,
    require_no_other_case,
    require_possible,
    require_same_case,
    require_writable,
    schema_of,
    to_scan,
)
from weir.sinks.targets.postgres_columns import (
    EPOCH_COLUMN,
    Column,
    TableColumn,
    as_csv,
    columns_of,
    require_storable,
    require_taken,
)
from weir.sinks.targets.postgres_server import PostgresServer, copy, defined, in_turns, listed
from weir.sinks.targets.postgres_watch import ServerSilent

MARKER: Final = "weir_published"
"""The table, beside the target's, with a row for each epoch that a sink has published."""

_CLAIMED: Final = ""
"""The epoch in the marker of a sink that has prepared a version and committed none: from then on the table is its."""

_LOADING: Final = sql.Identifier("weir_loading")
_TURNS: Final = 3
"""How often a transaction that the server ended (a deadlock, a time-out) is tried again at once."""


class PostgresTarget(SinkTarget):
    """A table, by `replace_epoch`, `upsert` or `append`."""

    def __init__(self, options: Mapping[str, Any], reach: Reach) -> None:
        super().__init__(options, reach)
        self._server = PostgresServer(reach.connection, options["conn_id"], options["table"])
        self._resolved = self._schema or ""

    def prepare(self, version: Version, held: Held | None) -> Token:  # noqa: ARG002  the marker tells
        """Check all that the catalog and the values tell, and try the load where only that tells whether it is taken.

        Makes the marker's table, and with create="if_missing" the table and its columns.
        """
        columns = columns_of(version.spark_schema)
        require_possible(self._table, columns)
        self._require_key_columns(columns)
        with self._transaction(version) as cursor:
            self._make_marker(cursor)
            is_known = self._require_sole_owner(cursor, version)
            found = self._seen(cursor, version)
            if self.options["mode"] == "append" and found is Outcome.ABSENT:
                self._require_new(cursor, version)
            facts = facts_of(cursor, self._identifier, self._table, self.options["mode"], self.options["key"])
            self._create(cursor, columns)
            existing = self._existing(cursor, columns)
        require_taken(self._table, columns, existing, version.epoch)
        require_writable(self._table, columns, existing, is_merged=self.options["mode"] == "upsert")
        longest = self._require_storable(version, columns, existing, facts)
        if self.options["mode"] == "upsert":
            with self._transaction(version) as cursor:
                self._require_keys(cursor, version, columns)
                self._require_unique(cursor, columns)
        if found is Outcome.ABSENT:
            for names in facts.compared(columns):
                self._require_free(version, columns, names)
        why = facts.trial_of(columns, longest)
        if why and found is Outcome.ABSENT:
            self._try(version, columns, why)
        if not is_known:
            self._claim(version)
        return {}

    def _require_storable(
        self, version: Version, columns: Sequence[Column], existing: Mapping[str, TableColumn], facts: TableFacts
    ) -> dict[str, int]:
        """Read the values that a table may refuse; no transaction that could have changed it holds up its readers."""
        ends = ends_of_times(self.reach, version, [each.name for each in columns if each.is_time])
        scanned = to_scan(columns, existing, facts, ends)
        if not scanned:
            return {}
        values = batches(self.reach, version, [each.name for each in scanned])
        return require_storable(self._table, scanned, existing, values)

    def _try(self, version: Version, columns: Sequence[Column], why: str) -> None:
        """Do what `commit` will do, and take it back. Raises TargetConflict for what the server refuses.

        A foreign key is not said to refuse: another sink may bring the rows that it looks for, before.
        """
        try:
            with self._transaction(version) as cursor:
                self._load(cursor, version, columns)
                if self.options["mode"] == "upsert":
                    require_merged(cursor, self._identifier, self._table, self.options["key"], _LOADING)
                cursor.execute("set constraints all immediate")
                cursor.connection.rollback()
        except TargetConflict as error:
            if not isinstance(error.__cause__, psycopg2.errors.ForeignKeyViolation):
                raise TargetConflict.of("sinks.postgres_load_fails", error=error, why=why) from error.__cause__

    def _require_free(self, version: Version, columns: Sequence[Column], unique: Sequence[str]) -> None:
        """Require that no two rows have equal values of a unique index, nor has one a value of another epoch's row."""
        names = [each.name for each in columns if each.name in unique]
        equal = sql.SQL(" and ").join(sql.SQL("found.{0} = loaded.{0}").format(sql.Identifier(name)) for name in names)
        twice = sql.SQL("select {0} from {1} where row({0}) is not null group by {0} having count(*) > 1 limit 1")
        there = sql.SQL("select loaded.* from {} loaded join {} found on {} where found.{} is distinct from %s limit 1")
        with self._transaction(version) as cursor:
            loaded = self._loaded_keys(cursor, version, columns, names)
            cursor.execute(twice.format(listed(names), loaded))
            taken = cursor.fetchone()
            if taken is None and EPOCH_COLUMN not in unique:
                epoch = sql.Identifier(EPOCH_COLUMN)
                cursor.execute(there.format(loaded, self._identifier, equal, epoch), (version.epoch,))
                taken = cursor.fetchone()
        if taken is not None:
            raise TargetConflict.of(
                "sinks.postgres_not_unique",
                version=version,
                values=dict(zip(names, taken, strict=True)),
                table=self._table,
                unique=unique,
            )

    def _claim(self, version: Version) -> None:
        """Make the table the sink's before anything is published: of two that begin at once, one is refused here."""
        with self._transaction(version) as cursor:
            self._require_sole_owner(cursor, version)
            cursor.execute(
                sql.SQL(
                    "insert into {} (target, owner, epoch, number, digest, rows, attempt)"
                    " values (%s, %s, %s, 0, '', 0, %s) on conflict do nothing"
                ).format(self._marker),
                (self._table, version.owner, _CLAIMED, version.attempt),
            )

    def commit(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002  there is nothing to plan
        """Load the rows and set the marker in one transaction."""
        for turn in range(1, _TURNS + 1):
            try:
                return self._commit(version)
            except TargetAway as away:
                if turn == _TURNS or isinstance(away.__cause__, ServerSilent):
                    raise
        raise AssertionError("the last turn returns or raises")

    def recover(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002
        """Read the marker, after any transaction about it that has not ended yet."""
        with self._transaction(version) as cursor:
            return self._seen(cursor, version)

    def rollback(self, version: Version, token: Token) -> bool:  # noqa: ARG002
        """Delete the epoch's rows. What mode="upsert" has replaced is gone: it is refused."""
        if self.options["mode"] == "upsert":
            raise Misconfigured.of("sinks.postgres_rollback_impossible", table=self._table, version=version)
        with self._transaction(version) as cursor:
            if not version.is_marked_by(*self._marked(cursor, version)):
                return False
            self._delete(cursor, version)
            cursor.execute(
                sql.SQL(
                    "update {} set number = %s, digest = %s, rows = 0, at = now()"
                    " where target = any(%s) and owner = %s and epoch = %s"
                ).format(self._marker),
                (version.number, ROLLED_BACK, *self._key(version)),
            )
        return True

    def _commit(self, version: Version) -> Outcome:
        columns = columns_of(version.spark_schema)
        with self._transaction(version) as cursor:
            found = self._seen(cursor, version)
            if found is not Outcome.ABSENT:
                return found
            self._require_sole_owner(cursor, version)
            if version.confirms(*self._marked(cursor, version)) and self._has_rows(cursor, version):
                self._mark(cursor, version)
                return Outcome.COMMITTED
            if not exists(cursor, self._identifier):  # somebody has dropped it
                self._create(cursor, columns)
            self._load(cursor, version, columns)
            self._mark(cursor, version)
        return Outcome.COMMITTED

    def _mark(self, cursor: Any, version: Version) -> None:
        """Set the epoch's marker: what was the sink's claim becomes its first one."""
        cursor.execute(
            sql.SQL("update {} set epoch = %s where target = %s and owner = %s and epoch = %s").format(self._marker),
            (version.epoch, self._table, version.owner, _CLAIMED),
        )
        cursor.execute(
            sql.SQL(
                "insert into {} (target, owner, epoch, number, digest, rows, attempt)"
                " values (%s, %s, %s, %s, %s, %s, %s) on conflict (target, owner, epoch) do update set"
                " number = excluded.number, digest = excluded.digest, rows = excluded.rows,"
                " attempt = excluded.attempt, at = now()"
            ).format(self._marker),
            (
                *(self._table, version.owner, version.epoch),
                *(version.number, version.digest, version.rows, version.attempt),
            ),
        )

    def _load(self, cursor: Any, version: Version, columns: Sequence[Column]) -> None:
        names = [*(each.name for each in columns), EPOCH_COLUMN]
        into = self._identifier
        mode = self.options["mode"]
        if mode == "replace_epoch":
            self._delete(cursor, version)
        elif mode == "append":
            self._require_new(cursor, version)
        else:
            into = _LOADING
            self._make_temporary(cursor, into, names)
        counted = Counted(batches(self.reach, version, names[:-1]))
        rows = copy(cursor, into, names, as_csv(columns, counted, version.epoch))
        if counted.rows != version.rows:
            raise Retryable.of("sinks.s3_rows_differ", rows=counted.rows, version=version, expected=version.rows)
        if rows != version.rows:
            raise TargetConflict.of(
                "sinks.postgres_trigger_leaves_out", table=self._table, rows=version.rows - rows, version=version
            )
        if mode == "upsert":
            cursor.execute(self._merge(into, names))

    def _delete(self, cursor: Any, version: Version) -> None:
        cursor.execute(
            sql.SQL("delete from {} where {} = %s").format(self._identifier, sql.Identifier(EPOCH_COLUMN)),
            (version.epoch,),
        )

    def _make_temporary(self, cursor: Any, name: sql.Composable, columns: Sequence[str]) -> None:
        cursor.execute(
            sql.SQL("create temporary table {} on commit drop as select {} from {} with no data").format(
                name, listed(columns), self._identifier
            )
        )

    def _merge(self, loaded: sql.Composable, names: Sequence[str]) -> sql.Composable:
        """Return the statement that inserts the loaded rows, or replaces those with equal keys."""
        keys = self.options["key"]
        return sql.SQL(
            "insert into {table} ({names}) select {names} from {loaded} order by {keys} on conflict ({keys})"
            " do update set {changes} where {table}.{epoch} is null or {table}.{epoch} <= excluded.{epoch}"
        ).format(
            table=self._identifier,
            names=listed(names),
            loaded=loaded,
            keys=listed(keys),
            epoch=sql.Identifier(EPOCH_COLUMN),
            changes=sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names if name not in keys
            ),
        )

    @contextmanager
    def _transaction(self, version: Version) -> Iterator[Any]:
        """Open a transaction that holds the table's lock, and commit it at the end."""
        with self._server.transaction(str(version)) as cursor:
            self._resolved = schema_of(cursor, self._table)
            for name in sorted({self._table, f"{self._resolved}.{self._name}"}):
                cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"weir/{name}",))
            yield cursor

    def _make_marker(self, cursor: Any) -> None:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('weir_published', 0))")
        if not exists(cursor, self._marker):
            cursor.execute(
                sql.SQL(
                    "create table {} (target text, owner text, epoch text, number bigint not null,"
                    " digest text not null, rows bigint not null, attempt text not null,"
                    " at timestamp with time zone not null default now(), primary key (target, owner, epoch))"
                ).format(self._marker)
            )

    def _require_sole_owner(self, cursor: Any, version: Version) -> bool:
        """Require that no other sink publishes into the table, by whatever name; report whether this one has."""
        cursor.execute(
            sql.SQL("select distinct owner from {} where target = any(%s)").format(self._marker), (self._spellings,)
        )
        owners = {row[0] for row in cursor.fetchall()}
        other = next(iter(owners - {version.owner}), None)
        if other is not None:
            raise Misconfigured.of(
                "sinks.postgres_owned_by_another", table=self._table, other=other, owner=version.owner
            )
        return version.owner in owners

    def _seen(self, cursor: Any, version: Version) -> Outcome:
        found = outcome_of(version, *self._marked(cursor, version))
        is_kept = found not in (Outcome.COMMITTED, Outcome.EQUAL) or not version.rows or self._has_rows(cursor, version)
        return found if is_kept else Outcome.ABSENT

    def _has_rows(self, cursor: Any, version: Version) -> bool:
        """Report whether the table has any row of the epoch: somebody may have dropped it, or removed them.

        With mode="upsert" later epochs may have replaced all of them.
        """
        if not exists(cursor, self._identifier):
            return False
        if self.options["mode"] == "upsert":
            return True
        cursor.execute(
            sql.SQL("select exists (select from {} where {} = %s)").format(
                self._identifier, sql.Identifier(EPOCH_COLUMN)
            ),
            (version.epoch,),
        )
        return bool(cursor.fetchone()[0])

    def _marked(self, cursor: Any, version: Version) -> tuple[int, str | None]:
        if not exists(cursor, self._marker):
            return 0, None
        cursor.execute(
            sql.SQL(
                "select number, digest from {} where target = any(%s) and owner = %s and epoch = %s"
                " order by number desc limit 1"
            ).format(self._marker),
            self._key(version),
        )
        return cast("tuple[int, str] | None", cursor.fetchone()) or (0, None)

    def _require_new(self, cursor: Any, version: Version) -> None:
        number, digest = self._marked(cursor, version)
        if number and digest != ROLLED_BACK and self._has_rows(cursor, version):
            raise TargetConflict.of(
                "sinks.postgres_append_twice", table=self._table, number=number, epoch=version.epoch
            )

    def _create(self, cursor: Any, columns: Sequence[Column]) -> None:
        """Create the table, or the columns that it lacks, if that is declared."""
        if self.options["create"] != "if_missing":
            return
        keys, wanted = self.options["key"], [*columns, Column(EPOCH_COLUMN, "text")]
        if not exists(cursor, self._identifier):
            require_no_other_case(cursor, self._table, self._resolved, self._name)
            definitions = [
                *map(defined, wanted),
                *([sql.SQL("primary key ({})").format(listed(keys))] if keys else []),
            ]
            cursor.execute(sql.SQL("create table {} ({})").format(self._identifier, sql.SQL(", ").join(definitions)))
            cursor.execute(sql.SQL("create index on {} ({})").format(self._identifier, sql.Identifier(EPOCH_COLUMN)))
            return
        found = columns_there(cursor, self._resolved, self._name)
        require_same_case(self._table, [each.name for each in wanted], found)
        missing = [each for each in wanted if each.name not in found]
        if missing:  # "if not exists" alone would lock all readers out to find that out
            added = sql.SQL(", ").join(sql.SQL("add column if not exists {}").format(defined(each)) for each in missing)
            widened = sql.SQL("alter table {} {}").format(self._identifier, added)
            in_turns(cursor, lambda: cursor.execute(widened))

    def _existing(self, cursor: Any, columns: Sequence[Column]) -> Mapping[str, TableColumn]:
        found = columns_there(cursor, self._resolved, self._name)
        wanted = [*(each.name for each in columns), EPOCH_COLUMN]
        require_same_case(self._table, wanted, found)
        missing = [name for name in wanted if name not in found]
        if missing:
            what = f"has no column {', '.join(missing)}" if found else "does not exist, or the account may not use it"
            raise Misconfigured.of(
                "sinks.postgres_table_missing", table=self._table, what=what, epoch_column=EPOCH_COLUMN
            )
        return found

    def _require_key_columns(self, columns: Sequence[Column]) -> None:
        names = [each.name for each in columns]
        if not set(self.options["key"]) <= set(names):
            raise Misconfigured.of(
                "sinks.postgres_key_missing", table=self._table, key=self.options["key"], names=names
            )

    def _require_keys(self, cursor: Any, version: Version, columns: Sequence[Column]) -> None:
        """Require that no two rows have the same key, which the merge could not tell apart, and none has a null."""
        names = self.options["key"]
        loaded = self._loaded_keys(cursor, version, columns, names)
        for name in names:
            cursor.execute(sql.SQL("select from {} where {} is null limit 1").format(loaded, sql.Identifier(name)))
            if cursor.fetchone() is not None:
                raise Misconfigured.of("sinks.postgres_key_null", version=version, name=name, table=self._table)
        cursor.execute(
            sql.SQL("select {0}, count(*) from {1} group by {0} having count(*) > 1 limit 1").format(
                listed(names), loaded
            )
        )
        twice = cursor.fetchone()
        if twice is not None:
            raise Misconfigured.of(
                "sinks.postgres_key_twice",
                version=version,
                twice=twice[-1],
                values=dict(zip(names, twice, strict=False)),
                table=self._table,
            )

    def _loaded_keys(
        self, cursor: Any, version: Version, columns: Sequence[Column], names: Sequence[str]
    ) -> sql.Composable:
        """Load these columns of a version into a temporary table, and return its name."""
        known, loaded = {each.name: each for each in columns}, sql.Identifier("weir_keys")
        self._make_temporary(cursor, loaded, names)
        rows = as_csv([known[name] for name in names], batches(self.reach, version, names), None)
        copy(cursor, loaded, names, rows)
        return loaded

    def _require_unique(self, cursor: Any, columns: Sequence[Column]) -> None:
        """Require a unique index on the key, by which the merge finds equal keys: the server plans the merge."""
        names, keys = [*(each.name for each in columns), EPOCH_COLUMN], self.options["key"]
        self._require_immediate(cursor, keys)
        self._make_temporary(cursor, _LOADING, names)
        try:
            cursor.execute(sql.SQL("explain {}").format(self._merge(_LOADING, names)))
        except psycopg2.errors.InvalidColumnReference as error:
            listed = ", ".join(keys)
            raise Misconfigured.of(
                "sinks.postgres_index_missing", table=self._table, listed=listed, keys=keys
            ) from error

    def _require_immediate(self, cursor: Any, keys: Sequence[str]) -> None:
        """Require that no constraint on the key is deferrable, which the server refuses only when rows are merged."""
        cursor.execute(
            "select conname, contype, (select array_agg(attname::text) from pg_attribute where attrelid = conrelid"
            " and attnum = any(conkey)) from pg_constraint"
            " where conrelid = to_regclass(%s) and contype in ('p', 'u') and condeferrable",
            (self._identifier.as_string(cursor),),
        )
        for name, kind, columns in cursor.fetchall():
            if set(columns) != set(keys):
                continue
            key = f"{'primary key' if kind == 'p' else 'unique'} ({', '.join(keys)})"
            raise Misconfigured.of("sinks.postgres_index_deferrable", name=name, table=self._table, keys=keys, key=key)

    @property
    def _table(self) -> str:
        return str(self.options["table"])

    @property
    def _schema(self) -> str | None:
        return self._table.split(".")[0] if "." in self._table else None

    @property
    def _name(self) -> str:
        return self._table.split(".")[-1]

    @property
    def _identifier(self) -> sql.Composable:
        return sql.Identifier(self._resolved, self._name)

    @property
    def _marker(self) -> sql.Composable:
        return sql.Identifier(self._resolved, MARKER)

    @property
    def _spellings(self) -> list[str]:
        """The names by which markers, which are in the table's schema, know the table."""
        return [self._name, f"{self._resolved}.{self._name}"]

    def _key(self, version: Version) -> tuple[list[str], str, str]:
        return self._spellings, version.owner, version.epoch
