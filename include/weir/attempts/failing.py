"""The driver of what follows a failed try: book the failure, ask the user's policy, deliver clears, label, note.

Invariant: the failure is booked before anything else, and a fenced try changes nothing. Airflow asks in the task
process, after every failure but a kill; after a kill the next begin books it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from weir.attempts.notes import annotate
from weir.attempts.ports import TaskPorts
from weir.coordination.settled import CLEARS
from weir.coordination.values import Action, FailedTry, FailureDecision
from weir.errors import Fenced, Retryable, WeirError
from weir.execution.failure_words import message_of, note_of_failure
from weir.execution.labels import Enriched, built_in_labels, shown
from weir.restarts.delays import FENCED_DELAY, LEDGER_DELAY, LONG_OUTAGE_BELOW, LONG_OUTAGE_DELAY
from weir.secrecy import without_secrets


class Users:
    """What users say about a failed try by a policy and by enrichers of their own: nothing, if they have none."""

    def decide(self, decision: FailureDecision) -> tuple[FailureDecision, str]:
        """Return the decision after the user's policy, and what to log about it. Raises Retryable."""
        return decision, ""

    def label(self, labels: Mapping[str, str]) -> Enriched:
        """Return more labels, given the built-in ones."""
        del labels
        return Enriched({}, ())


def decide_failure(
    error: BaseException, tries_left: int, book: Callable[[], FailureDecision], leave_note: Callable[[str], None]
) -> FailureDecision:
    """Decide by `book`, which opens the ledger and books the failure, unless the try is fenced or `book` fails.

    `leave_note` sets the note at the task instance where `book` could not.
    """
    if isinstance(error, Fenced):
        # Airflow ignores the answer of a task instance that was cleared. It obeys it where only the ledger has
        # fenced the try (a restored ledger): then another try is right.
        return FailureDecision(action=Action.RETRY, delay_seconds=FENCED_DELAY, reason=f"fenced: {error}")
    failure = without_secrets(str(error))
    try:
        return book()
    except Retryable as trouble:
        delay = LEDGER_DELAY if tries_left >= LONG_OUTAGE_BELOW else LONG_OUTAGE_DELAY
        action, reason = Action.RETRY, f"Weir could not book the failure: {trouble}"
    except WeirError as trouble:
        action, delay, reason = Action.FAIL, 0, f"{trouble} (while booking: {failure})"
    decision = FailureDecision(action=action, delay_seconds=delay, reason=reason)
    try:
        leave_note(note_of(decision, message_of(error), f"{reason}. The failure was: {failure}", {}))
    except Exception as untold:  # noqa: BLE001  Airflow's own database may answer with any error, and the decision holds
        return replace(decision, reason=f"{reason}; no note was left at the task instance: {untold}")
    return decision


def book_failure(task: TaskPorts, failed: FailedTry, users: Users) -> FailureDecision:
    """Book the failure, ask the user's policy, deliver clears, leave labels and a note; log all of it in the reason.

    Raises Retryable, or as the coordinator does, where the failure cannot be booked.
    """
    decision = task.coordinator.fail(failed, lambda: task.airflow)
    decision, answer = users.decide(decision)
    reason = without_secrets(f"{decision.reason}{answer}{_settle(task, failed.dataflow)}")
    return replace(decision, reason=f"{reason}{_describe(task, failed, decision, reason, users)}")


def _settle(task: TaskPorts, dataflow: str) -> str:
    """Deliver pending clears. The decision holds without that: any later process tries again."""
    return "".join(f"; {line}" for line in task.settling.settle(dataflow, CLEARS).lines())


def _describe(task: TaskPorts, failed: FailedTry, decision: FailureDecision, reason: str, users: Users) -> str:
    """Label the failure and leave a note at the task instance; return what to log about it.

    The decision is made by now: a failure here is only logged.
    """
    if decision.failure is None and not decision.attempt:
        return ""  # fenced, or booked already: the note is another process's
    lines: list[str] = []
    try:
        labels = {} if decision.failure is None else built_in_labels(decision.failure, failed.error)
        if decision.attempt:  # else the try failed before it was registered
            found = users.label(labels)
            lines += [f"failure enricher {complaint}" for complaint in found.complaints]
            labels = task.coordinator.label(failed.dataflow, decision.attempt, {**labels, **found.labels})
        annotate(task.airflow, failed.key, note_of(decision, message_of(failed.error), reason, labels))
        lines.insert(0, f"labels: {shown(labels)}")
    except Exception as error:  # noqa: BLE001  raised, it would have Airflow forget the decision and use its own retries
        lines.append(f"labels or note are missing: {type(error).__name__}: {error}")
    return "".join(f"; {line}" for line in lines)


def note_of(decision: FailureDecision, message: str, reason: str, labels: Mapping[str, str]) -> str:
    """Compose the note at the task instance about an error that `message` describes."""
    delay = decision.delay_seconds if decision.action is Action.RETRY else None
    kind = "" if decision.failure is None else decision.failure.value
    return note_of_failure(message, reason, labels, delay=delay, kind=kind)
