"""Notices a server that has fallen silent in the middle of a transaction, where TCP sees nothing wrong.

A server or pooler that is suspended, or behind a proxy that keeps connections of its own, acknowledges and never
answers. A long COPY or merge is silent, too, so no statement has a time limit: other connections ask whether it lives.
Invariant: a transaction of a server that answers others is never ended. Nor is one of a pooler that does: a query may
wait there until this very transaction ends, so none is sent.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg2
from psycopg2 import extensions

from weir.errors import Message

PAUSE_SECONDS: Final = 60.0
"""The time between two questions: a shorter transaction has none."""

ANSWER_SECONDS: Final = 15.0
"""How long a server may take to log a new connection in."""

SILENCES: Final = 3
"""So many questions in a row without an answer end the transaction: a server under load may miss one."""


class ServerSilent(Exception):
    """The server has not answered other connections either, and the transaction was cut off."""


@contextmanager
def watched(connection: Any, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Cut off a connection whose server falls silent; `parameters` of libpq lead to it. Raises ServerSilent then."""
    done, silent = threading.Event(), threading.Event()
    # Of its own: the number of a closed one may be that of another connection by then.
    own = socket.socket(fileno=os.dup(connection.fileno()))
    threading.Thread(target=_watch, args=(own, parameters, done, silent), daemon=True).start()
    try:
        yield
    except psycopg2.Error as error:
        if not silent.is_set():
            raise
        raise ServerSilent(
            Message("sinks.postgres_unanswered", silences=SILENCES, answer_seconds=ANSWER_SECONDS)
        ) from error
    finally:
        done.set()


def _watch(own: socket.socket, parameters: Mapping[str, Any], done: threading.Event, silent: threading.Event) -> None:
    with own:
        silences = 0
        while not done.wait(PAUSE_SECONDS):
            silences = 0 if answers(parameters) else silences + 1
            if silences == SILENCES and not done.is_set():
                silent.set()
                with suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)
                return


def answers(parameters: Mapping[str, Any]) -> bool:
    """Report whether the server, or a pooler before it, answers a new connection, be it by a refusal."""
    until = time.monotonic() + ANSWER_SECONDS
    try:
        asked = psycopg2.connect(**parameters, async_=1)
        try:
            _await(asked, until)
        finally:
            asked.close()
    except psycopg2.Error:
        return True
    except TimeoutError:
        return False
    return True


def _await(asked: Any, until: float) -> None:
    while (state := asked.poll()) != extensions.POLL_OK:
        waiting = select.poll()  # `select.select` takes no file above 1023
        waiting.register(asked.fileno(), select.POLLIN if state == extensions.POLL_READ else select.POLLOUT)
        if not waiting.poll(max(until - time.monotonic(), 0.0) * 1000):
            raise TimeoutError
