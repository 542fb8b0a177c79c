"""The fingerprint of a whole world: ledger, store, Airflow, and what each process knows.

Invariant: it does not tell in which order things came that do not depend on each other. So numbers that the ledger has
given to rows are left out, or replaced by what names the row; of results of one partition it tells which is newer.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from tests.simulator.exhaustive.stepping import SteppedProcess
from tests.simulator.ledger import WatchedConnection
from tests.simulator.world import World

from weir.store.store import MARKER

_NUMBERS: Final = re.compile(r"(^|_)(id|result|failover|incident|revision|closed_result)(_\d+)?$")
"""The columns of numbers that depend on the order of independent transactions."""

STORE_ID: Final = "store_id"


def digest(*parts: object) -> bytes:
    """Return a digest of values that print as they are."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).digest()


def without_numbers(columns: list[str], rows: Iterable[Any]) -> list[Any]:
    """Return rows without the numbers that the ledger has given, and without the random id of the store."""
    hidden = [str if name == STORE_ID else int if _NUMBERS.search(name) else None for name in columns]
    if not any(hidden):
        return list(rows)
    return [row and tuple(_shown(*each) for each in zip(hidden, row, strict=True)) for row in rows]


def _shown(hidden: type | None, value: Any) -> Any:
    return "#" if type(value) is hidden else value


class Fingerprints:
    """Of one world; what has not changed since the last is not read again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ledger: tuple[int, bytes] = (-1, b"")
        self._all_files: tuple[int, bytes] = (-1, b"")
        self._files: dict[str, tuple[bytes, bytes]] = {}

    def of_world(self, processes: Iterable[tuple[str, SteppedProcess]], more: object) -> bytes:
        """Return the fingerprint; `more` is what the schedule may still do."""
        known = [(name, each.memory, each.points) for name, each in processes]
        return digest(self._of_ledger(), self._of_all_files(), self.of_airflow(), sorted(known), more)

    def _of_all_files(self) -> bytes:
        changes = self._world.files.changes
        if self._all_files[0] != changes:
            self._all_files = changes, self.of_store("")
        return self._all_files[1]

    def of_store(self, path: str) -> bytes:
        """Return that of a file, or of all files below a folder."""
        data, prefix = self._world.files.data, f"{path}/" if path else ""
        if path in data:
            return self._of_file(path)
        return digest(sorted((name, self._of_file(name)) for name in data if name.startswith(prefix)))

    def _of_file(self, path: str) -> bytes:
        data = b"" if path == MARKER else self._world.files.data[path]
        known = self._files.get(path)
        if known is None or known[0] is not data:
            known = self._files[path] = data, digest(data)
        return known[1]

    def of_airflow(self) -> bytes:
        """Return that of all task instances, and which process each heeds."""
        airflow = self._world.airflow
        tasks = [
            (key, task.state, task.try_number, task.max_tries, task.not_before, task.notes)
            for key, task in airflow.tasks.items()
        ]
        owners = [
            (key, process.number) for key, process in airflow.owners.items() if airflow.tasks[key].state == "running"
        ]
        return digest(
            sorted(tasks, key=repr), sorted(owners, key=repr), airflow.time, sorted(airflow.clear_numbers.items())
        )

    def _of_ledger(self) -> bytes:
        connection = self._world.ledger.connection
        if self._ledger[0] != connection.total_changes:
            self._ledger = connection.total_changes, _of_tables(connection)
        return self._ledger[1]


def _of_tables(connection: WatchedConnection) -> bytes:
    watch, connection.watch = connection.watch, None
    try:
        return digest(_results(connection), *(_rows(connection, name) for name in _tables(connection)))
    finally:
        connection.watch = watch


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in found if name not in ("result", "alembic_version", "sqlite_sequence")]


_RESULT: Final = "(SELECT attempt || stage || subtask || layout FROM result WHERE result.id = {})"
_NAMES: Final = {
    ("lease", "result"): _RESULT.format("lease.result"),
    ("result_event", "result"): _RESULT.format("result_event.result"),
    ("run", "closed_result"): _RESULT.format("run.closed_result"),
    ("pending_clear", "failover"): "(SELECT cause || attempt || region FROM failover WHERE failover.id = failover)",
    ("failover", "incident"): "(failover.incident IS NULL)",
}


def _rows(connection: sqlite3.Connection, table: str) -> list[Any]:
    """Return the rows of a table, sorted, without their numbers."""
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    named = [_NAMES.get((table, each), f'"{each}"') for each in columns if each not in ("revision", STORE_ID)]
    rows = connection.execute(f"SELECT {', '.join(named)} FROM {table}").fetchall()  # noqa: S608 - no input
    at = columns.index("id") if "id" in columns else None
    if at is not None and rows and type(rows[0][at]) is int:
        rows = [row[:at] + row[at + 1 :] for row in rows]
    return sorted(rows, key=repr)


def _results(connection: sqlite3.Connection) -> list[Any]:
    """Return the results of each partition in their order, and whether each is newer than its run's last close."""
    is_older = "result.id <= coalesce(closed_result, -1)"
    query = f"SELECT {is_older}, result.* FROM result JOIN run ON run.id = run ORDER BY result.id"  # noqa: S608 - no input
    found = connection.execute(query).fetchall()
    rows = [(row[0], *row[2:]) for row in found]
    return sorted(rows, key=lambda row: repr(row[1:5]))  # a sort is stable
