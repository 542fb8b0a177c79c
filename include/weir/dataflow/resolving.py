"""What the resolver of a source is given, and what it returns: splits, a position, or that the source is not ready.

Invariant: a resolver returns one split for each subtask, a JSON value that is not null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from weir.errors import Misconfigured
from weir.intervals import in_zone
from weir.secrecy import secrets_in
from weir.wording import shortened


def _no_connection(conn_id: str) -> Any:
    raise Misconfigured.of("dataflow.no_connections_here", conn_id=conn_id)


def _no_variable(key: str) -> Any:
    raise Misconfigured.of("dataflow.no_variables_here", key=key)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a source that goes on reads in an epoch: a split for each subtask, and the position at which it ends.

    Both are JSON values. The next epoch's resolver gets them in `ctx.previous`, and begins at the position.
    """

    splits: Sequence[Any]
    position: Any


@dataclass(frozen=True, slots=True)
class NotReady:
    """The answer of a resolver whose source has not all that the epoch reads: the task waits, and it is asked again.

    The wait costs no try. `reason` is told by the task's log and by `weir why`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ResolveContext:
    """The argument of a source's `resolve` function, which is called once per run, for all subtasks, without Spark.

    `epoch` is the start of `interval` as `20130101T000000Z`; `interval` is in UTC, its end exclusive, `local_interval`
    the same in the time zone of the schedule. `options` are those of the source; `connection` looks up an Airflow
    connection by its id (see `weir.connections`), `variable` an Airflow variable by its key.
    """

    dataflow: str
    epoch: str
    interval: tuple[datetime, datetime]
    parallelism: int
    parameters: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    connection: Callable[[str], Any] = _no_connection
    variable: Callable[[str], Any] = _no_variable
    zone: str = "UTC"
    """The time zone of the schedule."""
    previous: Resolved | None = None
    """Of a source that goes on: what the epoch before has read; None in the first epoch."""
    recorded: Resolved | None = None
    """Of a source that goes on: what this epoch is recorded to read. It is only divided anew: another parallelism, or
    other options, ask for other splits of the same rows, with the same position."""
    waited: timedelta = timedelta(0)
    """How long the task has waited for a source that was not ready, by the clocks of the machines that asked it."""

    @property
    def local_interval(self) -> tuple[datetime, datetime]:
        """The interval in the time zone of the schedule: where clocks change, a day has 23 or 25 hours."""
        return in_zone(self.interval, self.zone)


def checked_splits(answer: Any, owner: str, parallelism: int) -> list[Any]:
    """Return the splits that the function `owner` has returned as plain JSON values.

    Raises Misconfigured if they are not a list of JSON values, one for each subtask, or look like secrets.
    """
    if not isinstance(answer, (list, tuple)) or len(answer) != parallelism or None in answer:
        raise Misconfigured.of(
            "dataflow.splits_malformed", owner=owner, parallelism=parallelism, described=_described(answer)
        )
    try:
        splits: list[Any] = json.loads(json.dumps(answer, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Misconfigured.of("dataflow.splits_not_json", owner=owner, error=error) from error
    secret = next(secrets_in("its answer", splits), None)
    if secret is not None:
        raise Misconfigured.of("dataflow.splits_have_secret", owner=owner, secret=secret)
    return splits


def checked_position(position: Any, owner: str) -> Any:
    """Return the position that the resolver `owner` has returned as a plain JSON value. Raises as `checked_splits`."""
    (checked,) = checked_splits([position], owner, 1)
    return checked


def _described(answer: object) -> str:
    if isinstance(answer, (list, tuple)):
        return f"{len(answer)} values: {shortened(str(answer), 200)}"
    return f"{type(answer).__name__}: {shortened(str(answer), 200)}"
