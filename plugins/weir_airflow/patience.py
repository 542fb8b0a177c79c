"""Waiting for what an attempt needs.

Invariant: a task instance is rescheduled only so late that Airflow cannot confuse its two processes.

A process that was rescheduled keeps its slot for one heartbeat interval after its end, and only then reports it. If the
same try is queued again by then, the scheduler takes the report for that of the second process and calls it failed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow.sdk.exceptions import AirflowRescheduleException

from weir.coordinator.values import Adopted, Awaiting, Begun, Exhausted, NotInRecord, Published

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = Begun | Adopted | Published | Exhausted | NotInRecord
"""What a begin or a close comes to in the end."""

_REPORT_SECONDS: Final = 3.0
"""For the scheduler to read what was reported, on top of the heartbeat interval."""


def awaited(begin: Callable[[], Outcome | Awaiting], tell: Callable[[str], None]) -> Outcome:
    """Begin until it is not `Awaiting`: short waits are spent here, longer ones by AirflowRescheduleException."""
    while True:
        outcome = begin()
        if not isinstance(outcome, Awaiting):
            return outcome
        if outcome.seconds >= shortest_reschedule():
            tell(f"{outcome.reason}; looking again in {outcome.seconds:.0f} s. This costs no try")
            raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=outcome.seconds))
        tell(f"{outcome.reason}; going on in {outcome.seconds:.1f} s")
        time.sleep(outcome.seconds)


def shortest_reschedule() -> float:
    """Seconds after which a rescheduled process has surely been accounted for."""
    from airflow.sdk.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    return float(conf.get("workers", "min_heartbeat_interval", fallback="5")) + _REPORT_SECONDS
