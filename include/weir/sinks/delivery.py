"""Prepares versions for the targets of their sinks, commits them there once they are published, takes them out again.

Invariants: what is published is committed, without end: by the closing task, else by upkeep. A target that does not
answer holds up later versions of its own sink only, and no other target. No transaction of the ledger waits for a
target.

A target of a sink gets versions in the order of their publication. Two processes may commit the same one: the target
does it once. The transaction that records the outcome records that receivers are to be told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.notifications import EventKind
from weir.dataflow.targets import Target
from weir.errors import Internal, Misconfigured, Retryable, WeirError, causes_of, is_disk_full
from weir.execution.run_state import CLOSE, AttemptState
from weir.formats.notification import Event, Subject, person_event
from weir.ledger.database.tables import AttemptRow, DeliveryRow, PublicationRow, RunRow
from weir.ledger.deliveries import (
    deliveries_of,
    note_delivered,
    note_problem,
    pending_deliveries,
    published_deliveries_of,
)
from weir.ledger.outbox import tell
from weir.ledger.runs import dataflow_of, epoch_of_run, run_key
from weir.refusals import Verdict, verdict
from weir.secrecy import without_secrets
from weir.sinks.opening import open_target
from weir.sinks.protocol import (
    Delivery,
    Held,
    Outcome,
    TargetAway,
    TargetFailed,
    TargetUnknown,
    Version,
)
from weir.topology.ids import Epoch
from weir.wording import shortened

_Value = TypeVar("_Value")

TOLD_AFTER: Final = timedelta(hours=1)
"""How long a version may wait for its target before a person is told."""

UNKNOWN_FOR: Final = timedelta(minutes=10)
"""How long a closing task tries a version again whose target raises errors that it does not know."""

DOUBTFUL: Final = (TargetFailed, TargetUnknown)
"""What is tried for that long: it may pass, and mostly does not."""

PATIENCE: Final = timedelta(minutes=2)
"""How long upkeep waits in vain for one server before it leaves the other versions for it to a later run."""

Silence = dict[str, timedelta]
"""How long servers were waited for in vain, by connection, bucket or target."""

_SILENT: Final = frozenset(
    {
        *("ConnectionError", "ConnectError", "ConnectTimeout", "ReadTimeout", "Timeout", "gaierror"),
        *("HTTPClientError", "NewConnectionError", "ProtocolError", "ServiceUnavailable"),
    }
)
"""Names of the errors of requests, httpx, urllib3, botocore and google-api-core for a server that does not answer."""

_TAKEN: Final = (Outcome.COMMITTED, Outcome.SUPERSEDED, Outcome.ROLLED_BACK)
"""What a target answers before a version is published only if it has its number, or a higher one, of another."""

_TEXT: Final = 2000
"""The longest problem that is recorded, in characters."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A version that could not be committed into its target, with the reason, and since when that is so.

    Likewise provisional rows, which have a number instead.
    """

    run: str
    sink: str
    version: int
    target: Target
    since: datetime
    error: WeirError
    is_provisional: bool = False

    def __str__(self) -> str:
        """Describe it for people."""
        of = f"{self.version} of {self.sink} of {self.run}"
        what = f"provisional rows {of} are shown" if self.is_provisional else f"version {of} is published"
        return f"{what}, and not yet in {self.target}, since {self.since:%Y-%m-%d %H:%M:%S}Z: {self.error}"

    def needs_person(self, now: datetime) -> bool:
        """Report whether a person has to see to it: the target refuses the version, or has not answered for long."""
        return self.since + TOLD_AFTER <= now or self.fails_close(now)

    def fails_close(self, now: datetime) -> bool:
        """Report whether waiting is no use: the target refuses the version, or its errors have not passed by."""
        if isinstance(self.error, DOUBTFUL):
            return self.since + UNKNOWN_FOR <= now
        return not isinstance(self.error, Retryable)


def prepare(services: Services, run: str, targets: Sequence[Target], version: Version) -> list[Delivery]:
    """Plan a version's way into its targets; nothing is visible there.

    Its number is raised where a target has that one already, or a newer one: the table has outlived ledger and
    pointers, or another store, and would take the version for superseded.
    Raises TargetAway, Misconfigured for what a person has to change, or TargetFailed for what a target does not know.
    """
    with services.ledger.transaction() as session:
        rows = deliveries_of(session, run, version.sink)
        committed = [Delivery.from_json(row.delivery) for row in rows if row.outcome == Outcome.COMMITTED.value]
    step = 1
    while True:
        answers = [_prepared(services, target, version, committed) for target in targets]
        if not any(found in _TAKEN for _, found in answers):
            return [delivery for delivery, _ in answers]
        version, step = replace(version, number=version.number + step), step * 2


def _prepared(
    services: Services, target: Target, version: Version, committed: Iterable[Delivery]
) -> tuple[Delivery, Outcome]:
    before = next((each for each in committed if each.target == target), None)
    held = None if before is None else Held(before.version.number, before.version.digest, before.token)
    opened = open_target(target, services)
    try:
        token = opened.prepare(version, held)
        found = opened.recover(version, token)
    except Exception as error:
        raise _said(target, error) from error
    return Delivery(target, version, token), found


def note_unprepared(session: Session, row: AttemptRow, away: TargetAway, now: datetime) -> None:
    """Record why a closing task waits, and after an hour that a person is to be told."""
    row.error = shortened(str(away), _TEXT)
    if row.began_at + TOLD_AFTER <= now:
        of = Subject(dataflow_of(row.run), epoch_of_run(row.run), row.run)
        text = f"Nothing of {row.run} is published until a target answers: {row.error}"
        tell(session, person_event("publication_waits", of, (row.id,), text, error=row.error), now)


def unprepared(services: Services, dataflow: str) -> list[tuple[str, str]]:
    """Return the runs that could not be published for an hour, since a target does not answer, and why."""
    query = select(AttemptRow.run, AttemptRow.error).join(RunRow, RunRow.id == AttemptRow.run)
    waits = (AttemptRow.state == AttemptState.WAITING.value) & AttemptRow.error.is_not(None)
    closing = (AttemptRow.region == CLOSE.name) & (AttemptRow.began_at <= services.now() - TOLD_AFTER)
    with services.ledger.transaction() as session:
        rows = session.execute(query.where(RunRow.dataflow == dataflow, waits, closing).order_by(AttemptRow.run))
        return [(run, error or "") for run, error in rows]


def deliver(
    services: Services, dataflow: str, sinks: Iterable[str] | None = None, silence: Silence | None = None
) -> list[Undelivered]:
    """Commit all published versions of a dataflow, or of some of its sinks, that are not in their targets yet.

    Returns what could not be committed; later versions of the same sink wait for it, for that target. So do those for a
    server that was waited for longer than PATIENCE: `silence` is added to, and is given again for other dataflows. With
    it, targets come in another order each time: none is always after one that is waited for in vain.
    Raises Retryable if the ledger does not answer.
    """
    silent: Silence = {} if silence is None else silence
    wanted = None if sinks is None else set(sinks)
    with services.ledger.transaction() as session:
        rows = [row for row in pending_deliveries(session, dataflow) if wanted is None or row.sink in wanted]
        newest = {(row.run, row.sink): row.version for row in rows}
        found = [
            (row.id, row.sink, Delivery.from_json(row.delivery))
            for row in rows
            if row.version == newest[row.run, row.sink]
        ]
    if silence is not None:
        found = shuffled(services, found, lambda row: f"{row[1]} {_name_of(row[2].target)}")
    problems: list[Undelivered] = []
    waiting: list[tuple[str, Target]] = []
    for number, sink, delivery in found:
        if (sink, delivery.target) not in waiting:
            problem = _deliver(services, dataflow, number, delivery, silent)
            if problem is not None:
                problems.append(problem)
                waiting.append((sink, delivery.target))
    return problems


def deliver_provisional(services: Services, dataflow: str, row: PublicationRow) -> list[Undelivered]:
    """Commit provisional rows into their targets, where they are not yet. Return what could not be."""
    with services.ledger.transaction() as session:
        found = [each.id for each in deliveries_of(session, row.run, row.sink, row.version)]
    return deliver_rows(services, dataflow, found)


def deliver_rows(services: Services, dataflow: str, numbers: Iterable[int]) -> list[Undelivered]:
    """Commit what these rows of the ledger have pending, whatever waits before it. Return what could not be."""
    with services.ledger.transaction() as session:
        rows = [session.get_one(DeliveryRow, number) for number in numbers]
        found = [(row.id, Delivery.from_json(row.delivery)) for row in rows if row.outcome is None]
    problems = (_deliver(services, dataflow, number, delivery, {}) for number, delivery in found)
    return [each for each in problems if each is not None]


def fence(services: Services, dataflow: str, numbers: Iterable[int]) -> None:
    """Commit provisional rows of which it is not known whether they are there; what a target refuses is not there.

    A process that was suspended while it did so finds from now on that they are there, or what has replaced them.
    """
    for problem in deliver_rows(services, dataflow, numbers):
        if not isinstance(problem.error, Misconfigured):
            raise problem.error


def take_out(services: Services, dataflow: str, number: int) -> None:
    """Take provisional rows out of a target of which it has no version: it holds no rows of the epoch then.

    Raises what the target does not do.
    """
    with services.ledger.transaction() as session:
        row = session.get_one(DeliveryRow, number)
        delivery, outcome = Delivery.from_json(row.delivery), row.outcome
    if outcome == Outcome.ROLLED_BACK.value:
        return
    opened = open_target(delivery.target, services)
    try:
        opened.rollback(delivery.version, delivery.token)
    except Exception as error:
        raise _said(delivery.target, error) from error
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DeliveryRow, number)
        row.outcome, row.delivered_at, row.problem = Outcome.ROLLED_BACK.value, services.now(), None


def shuffled(services: Services, values: Sequence[_Value], name_of: Callable[[_Value], str]) -> list[_Value]:
    """Return values in an order of their names that time chooses; those of one name stay in theirs."""
    now = services.now().isoformat()
    return sorted(values, key=lambda each: hashlib.sha256(f"{now} {name_of(each)}".encode()).digest())


def rollback(services: Services, dataflow: str, sink: str, epoch: Epoch) -> list[Delivery]:
    """Take the version of an epoch out of the targets of a sink again, and return how it had got there.

    A later close of the run publishes a new version; until then the epoch has no rows in the targets. A process that is
    killed on the way has only to be repeated.
    Raises Misconfigured if there is no such version, if one is pending, or if a target cannot do it; the others have.
    """
    with services.ledger.transaction() as session:
        every = published_deliveries_of(session, run_key(dataflow, epoch), sink)
        newest = [row for row in every if row.version == every[0].version]
        found = [(row.id, row.outcome, Delivery.from_json(row.delivery)) for row in newest]
    if not found:
        raise Misconfigured.of("sinks.no_version_to_roll_back", sink=sink, dataflow=dataflow, epoch=epoch)
    for _, outcome, delivery in found:
        if outcome is None:
            raise Misconfigured.of("sinks.version_on_its_way", version=delivery.version, target=delivery.target)
    problems = []
    for number, _, delivery in found:
        try:
            _roll_back(services, dataflow, number, delivery)
        except WeirError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    return [delivery for _, _, delivery in found]


def _roll_back(services: Services, dataflow: str, number: int, delivery: Delivery) -> None:
    opened = open_target(delivery.target, services)
    try:
        is_out = opened.rollback(delivery.version, delivery.token)
    except Exception as error:
        raise _said(delivery.target, error) from error
    if not is_out:
        raise Misconfigured.of("sinks.target_holds_another", target=delivery.target, version=delivery.version)
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DeliveryRow, number)
        row.outcome, row.delivered_at = Outcome.ROLLED_BACK.value, services.now()


def _deliver(
    services: Services, dataflow: str, number: int, delivery: Delivery, silence: Silence
) -> Undelivered | None:
    """Commit a delivery, and record what has come of it; nobody is told of provisional rows, or of one put back."""
    try:
        outcome, copied = _commit_if_heard(services, delivery, silence)
    except WeirError as error:
        with services.ledger.transaction(dataflow) as session:
            row = session.get_one(DeliveryRow, number)
            if not _is_pending(row, delivery):  # another process has committed it meanwhile
                return None
            note_problem(row, shortened(str(error), _TEXT), services.now())
            since = row.problem_since or services.now()
            is_early = delivery.version.is_provisional
            problem = Undelivered(row.run, row.sink, row.version, delivery.target, since, error, is_early)
            if _is_told(row, delivery) and problem.needs_person(services.now()):
                tell(session, _waits(delivery, problem), services.now())
            return problem
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DeliveryRow, number)
        if not _is_pending(row, delivery):  # another process has committed it meanwhile, or it was taken out again
            return None
        note_delivered(session, row, outcome.value, copied, Outcome.SUPERSEDED.value, services.now())
        if _is_told(row, delivery) and outcome in (Outcome.COMMITTED, Outcome.EQUAL):
            tell(session, _arrived(delivery, row.run, outcome), services.now())
    return None


def _is_pending(row: DeliveryRow, delivery: Delivery) -> bool:
    """Report whether this is to be committed still: a version that is put back has another number then."""
    return row.outcome is None and row.delivery["version"]["number"] == delivery.version.number


def _is_told(row: DeliveryRow, delivery: Delivery) -> bool:
    is_put_back = delivery.version.number != row.version
    return not is_put_back and not delivery.version.is_provisional


def _arrived(delivery: Delivery, run: str, outcome: Outcome) -> Event:
    version = delivery.version
    of = Subject(version.dataflow, version.epoch, run)
    text = f"Version {version.number} of {version.owner}, epoch {version.epoch}, is in {delivery.target}"
    details = {**_named(delivery), "outcome": outcome.value, "rows": version.rows}
    return Event(EventKind.VERSION_DELIVERED, of, _subject(delivery), text, details)


def _waits(delivery: Delivery, problem: Undelivered) -> Event:
    of = Subject(delivery.version.dataflow, delivery.version.epoch, problem.run)
    details = {**_named(delivery), "error": shortened(str(problem.error), _TEXT)}
    return person_event("version_waits", of, _subject(delivery), shortened(str(problem), _TEXT), **details)


def _named(delivery: Delivery) -> dict[str, Any]:
    version = delivery.version
    return {"sink": version.sink, "version": version.number, "target": str(delivery.target)}


def _subject(delivery: Delivery) -> tuple[str, ...]:
    """Tell apart the targets of a sink, too, some of which have the same name."""
    version = delivery.version
    of_target = hashlib.sha256(_name_of(delivery.target).encode()).hexdigest()[:8]
    return f"{version.sink}@{version.epoch}", str(version.number), version.attempt, of_target


def _commit_if_heard(services: Services, delivery: Delivery, silence: Silence) -> tuple[Outcome, int | None]:
    """Commit a version, unless its server was waited for long enough."""
    target, began = delivery.target, services.now()
    server = _server(target)
    waited = silence.get(server, timedelta())
    if waited >= PATIENCE:
        raise TargetAway.of("sinks.not_tried", target=target, waited=waited.total_seconds())
    try:
        return _commit(services, delivery)
    except TargetAway:
        silence[server] = waited + (services.now() - began)
        raise


def _server(target: Target) -> str:
    path = str(target.options.get("path", ""))
    bucket = path.split("/")[2] if path.startswith("s3://") else ""
    return str(target.options.get("conn_id") or bucket or _name_of(target))


def _name_of(target: Target) -> str:
    return json.dumps(target.to_json(), sort_keys=True)


def _commit(services: Services, delivery: Delivery) -> tuple[Outcome, int | None]:
    """Commit a version; return what came of it, and how many bytes were written once more for it."""
    opened = open_target(delivery.target, services)
    try:
        outcome = opened.commit(delivery.version, delivery.token)
    except Exception as error:
        raise _said(delivery.target, error) from error
    if outcome is Outcome.ABSENT:
        raise Internal.of("sinks.absent_after_commit", target=delivery.target, version=delivery.version)
    return outcome, opened.put_bytes.again


def _said(target: Target, error: Exception) -> WeirError:
    """Return an error of a target as one of ours, without secrets.

    What the target did not mean as one is waited for only if a connection was lost or a disk is full. What refuses a
    login, a right, a name or a certificate is no silence, whatever the target makes of it.
    """
    found = verdict(error)
    if found is Verdict.REFUSED and not isinstance(error, Misconfigured):
        told = str(error) if isinstance(error, WeirError) else f"{type(error).__name__}: {error}"
        return Misconfigured.of("sinks.access_refused", target=target, said=without_secrets(told))
    if isinstance(error, TargetAway) and found is Verdict.DOUBTFUL:
        return TargetUnknown.of("sinks.connection_doubtful", said=without_secrets(str(error)))
    if isinstance(error, Misconfigured | Retryable):
        error.args = (without_secrets(str(error)),)
        return error
    text = f"{target} failed: {without_secrets(f'{type(error).__name__}: {error}')}"
    if is_disk_full(error):
        return Retryable(text)
    return TargetAway(text) if _is_silence(error) else TargetFailed(text)


def _is_silence(error: BaseException) -> bool:
    """Report whether a connection was refused, lost or timed out, by Python's errors or a client library's names."""
    return any(
        isinstance(cause, ConnectionError | TimeoutError) or _SILENT & {each.__name__ for each in type(cause).__mro__}
        for cause in causes_of(error)
    )
