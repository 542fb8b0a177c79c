"""The store refuses a thread that has a writing transaction of a ledger open: all other writers wait for it.

It watches what really happens, in all tests: the transactions of any engine that a ledger has opened, and the
operations of any store. Operations in threads of a pool are seen where the pool is asked for (`Store.workers`).
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

from sqlalchemy import Engine, event

from weir.ledger.database.reading import is_writing
from weir.store.store import Store

_open = threading.local()


class StoreInTransaction(AssertionError):
    """The store is asked while a transaction holds the ledger's lock."""


def _begin(connection):
    if is_writing(connection):
        _open.connections = [*_still_open(), connection]


def _still_open():
    return [each for each in getattr(_open, "connections", ()) if not each.closed and each.in_transaction()]


def forget(session):
    """This thread no longer has the transaction of a session: somebody else ends it."""
    _open.connections = [each for each in _still_open() if each is not session.connection()]


def _require_none(what):
    if _still_open():
        raise StoreInTransaction(f"the store is to {what} while this thread has a writing transaction of the ledger")


@contextmanager
def watched():
    """Watch all ledgers and stores of this process."""
    errors, workers = Store._translated_errors, Store.workers

    def translated_errors(store, action, path):
        _require_none(f"{action} {path}")
        return errors(store, action, path)

    def counted(store):
        _require_none("be asked by several threads")
        return workers.fget(store)

    event.listen(Engine, "begin", _begin)
    Store._translated_errors, Store.workers = translated_errors, property(counted)
    try:
        yield
    finally:
        Store._translated_errors, Store.workers = errors, workers
        event.remove(Engine, "begin", _begin)
