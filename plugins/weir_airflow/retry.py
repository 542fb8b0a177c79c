"""What follows a failed try. Invariant: the failure is booked first, and a fenced try changes nothing.

Airflow asks in the task process, after every failure but a kill; what a kill leaves undone the next begin does. Then,
in this order: a policy of the user's own is asked, owed clears are carried out, labels and a note are left.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from weir.errors import Fenced, Retryable, WeirError
from weir.recovery.labels import shown

if TYPE_CHECKING:
    from airflow.sdk import Context

    from weir.coordinator.values import FailureDecision
    from weir_airflow.office import Office

LEDGER_DELAY: Final = timedelta(seconds=5)
"""Before the next try when the ledger does not answer: nobody could be asked, and nothing could be counted."""

PATIENT_DELAY: Final = timedelta(minutes=1)
PATIENT_BELOW: Final = 900
"""With fewer tries than that left, an outage has lasted for a while: they are made to last for half a day more."""

FENCED_DELAY: Final = timedelta(seconds=5)


class WeirRetryPolicy(RetryPolicy):  # type: ignore[misc]  # Airflow's classes are not followed
    """Books the failure with the coordinator, has lost producers cleared, and answers when to try again."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide by the ledger; `try_number` counts from 1."""
        if context is None:
            return RetryDecision.default()
        if isinstance(exception, Fenced):
            # Airflow ignores the answer of a task instance that was cleared. It obeys it where only the ledger has
            # fenced the try (a restored ledger): then another try is right.
            return RetryDecision.retry(FENCED_DELAY, f"fenced: {exception}")
        try:
            return _decide(exception, try_number, max_tries, context)
        except Retryable as error:
            delay = LEDGER_DELAY if max_tries - try_number >= PATIENT_BELOW else PATIENT_DELAY
            return RetryDecision.retry(delay, f"Weir could not book the failure: {error}")
        except WeirError as error:
            return RetryDecision.fail(f"{error} (while booking: {exception})")

    def serialize(self) -> dict[str, Any]:
        """Nothing: the policy has no settings of its own."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> WeirRetryPolicy:
        """Build the policy again."""
        del data
        return cls()


def _decide(exception: BaseException, try_number: int, max_tries: int, context: Context) -> RetryDecision:
    from weir.coordinator.values import Action  # noqa: PLC0415  DAG files import this module at every parse
    from weir_airflow.office import Office  # noqa: PLC0415
    from weir_airflow.region_run import task_key  # noqa: PLC0415
    from weir_airflow.user_policy import second_word  # noqa: PLC0415

    with Office.open() as office:
        declared = context["task"].declared
        strategy = declared.restart_strategy(office.recovery.restart)
        decision = office.coordinator.fail(declared.flow.name, task_key(context), try_number, exception, strategy)
        limit = strategy.limits.per_task
        decision, word = second_word(
            office.coordinator,
            declared.recovery.retry_policy,
            decision,
            exception,
            max_tries if limit is None else limit,
            context,
        )
        reason = f"{decision.reason}{word}{_settle(office, context)}"
        reason = f"{reason}{_tell(office, decision, reason, exception, context)}"
    if decision.action is Action.FAIL:
        return RetryDecision.fail(reason)
    return RetryDecision.retry(timedelta(seconds=decision.delay_seconds), reason)


def _settle(office: Office, context: Context) -> str:
    """Carry out the clears that the decision owes. The decision stands without them: whoever comes by tries again."""
    said: list[str] = []
    try:
        office.settle(context["task"].declared.flow.name, said.append)
    except WeirError as error:
        said.append(f"clears remain owed: {error}")
    return "".join(f"; {text}" for text in said)


def _tell(office: Office, decision: FailureDecision, reason: str, exception: BaseException, context: Context) -> str:
    """Label the failure and leave a note at the task instance; answers what the log is to say of it.

    All is decided by now: whatever fails here is only told.
    """
    from weir_airflow.failure_note import label_failure, note_of  # noqa: PLC0415
    from weir_airflow.region_run import task_key  # noqa: PLC0415

    if not decision.attempt:
        return ""
    said: list[str] = []
    try:
        labels = label_failure(office, decision, exception, context, said.append)
        office.clearer.annotate(task_key(context), note_of(decision, reason, labels))
        said.insert(0, f"labels: {shown(labels)}")
    except Exception as error:  # noqa: BLE001  raised, it would have Airflow forget the decision and use its own retries
        said.append(f"labels or note are missing: {type(error).__name__}: {error}")
    return "".join(f"; {text}" for text in said)
