"""Functions that label failures, found and called.

Invariant: one that cannot be found, fails or hangs is a complaint, and never the end of the task.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Final

from weir.ledger.runs import epoch_of
from weir.recovery.labels import TYPE, Enriched, Failure, enriched, exception_name
from weir_airflow.region_run import data_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from weir.recovery.labels import Enricher

_MESSAGE_LENGTH: Final = 4_000
"""What a function is told of a message, of which Java's may be very long."""

PATIENCE_SECONDS: Final = 10.0
"""What all functions together may take: Airflow sets no limit to what follows a failure."""


def labels_of_users(
    of_deployment: Iterable[str], labels: Mapping[str, str], exception: BaseException, context: Context
) -> Enriched:
    """Ask the dataflow's functions and those of the deployment about a failure with these built-in labels."""
    declared, task, ti = context["task"].declared, context["task"], context["ti"]
    names = (*declared.recovery.failure_enrichers, *of_deployment)
    if not names:
        return Enriched({}, ())
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
    return ask_enrichers(failure, names)


def ask_enrichers(failure: Failure, names: Iterable[str], seconds: float = PATIENCE_SECONDS) -> Enriched:
    """Ask the functions, "module:function", for labels; what is not answered in time is not waited for."""
    answers: list[Enriched] = []
    called = tuple(dict.fromkeys(names))
    # A thread that hangs does not keep the process, since it is a daemon.
    asking = threading.Thread(
        target=lambda: answers.append(enriched(failure, {name: _called(name) for name in called})),
        name="weir-enrichers",
        daemon=True,
    )
    asking.start()
    asking.join(seconds)
    if answers:
        return answers[0]
    return Enriched({}, (f"{', '.join(called)}: no answer within {seconds:g} s",))


def _called(name: str) -> Enricher:
    """The function, found when it is called, so that what is wrong with it is its own failure."""

    def call(failure: Failure) -> Mapping[str, str]:
        module, _, function = name.partition(":")
        found: Enricher = getattr(importlib.import_module(module), function)
        return found(failure)

    return call
