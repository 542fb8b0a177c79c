"""What is left of a failure for people: labels in the ledger, and a note at the task instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.ledger.runs import epoch_of
from weir.recovery.labels import BUILT_IN, TYPE, Failure, built_in_labels, exception_name, shown
from weir_airflow.clearing import NOTE_LENGTH
from weir_airflow.enrichers import ask_enrichers
from weir_airflow.region_run import data_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Context

    from weir.coordinator.values import FailureDecision
    from weir_airflow.office import Office

_MESSAGE_LENGTH = 4_000
"""What a function is told of a message, of which Java's may be very long."""


def label_failure(
    office: Office,
    decision: FailureDecision,
    exception: BaseException,
    context: Context,
    complain: Callable[[str], None],
) -> Mapping[str, str]:
    """Label a booked failure, in the ledger; answers all labels that it has. Raises Retryable or Misconfigured."""
    declared, task, ti = context["task"].declared, context["task"], context["ti"]
    labels = {} if decision.failure is None else built_in_labels(decision.failure, exception)
    names = (*declared.recovery.failure_enrichers, *office.recovery.failure_enrichers)
    if names:
        failure = Failure(
            dataflow=declared.flow.name,
            epoch=epoch_of(data_interval(context)[0]),
            region=getattr(task, "weir_region", task.task_id.removeprefix(declared.task_prefix)),
            subtask=max(-1 if ti.map_index is None else ti.map_index, 0),
            try_number=ti.try_number,
            error=exception_name(exception),
            message=str(exception)[:_MESSAGE_LENGTH],
            failure_class=labels.get(TYPE, ""),
        )
        found = ask_enrichers(failure, names)
        labels |= found.labels
        for complaint in found.complaints:
            complain(f"failure enricher {complaint}")
    return office.coordinator.label(declared.flow.name, decision.attempt, labels)


def note_of(decision: FailureDecision, reason: str, labels: Mapping[str, str]) -> str:
    """The note at the task instance: what becomes of it, the labels of people's own, and why."""
    what = "tried again" if decision.action.value == "retry" else "not tried again"
    own = shown({key: value for key, value in labels.items() if key not in BUILT_IN})
    head = f"Weir: {labels.get(TYPE, 'failed')}, {what}{f' ({own})' if own else ''}. "
    return f"{head}{reason}"[:NOTE_LENGTH]
