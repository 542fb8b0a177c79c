"""A ledger that loses the answer to a commit while the server is still busy with it."""

import threading
from contextlib import contextmanager

from tests import store_guard

from weir.errors import Retryable
from weir.ledger.ledger import Ledger


class LateLedger(Ledger):
    """What was lost ends when the next writing transaction waits for it, or when it is awaited (`settle`).

    `lose(n)` chooses the n-th writing transaction from now on. With `commits` false the server rolls it back. From then
    on, with `is_gone`, nothing that writes begins any more.
    """

    def __init__(self, engine):
        super().__init__(engine)
        self._left, self._late, self._is_awaited = 0, None, threading.Event()
        self._commits, self._is_gone = True, False

    def lose(self, number=1, *, commits=True, is_gone=False):
        self._left, self._commits, self._is_gone = number, commits, is_gone

    @contextmanager
    def transaction(self, dataflow=None):
        if dataflow is None or (self._left == 0 and self._late is None):
            with super().transaction(dataflow) as session:
                yield session
            return
        self._left -= 1
        if self._left != 0:
            if self._late is not None and self._is_gone:
                raise Retryable("the ledger does not answer: connection refused")
            if self._late is not None:
                self._is_awaited.set()
            with super().transaction(dataflow) as session:
                yield session
            return
        session = self._begun(dataflow)
        yield session
        session.flush()
        store_guard.forget(session)
        self._late = threading.Thread(target=self._end, args=(session,))
        self._late.start()
        raise Retryable("the ledger does not answer: server closed the connection unexpectedly")

    def _end(self, session):
        self._is_awaited.wait(30)
        if self._commits:
            session.commit()
        session.close()

    def settle(self):
        """Let the lost transaction end, and the ledger answer again."""
        self._is_awaited.set()
        self._late.join()
        self._left, self._late, self._is_gone = 0, None, False
