"""Receivers of notifications about a dataflow. Data only: nothing is imported or reached here.

Invariant: a receiver has a name that no other of its dataflow has, under which the ledger remembers what it was told.
Its options are JSON values and no secrets; accounts are Airflow connections.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from weir.dataflow.arguments import answers, reference_for, require, require_connection, shown
from weir.errors import Misconfigured
from weir.secrecy import secrets_in
from weir.typed_json import AsJson

MAX_NAME: Final = 250

_REFERENCE: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[:.](?P<name>[A-Za-z_]\w*)", re.ASCII)


class EventKind(Enum):
    """What a notification is about. The values are part of the notification's format."""

    CHECKPOINT_COMPLETED = "checkpoint_completed"
    CHECKPOINT_ABORTED = "checkpoint_aborted"
    """It will never be completed; or it was, and its manifest was lost since."""
    CHECKPOINT_SUBSUMED = "checkpoint_subsumed"
    VERSION_PUBLISHED = "version_published"
    """Its pointer can be read."""
    VERSION_DELIVERED = "version_delivered"
    """The target of its sink has it, or rows equal to it."""
    PERSON_NEEDED = "person_needed"
    """Something will not go on by itself."""
    DEADLINE_MISSED = "deadline_missed"
    """An epoch was not published by its time."""
    FAILED_OVER = "failed_over"
    """Weir recovers from a loss or a failure."""
    HEALED = "healed"
    """What it has recovered from is over: its run is whole again."""


ONLY_IF_ASKED_FOR: Final = (EventKind.FAILED_OVER, EventKind.HEALED)
"""The kinds of what needs nobody: a receiver that names no kinds is not told of them."""


class Channel(Enum):
    """How a receiver is told. The values are stored in the ledger."""

    CALLBACK = "callback"
    WEBHOOK = "webhook"
    NOTIFIER = "notifier"


@dataclass(frozen=True, slots=True)
class Receiver(AsJson):
    """Somebody who is told: a function, an Airflow connection or a notifier, by its `address`, with its options.

    `kinds` are the kinds of events that it is told of; none given are all but `failed_over` and `healed`.
    """

    channel: Channel
    address: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kinds: tuple[EventKind, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        what = f"{self.channel.value}({self.address!r})"
        try:
            options = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise Misconfigured.of("dataflow.notify_options_not_json", what=what, error=error) from error
        secret = next(secrets_in("its options", options), None)
        if secret is not None:
            raise Misconfigured.of("dataflow.notify_options_have_secret", what=what, secret=secret)
        name: object = self.name or f"{self.channel.value} {self.address}"
        if not isinstance(name, str) or len(name) > MAX_NAME:
            raise Misconfigured.of("dataflow.receiver_malformed", what=what, most=MAX_NAME, name=name)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kinds", _kinds(what, self.kinds))

    @property
    def wanted(self) -> tuple[EventKind, ...]:
        """The kinds of events that it is told of."""
        return self.kinds or tuple(kind for kind in EventKind if kind not in ONLY_IF_ASKED_FOR)

    def wants(self, kind: EventKind) -> bool:
        """Report whether it is told of events of a kind."""
        return kind in self.wanted


def callback(function: str, *, kinds: str | Sequence[str] = (), receiver: str = "", **options: Any) -> Receiver:
    """Call a function with each notification, a dict (docs/notifications.md), and the options as keyword arguments.

    `function` is "module:function"; the task that delivers imports it. Whatever it raises has it called again later.
    `kinds` are the kinds of events that it is told of, such as "person_needed": by default all but "failed_over" and
    "healed". `receiver` is the name under which the ledger remembers what it was told; it tells apart two receivers
    with the same function.
    """
    return Receiver(Channel.CALLBACK, _reference("callback", function), options, _texts(kinds), receiver)


@answers()
def webhook(conn_id: str, path: str = "", *, kinds: str | Sequence[str] = (), receiver: str = "") -> Receiver:
    """POST each notification as JSON to the host of an Airflow connection of type http, at `path` below it.

    The connection's password is sent as a bearer token (with a login: as basic authentication), its extra fields as
    headers. An answer of 2xx means that the notification was received. `kinds` and `receiver` as for `callback`.
    """
    require_connection("webhook", conn_id, "http")
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise Misconfigured.of("dataflow.webhook_path_malformed", conn_id=conn_id, path=path)
    named = receiver or f"{Channel.WEBHOOK.value} {conn_id}{path}"
    return Receiver(Channel.WEBHOOK, conn_id, {"path": path} if path else {}, _texts(kinds), named)


def notifier(reference: str, *, kinds: str | Sequence[str] = (), receiver: str = "", **options: Any) -> Receiver:
    """Have an Airflow notifier send each notification: `reference` is its class, or a function that makes one.

    It is made anew for each notification, with the options as keyword arguments, and called with Airflow's context of
    the task that delivers; its templates find the notification as `weir_event`. `kinds` and `receiver` as for
    `callback`.
    """
    return Receiver(Channel.NOTIFIER, _reference("notifier", reference), options, _texts(kinds), receiver)


def sound_receivers(dataflow: str, receivers: object) -> tuple[Receiver, ...]:
    """Return the receivers of a dataflow. Raises Misconfigured for what is none, or where two have the same name."""
    if isinstance(receivers, Receiver | str) or not isinstance(receivers, Sequence):
        raise Misconfigured.of("dataflow.notify_not_a_list", dataflow=dataflow)
    for each in receivers:
        if not isinstance(each, Receiver):
            raise Misconfigured.of("dataflow.not_a_receiver", dataflow=dataflow, each=each)
    twice = [name for name, count in Counter(each.name for each in receivers).items() if count > 1]
    if twice:
        raise Misconfigured.of("dataflow.receiver_twice", dataflow=dataflow, twice=twice[0])
    return tuple(receivers)


def _reference(what: str, given: object) -> str:
    found = _REFERENCE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise Misconfigured.of(
            "dataflow.notify_reference_malformed",
            what=what,
            example=reference_for(given) or "module:name",
            given=shown(given),
        )
    return f"{found['module']}:{found['name']}"


def _texts(kinds: str | Sequence[str]) -> Any:
    require("a receiver", "kinds", kinds, (str, list, tuple), f"some of {', '.join(each.value for each in EventKind)}")
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def _kinds(what: str, given: Sequence[object]) -> tuple[EventKind, ...]:
    known = {kind.value: kind for kind in EventKind}
    found = [kind if isinstance(kind, EventKind) else known.get(str(kind)) for kind in given]
    for kind, text in zip(found, given, strict=True):
        if kind is None:
            raise Misconfigured.of("dataflow.event_kind_unknown", what=what, text=text, known=known)
    return tuple(kind for kind in EventKind if kind in found)
