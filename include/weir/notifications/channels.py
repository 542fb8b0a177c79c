"""How a receiver is told of one event: a call of a function, a POST, a call of an Airflow notifier.

Invariants: what a call returns from without an error has been received. What is called is imported only here, in the
process of a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from weir.code.functions import load
from weir.connections import Connections
from weir.dataflow.notifications import Channel, Receiver
from weir.errors import Message, Misconfigured
from weir.notifications.webhook import post

AirflowContext = Callable[[], Mapping[str, Any]]
"""Returns Airflow's context of the present task."""

EVENT: Final = "weir_event"
"""The key of a notification in the context that a notifier gets."""


def send(receiver: Receiver, document: dict[str, Any], connections: Connections, context: AirflowContext) -> None:
    """Tell a receiver of an event. Raises Misconfigured, Retryable, or what the receiver's own code raises."""
    match receiver.channel:
        case Channel.CALLBACK:
            imported(receiver)(document, **receiver.options)
        case Channel.WEBHOOK:
            post(connections(receiver.address), str(receiver.options.get("path", "")), document)
        case Channel.NOTIFIER:
            _notify(receiver, {**context(), EVENT: document})


def imported(receiver: Receiver) -> Callable[..., Any]:
    """Import what a callback or a notifier names. Raises Misconfigured."""
    return load(receiver.address, receiver.name)


def _notify(receiver: Receiver, context: Mapping[str, Any]) -> None:
    """Call a notifier, which renders its templates with the context, and changes both: each call has its own."""
    make = partial(imported(receiver), **receiver.options)
    made = make()
    if not callable(made):
        raise Misconfigured(Message("notifications.not_callable", address=receiver.address, name=type(made).__name__))
    try:
        made(dict(context))
    except NotImplementedError:  # it has only `async_notify`
        made = make()
        made.context = dict(context)
        asyncio.run(_awaited(made))


async def _awaited(notifier: Any) -> None:
    await notifier
