"""Notifications as receivers get them: what happened to a dataflow, as JSON (docs/notifications.md).

Invariant: the id is derived from what happened, so that a receiver can drop what it gets once more. Fields may be
added in a version, `details` too; none is removed and none gets another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from weir.dataflow.notifications import EventKind
from weir.formats.paths import checkpoint_path

VERSION: Final = 1

_UNQUOTED: Final = "@:+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a dataflow; `text` says it in a sentence. `subject` is part of the id.

    `is_rebuilt` says that a ledger that was rebuilt, or had lost commits, has found it in the store: its receivers may
    have been told before.
    """

    kind: EventKind
    dataflow: str
    subject: tuple[str, ...]
    text: str
    epoch: str | None = None
    run: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    is_rebuilt: bool = False

    @property
    def id(self) -> str:
        """The id, in ASCII: an HTTP header has it."""
        return "/".join([self.dataflow, self.kind.value, *(quote(part, safe=_UNQUOTED) for part in self.subject)])

    def to_json(self, at: datetime) -> dict[str, Any]:
        """Return it as plain JSON values; `at` is when the ledger recorded it."""
        return {
            "version": VERSION,
            "id": self.id,
            "kind": self.kind.value,
            "dataflow": self.dataflow,
            "epoch": self.epoch,
            "run": self.run,
            "at": at.astimezone(UTC).isoformat(),
            "text": self.text,
            "rebuilt": self.is_rebuilt,
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that something happened to, None where it is of none."""

    dataflow: str
    epoch: str | None
    run: str | None


def checkpoint_event(kind: EventKind, of: Subject, number: int, text: str, **details: Any) -> Event:
    """Return what happened to a checkpoint: `text` goes on after its name."""
    return Event(
        kind=kind,
        dataflow=of.dataflow,
        subject=(str(number),),
        text=f"Checkpoint {number} of {of.dataflow}{f', epoch {of.epoch},' if of.epoch else ''} {text}",
        epoch=of.epoch,
        run=of.run,
        details={"checkpoint": number, "path": checkpoint_path(of.dataflow, number), **details},
    )


def published_event(of: Subject, sink: str, version: int, attempt: str, pointer: str) -> Event:
    """Return that a version of a sink is published.

    `attempt` is that of the closing task: a number may be given out again once its pointer and the ledger are lost.
    """
    return Event(
        kind=EventKind.VERSION_PUBLISHED,
        dataflow=of.dataflow,
        subject=(f"{sink}@{of.epoch}", str(version), attempt),
        text=f"Version {version} of {of.dataflow}.{sink}, epoch {of.epoch}, is published",
        epoch=of.epoch,
        run=of.run,
        details={"sink": sink, "version": version, "pointer": pointer},
    )


def person_event(what: str, of: Subject, subject: tuple[str, ...], text: str, **details: Any) -> Event:
    """Return that a person is needed; `what` names the case."""
    return Event(
        kind=EventKind.PERSON_NEEDED,
        dataflow=of.dataflow,
        subject=(what, *subject),
        text=text,
        epoch=of.epoch,
        run=of.run,
        details={"what": what, **details},
    )


def failed_over_event(of: Subject, incident: tuple[str, ...], text: str, **details: Any) -> Event:
    """Return that a failure or a loss is recovered from; `incident` tells it apart from others."""
    return _of_incident(EventKind.FAILED_OVER, of, incident, text, details)


def healed_event(failed_over: str, of: Subject, text: str, **details: Any) -> Event:
    """Return that a run is whole again after a failover; `failed_over` is the id of its event."""
    incident = tuple(unquote(part) for part in failed_over.split("/")[2:])
    return _of_incident(EventKind.HEALED, of, incident, text, {"failed_over": failed_over, **details})


def deadline_event(of: Subject, text: str, **details: Any) -> Event:
    """Return that an epoch was not published by its time."""
    return _of_incident(EventKind.DEADLINE_MISSED, of, (str(of.epoch),), text, details)


def _of_incident(
    kind: EventKind, of: Subject, subject: tuple[str, ...], text: str, details: Mapping[str, Any]
) -> Event:
    return Event(
        kind=kind, dataflow=of.dataflow, subject=subject, text=text, epoch=of.epoch, run=of.run, details=details
    )
