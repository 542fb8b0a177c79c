"""A receiver of notifications in a simulation: what it got, in what order, and what it must have got.

Invariant: it depends on nothing but the calls; it fails at every fifth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tests.simulator.history.history import History

from weir.dataflow import Receiver, notifier

RECEIVED_BY: Final = "received_by"
"""The key of the log in the context of a notifier."""


class Log:
    """The ids of all notifications that have arrived; `is_early` are those whose manifest was not there then."""

    def __init__(self, history: History) -> None:
        self.ids: list[str] = []
        self.is_early: list[str] = []
        self._history, self._calls = history, 0

    def receive(self, event: Mapping[str, Any]) -> None:
        """Note a notification, or fail."""
        self._calls += 1
        if self._calls % 5 == 0:
            raise ConnectionError("the simulated receiver is away")
        path = event["details"].get("path" if event["kind"] == "checkpoint_completed" else "pointer")
        if path is not None and path not in self._history.created:
            self.is_early.append(event["id"])
        self.ids.append(event["id"])


class Simulated:
    """The notifier: it finds the log of its simulation in the context."""

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Have the log receive the notification."""
        context[RECEIVED_BY].receive(context["weir_event"])


def simulated_receiver() -> Receiver:
    """Return the receiver for a scene."""
    return notifier(f"{__name__}:{Simulated.__name__}")


class _Recorded(NamedTuple):
    id: int
    event: str
    dataflow: str


class _Checkpoint(NamedTuple):
    number: int
    dataflow: str
    folder: str
    completed_at: str | None


class _Publication(NamedTuple):
    run: str
    sink: str
    version: int
    attempt: str
    published_at: str | None


def not_told(history: History, log: Log, dataflow: str, *, may_be_lost: bool) -> Iterator[str]:
    """Yield what the receiver has not got, or not in order, though all is quiet; `may_be_lost`: the ledger was."""
    recorded = [row.event for row in sorted(history.ledger.rows(_Recorded, "notification")) if row.dataflow == dataflow]
    first = list(dict.fromkeys(log.ids))
    yield from (f"{each} was told before its manifest was there" for each in log.is_early)
    yield from (f"{each} is recorded and was never told" for each in recorded if each not in first)
    if may_be_lost:
        return
    known = set(recorded)
    if [each for each in first if each in known] != recorded:
        yield f"told in the order {first}, and recorded as {recorded}"
    for wanted in _must_be_recorded(history, dataflow):
        if wanted not in known:
            yield f"{wanted} has happened, and is not recorded"


def _must_be_recorded(history: History, dataflow: str) -> Iterator[str]:
    for checkpoint in history.ledger.rows(_Checkpoint, "checkpoint"):
        if checkpoint.dataflow == dataflow and checkpoint.completed_at is not None and not checkpoint.folder:
            yield f"{dataflow}/checkpoint_completed/{checkpoint.number}"
    newest = {}
    for row in sorted(history.ledger.rows(_Publication, "publication")):
        if row.published_at is not None:
            newest[row.run, row.sink] = row
    for row in newest.values():
        of, _, epoch = row.run.partition("@")
        if of == dataflow:
            yield f"{dataflow}/version_published/{row.sink}@{epoch}/{row.version}/{row.attempt}"
