"""Prepares versions for the targets of their sinks, commits them there once they are published, takes them out again.

Invariants: what is published is committed, without end: by the closing task, else by upkeep. A target that does not
answer holds up its own sinks only. No transaction of the ledger waits for a target.

Versions of a sink are committed in the order of their publication. Two processes may commit the same one: the target
does it once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from weir.coordination.services import Services
from weir.dataflow.targets import Target
from weir.errors import Internal, Misconfigured, Retryable, WeirError
from weir.ledger.database.tables import DeliveryRow
from weir.ledger.deliveries import held_delivery, newest_delivery, note_delivered, note_problem, pending_deliveries
from weir.ledger.runs import run_key
from weir.secrecy import without_secrets
from weir.sinks.opening import open_target
from weir.sinks.protocol import Delivery, Held, Outcome, Version
from weir.topology.ids import Epoch

_TEXT: Final = 2000
"""The longest problem that is recorded, in characters."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A version that could not be committed into its target, with the reason, and since when that is so."""

    run: str
    sink: str
    version: int
    target: Target
    since: datetime
    error: WeirError

    def __str__(self) -> str:
        """Describe it for people."""
        return (
            f"version {self.version} of {self.sink} of {self.run} is published, and not yet in {self.target}, "
            f"since {self.since:%Y-%m-%d %H:%M:%S}Z: {self.error}"
        )


def prepare(services: Services, run: str, target: Target, version: Version) -> Delivery:
    """Plan a version's way into its target; nothing is visible there.

    Raises TargetAway, Misconfigured for what a person has to change, or Retryable for any other error of the target.
    """
    with services.ledger.transaction() as session:
        row = held_delivery(session, run, version.sink)
        before = None if row is None else Delivery.from_json(row.delivery)
    held = None if before is None else Held(before.version.number, before.version.digest, before.token)
    opened = open_target(target, services)
    try:
        token = opened.prepare(version, held)
    except Exception as error:
        raise _said(target, error) from error
    return Delivery(target, version, token)


def deliver(services: Services, dataflow: str, sinks: Iterable[str] | None = None) -> list[Undelivered]:
    """Commit all published versions of a dataflow, or of some of its sinks, that are not in their targets yet.

    Returns the versions that could not be committed; those of the same sink that were published later wait for them.
    Raises Retryable if the ledger does not answer.
    """
    wanted = None if sinks is None else set(sinks)
    with services.ledger.transaction() as session:
        rows = [row for row in pending_deliveries(session, dataflow) if wanted is None or row.sink in wanted]
        found = [(row.id, row.sink, row.run) for row in rows]
        newest = {(row.run, row.sink): row.id for row in rows}
    problems: dict[str, Undelivered] = {}
    for number, sink, run in found:
        if sink not in problems and newest[run, sink] == number:
            problem = _deliver(services, dataflow, number)
            if problem is not None:
                problems[sink] = problem
    return list(problems.values())


def rollback(services: Services, dataflow: str, sink: str, epoch: Epoch) -> Delivery:
    """Take the version of an epoch out of its target again, and return how it had got there.

    A later close of the run publishes a new version; until then the epoch has no rows in the target. A process that is
    killed on the way has only to be repeated.
    Raises Misconfigured if there is no such version, if one is pending, or if the target cannot do it.
    """
    with services.ledger.transaction() as session:
        row = newest_delivery(session, run_key(dataflow, epoch), sink)
        if row is None:
            raise Misconfigured(
                f"no version of sink {sink!r} of {dataflow}@{epoch} has a target: `weir sinks {dataflow}` lists them"
            )
        number, outcome, delivery = row.id, row.outcome, Delivery.from_json(row.delivery)
    if outcome is None:
        raise Misconfigured(
            f"{delivery.version} is not in {delivery.target} yet, but will be: wait until `weir sinks` shows it as "
            "committed, then repeat this"
        )
    opened = open_target(delivery.target, services)
    try:
        is_out = opened.rollback(delivery.version, delivery.token)
    except Exception as error:
        raise _said(delivery.target, error) from error
    if not is_out:
        raise Misconfigured(
            f"{delivery.target} holds another version of {epoch} than {delivery.version}: nothing was changed. Clear "
            "weir_close of that run, which looks into the target, then repeat this"
        )
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DeliveryRow, number)
        row.outcome, row.delivered_at = Outcome.ROLLED_BACK.value, services.now()
    return delivery


def _deliver(services: Services, dataflow: str, number: int) -> Undelivered | None:
    with services.ledger.transaction() as session:
        delivery = Delivery.from_json(session.get_one(DeliveryRow, number).delivery)
    try:
        outcome = _commit(services, delivery)
    except WeirError as error:
        with services.ledger.transaction(dataflow) as session:
            row = session.get_one(DeliveryRow, number)
            note_problem(row, str(error)[:_TEXT], services.now())
            since = row.problem_since or services.now()
            return Undelivered(row.run, row.sink, row.version, delivery.target, since, error)
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DeliveryRow, number)
        note_delivered(session, row, outcome.value, Outcome.SUPERSEDED.value, services.now())
    return None


def _commit(services: Services, delivery: Delivery) -> Outcome:
    opened = open_target(delivery.target, services)
    try:
        outcome = opened.commit(delivery.version, delivery.token)
    except Exception as error:
        raise _said(delivery.target, error) from error
    if outcome is Outcome.ABSENT:
        raise Internal(f"{delivery.target} answered ABSENT to the commit of {delivery.version}")
    return outcome


def _said(target: Target, error: Exception) -> WeirError:
    """Return an error of a target as one of ours: what it did not mean as one is tried again."""
    if isinstance(error, Misconfigured | Retryable):
        return error
    return Retryable(f"{target} failed: {without_secrets(f'{type(error).__name__}: {error}')}")
