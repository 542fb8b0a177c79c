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


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that something happened to, None where it is of none."""

    dataflow: str
    epoch: str | None
    run: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a dataflow; `text` says it in a sentence. `subject` is part of the id.

    `is_rebuilt` says that a ledger that was rebuilt, or had lost commits, has found it in the store: its receivers may
    have been told before.
    """

    kind: EventKind
    of: Subject
    subject: tuple[str, ...]
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)
    is_rebuilt: bool = False

    @property
    def dataflow(self) -> str:
        """The dataflow that it happened to."""
        return self.of.dataflow

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
            "epoch": self.of.epoch,
            "run": self.of.run,
            "at": at.astimezone(UTC).isoformat(),
            "text": self.text,
            "rebuilt": self.is_rebuilt,
            "details": dict(self.details),
        }


def checkpoint_event(kind: EventKind, of: Subject, number: int, text: str, **details: Any) -> Event:
    """Return what happened to a checkpoint: `text` goes on after its name."""
    told = f"Checkpoint {number} of {of.dataflow}{f', epoch {of.epoch},' if of.epoch else ''} {text}"
    path = checkpoint_path(of.dataflow, number)
    return Event(kind, of, (str(number),), told, {"checkpoint": number, "path": path, **details})


def published_event(of: Subject, sink: str, version: int, attempt: str, pointer: str) -> Event:
    """Return that a version of a sink is published.

    `attempt` is that of the closing task: a number may be given out again once its pointer and the ledger are lost.
    """
    text = f"Version {version} of {of.dataflow}.{sink}, epoch {of.epoch}, is published"
    details = {"sink": sink, "version": version, "pointer": pointer}
    return Event(EventKind.VERSION_PUBLISHED, of, (f"{sink}@{of.epoch}", str(version), attempt), text, details)


def person_event(what: str, of: Subject, subject: tuple[str, ...], text: str, **details: Any) -> Event:
    """Return that a person is needed; `what` names the case."""
    return Event(EventKind.PERSON_NEEDED, of, (what, *subject), text, {"what": what, **details})


def failed_over_event(of: Subject, incident: tuple[str, ...], text: str, **details: Any) -> Event:
    """Return that a failure or a loss is recovered from; `incident` tells it apart from others."""
    return Event(EventKind.FAILED_OVER, of, incident, text, details)


def healed_event(failed_over: str, of: Subject, text: str, **details: Any) -> Event:
    """Return that a run is whole again after a failover; `failed_over` is the id of its event."""
    incident = tuple(unquote(part) for part in failed_over.split("/")[2:])
    return Event(EventKind.HEALED, of, incident, text, {"failed_over": failed_over, **details})


def deadline_event(of: Subject, text: str, **details: Any) -> Event:
    """Return that an epoch was not published by its time."""
    return Event(EventKind.DEADLINE_MISSED, of, (str(of.epoch),), text, details)
