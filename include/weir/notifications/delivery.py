"""Delivers notifications to their receivers: at least once, in their order by receiver, with stable ids.

Invariant 7: an event is in the ledger since the transaction that made it a fact, and a receiver's `told` is raised only
after it has answered: so a kill may have it told twice, and loses nothing. What a call returns from without an error
has been received. The first time that each event arrives is in order; a process that was suspended may send one once
more, late.

A receiver that does not answer holds up only itself: each call has a time limit, each pass too, and after a failure it
is left alone for a while. No transaction of the ledger waits for a receiver. What is called is imported only here, in
the process of a task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from weir.code.functions import load
from weir.connections import Connections
from weir.coordination.services import Services
from weir.dataflow.notifications import Channel, Receiver
from weir.errors import Misconfigured
from weir.ledger.database.outbox_tables import NotificationRow
from weir.ledger.outbox import Waiting, forget_told, has_old, hold, let_go, note_not_told, note_told, waiting_receivers
from weir.notifications.webhook import post
from weir.secrecy import without_secrets
from weir.store.worker_threads import in_time

CALL_SECONDS: Final = 30.0
"""How long a receiver may take for one event: less than its lease lasts."""

HUNG_SECONDS: Final = 3.0
"""A receiver that takes longer to fail is not tried once more by the same task, for another dataflow."""

PASS_SECONDS: Final = 60.0
"""How long a task tells one receiver: what is left then, upkeep or the next closing task tells."""


Hung = set[tuple[Channel, str]]
"""The addresses that took long to fail: other dataflows may have the same."""


def deliver(
    services: Services, dataflow: str, context: AirflowContext, hung: Hung | None = None
) -> tuple[int, list[Waiting]]:
    """Tell all receivers of a dataflow what waits for them; return how many were told, and those who still wait.

    `context` returns Airflow's context of the task in whose process this runs: notifiers get it. Receivers that are
    `hung` are left to a later process; those that turn out to be are added. Raises Retryable if the ledger does not
    answer.
    """
    with services.ledger.transaction() as session:
        waiting = waiting_receivers(session, dataflow, services.now())
    told, known = 0, set() if hung is None else hung
    for each in waiting:
        if not (each.is_held or each.is_paused or (each.receiver.channel, each.receiver.address) in known):
            told += _tell(services, dataflow, each.receiver, context, known)
    if not waiting:
        return told, []
    with services.ledger.transaction() as session:
        return told, waiting_receivers(session, dataflow, services.now())


def _tell(services: Services, dataflow: str, receiver: Receiver, context: AirflowContext, hung: Hung) -> int:
    """Tell a receiver one event after the other; return how many it has got."""
    holder, until, told = services.new_uuid().hex, time.monotonic() + PASS_SECONDS, 0
    with services.ledger.transaction(dataflow) as session:
        event = hold(session, dataflow, receiver, holder, services.now())
    while event is not None and (began := time.monotonic()) < until:
        problem = _problem(services, receiver, event, context)
        if problem is not None:
            if time.monotonic() - began > HUNG_SECONDS:
                hung.add((receiver.channel, receiver.address))
            with services.ledger.transaction(dataflow) as session:
                note_not_told(session, dataflow, receiver, holder, problem, services.now())
            return told
        with services.ledger.transaction(dataflow) as session:
            event = note_told(session, dataflow, receiver, holder, event.id, services.now())
        told += 1
    if event is not None:
        with services.ledger.transaction(dataflow) as session:
            let_go(session, dataflow, receiver, holder)
    return told


def _problem(services: Services, receiver: Receiver, event: NotificationRow, context: AirflowContext) -> str | None:
    """Tell a receiver of one event; return why it has not got it. None: it has."""
    document: dict[str, Any] = dict(event.document)
    try:
        in_time(lambda: send(receiver, document, services.connections, context), CALL_SECONDS)
    except Exception as error:  # noqa: BLE001 - a user's function and a notifier may raise anything
        return without_secrets(f"{type(error).__name__}: {error}")
    return None


def forget(services: Services, dataflow: str) -> None:
    """Delete old notifications that all receivers have got. Raises Retryable."""
    with services.ledger.transaction() as session:
        if not has_old(session, dataflow, services.now()):
            return
    with services.ledger.transaction(dataflow) as session:
        forget_told(session, dataflow, services.now())


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
        raise Misconfigured.of("notifications.not_callable", address=receiver.address, name=type(made).__name__)
    try:
        made(dict(context))
    except NotImplementedError:  # it has only `async_notify`
        made = make()
        made.context = dict(context)
        asyncio.run(_awaited(made))


async def _awaited(notifier: Any) -> None:
    await notifier
