"""Callbacks of users at a retry: called when their own code has failed, and not while recovery goes as planned.

Airflow calls `on_retry_callback` after every try that another one follows, here also where inputs were lost, a newer
try has taken over, or Spark or a store was away. The retry policy is asked before, in the same process and with the
same context, in which it leaves word of what has failed. After a kill, Airflow's DAG processor calls them without that
word, and the next try decides: then nothing is known that a person has to do. What has failed for good, Airflow tells
once by `on_failure_callback`, as everywhere.

Invariant: DAG files import this at every parse, so it imports nothing that opens the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from weir.execution.failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

WORD: Final = "weir_failure"
"""In Airflow's context: the FailureClass of the failure that is being answered; None where none was recorded."""

_SETTING: Final = "on_retry_callback"


class _OfOwnFailures:
    """A callback of a user's that is called for failures of the user's own code and data."""

    def __init__(self, callback: Callable[[Any], object]) -> None:
        self.callback = callback

    def __repr__(self) -> str:
        return repr(self.callback)

    def __call__(self, context: Any) -> None:
        if context.get(WORD) is FailureClass.APPLICATION:
            self.callback(context)


def quiet(settings: MutableMapping[str, Any]) -> None:
    """Have the callbacks at a retry among a task's settings called for the user's own failures only.

    Airflow's mails at a retry cannot tell what has failed: they are switched off.
    """
    given = settings.get(_SETTING) or []
    listed = list(given) if isinstance(given, list | tuple) else [given]
    settings[_SETTING] = [each if isinstance(each, _OfOwnFailures) else _OfOwnFailures(each) for each in listed]
    settings["email_on_retry"] = False
