"""Functions that label failures, found and called.

Invariant: one that cannot be found, fails or hangs is a complaint, and never the end of the task.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Final

from weir.recovery.labels import Enriched, Failure, enriched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weir.recovery.labels import Enricher

PATIENCE_SECONDS: Final = 10.0
"""What all functions together may take: Airflow sets no limit to what follows a failure."""


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
