"""Counts what a ledger is asked: statements, rows that were fetched, and steps of SQLite's virtual machine."""

from collections import Counter
from contextlib import contextmanager

from sqlalchemy import Engine, event

FINE = 10
"""Every so many steps are counted as one: SQLite tells no finer without a call a step."""


class Counted:
    """What was asked meanwhile: of each statement how often, and how many rows were fetched."""

    def __init__(self):
        self.statements, self.rows, self.steps = Counter(), Counter(), Counter()
        self._now = ""

    def total(self):
        """Statements, rows, steps."""
        return self.statements.total(), self.rows.total(), self.steps.total()

    def began(self, statement):
        self._now = statement
        self.statements[statement] += 1

    def step(self):
        self.steps[self._now] += 1
        return 0


class _Rows:
    """A cursor of a driver that counts the rows it gives."""

    def __init__(self, cursor, counted, statement):
        self._cursor, self._counted, self._statement = cursor, counted, statement

    def __getattr__(self, name):
        return getattr(self._cursor, name)

    def _count(self, rows):
        self._counted.rows[self._statement] += len(rows)
        return rows

    def fetchall(self):
        return self._count(self._cursor.fetchall())

    def fetchmany(self, *size):
        return self._count(self._cursor.fetchmany(*size))

    def fetchone(self):
        row = self._cursor.fetchone()
        self._count([] if row is None else [row])
        return row


@contextmanager
def counting():
    """Count what all ledgers of this process are asked."""
    counted, connections = Counted(), {}

    def before(_connection, cursor, statement, _parameters, _context, _many):
        counted.began(statement)
        connection = getattr(cursor, "connection", None)
        if hasattr(connection, "set_progress_handler") and id(connection) not in connections:
            connections[id(connection)] = connection
            connection.set_progress_handler(counted.step, FINE)

    def after(_connection, cursor, statement, _parameters, context, _many):
        context.cursor = _Rows(cursor, counted, statement)

    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "after_cursor_execute", after)
    try:
        yield counted
    finally:
        event.remove(Engine, "before_cursor_execute", before)
        event.remove(Engine, "after_cursor_execute", after)
        for connection in connections.values():
            connection.set_progress_handler(None, FINE)
