"""The way of a failed try: book it, ask the user's policy, deliver clears, label, note.

`weir.attempts.failure` books it with what follows from it, and `weir.restarts.answer` decides whether and when it runs
again. Airflow asks in the task process, after every failure but a kill; after a kill the next begin books it.

Invariant: the failure is booked before anything else, and a fenced try changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from weir.attempts.failure import PolicyAnswer, fail, label, override
from weir.attempts.notes import annotate
from weir.attempts.ports import Airflow, TaskPorts
from weir.coordination.settled import CLEARS
from weir.coordination.values import FailedTry, TaskKey
from weir.errors import StoreFull, WeirError
from weir.execution.failure_class import FailureClass, classify
from weir.execution.failure_words import message_of, note_of_failure
from weir.execution.labels import Enriched, built_in_labels, shown
from weir.restarts.answer import Action, FailureDecision, fenced, unbooked
from weir.secrecy import without_secrets


class Users:
    """What users say about a failed try by a policy and by enrichers of their own: nothing, if they have none."""

    def answer(self, decision: FailureDecision) -> PolicyAnswer:
        """Return the answer of the user's policy, which may override the decision."""
        del decision
        return PolicyAnswer()

    def label(self, labels: Mapping[str, str]) -> Enriched:
        """Return more labels, given the built-in ones."""
        del labels
        return Enriched({}, ())


def decide_failure(task: TaskPorts, failed: FailedTry, users: Users) -> FailureDecision:
    """Book the failure, ask the user's policy, deliver clears, leave labels and a note; log all of it in the reason.

    Raises Retryable, or another WeirError, where the failure cannot be booked: `without_ledger` decides then.
    """
    services, error = task.coordinator.services, failed.error
    if classify(error) is FailureClass.FENCED:
        return fenced(error)
    decision = fail(services, failed, lambda: task.airflow)
    if isinstance(error, StoreFull):
        room = task.coordinator.rooms.files.make_room_when_full(failed.dataflow)
        decision = replace(decision, reason=f"{decision.reason}; {room}")
    if decision.may_be_overridden:
        decision = override(services, failed.dataflow, decision, users.answer(decision))
    # The decision holds without the delivery: any later process tries again.
    settled = "".join(f"; {line}" for line in task.settling.settle(failed.dataflow, CLEARS).lines())
    reason = without_secrets(f"{decision.reason}{settled}")
    return replace(decision, reason=f"{reason}{_describe(task, failed, decision, reason, users)}")


def _describe(task: TaskPorts, failed: FailedTry, decision: FailureDecision, reason: str, users: Users) -> str:
    """Label the failure and leave a note at the task instance; return what to log about it.

    The decision is made by now: a failure here is only logged.
    """
    if decision.failure is None and not decision.attempt:
        return ""  # booked already: the note is another process's
    lines: list[str] = []
    try:
        labels = {} if decision.failure is None else built_in_labels(decision.failure, failed.error)
        if decision.attempt:  # else the try failed before it was registered
            found = users.label(labels)
            lines += [f"failure enricher {complaint}" for complaint in found.complaints]
            labels = label(task.coordinator.services, failed.dataflow, decision.attempt, {**labels, **found.labels})
        annotate(task.airflow, failed.key, note_of(decision, message_of(failed.error), reason, labels))
        lines.insert(0, f"labels: {shown(labels)}")
    except Exception as error:  # noqa: BLE001  raised, it would have Airflow forget the decision and use its own retries
        lines.append(f"labels or note are missing: {type(error).__name__}: {error}")
    return "".join(f"; {line}" for line in lines)


def without_ledger(
    error: BaseException, trouble: WeirError, tries_left: int, airflow: Callable[[], Airflow], key: TaskKey
) -> FailureDecision:
    """Decide about a failure that could not be booked because of `trouble`, and leave a note."""
    if classify(error) is FailureClass.FENCED:
        return fenced(error)
    decision = unbooked(error, trouble, tries_left)
    text = f"{decision.reason}. The failure was: {without_secrets(str(error))}"
    try:
        annotate(airflow(), key, note_of(decision, message_of(error), text, {}))
    except Exception as untold:  # noqa: BLE001  Airflow's own database may answer with any error, and the decision holds
        return replace(decision, reason=f"{decision.reason}; no note was left at the task instance: {untold}")
    return decision


def note_of(decision: FailureDecision, message: str, reason: str, labels: Mapping[str, str]) -> str:
    """Compose the note at the task instance about an error that `message` describes."""
    delay = decision.delay_seconds if decision.action is Action.RETRY else None
    kind = "" if decision.failure is None else decision.failure.value
    return note_of_failure(message, reason, labels, delay=delay, kind=kind)
