"""Processes that keep house: they release, sweep, and keep checkpoints, and may be struck as any other.

Invariant: what they raise is what Weir's own upkeep knows how to wait for.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from enum import Enum

from weir.coordinator.checkpoint_keeping import keep_checkpoints
from weir.coordinator.sweep import sweep
from weir.errors import WeirError
from weir.ledger.runs import runs_of
from weir.testing.airflow import Killed
from weir.testing.simulator.airflow import SimulatedAirflow
from weir.testing.simulator.process import Process


class Chore(Enum):
    """What is done; a sweep tidies up the store, too."""

    RELEASE = "release"
    SWEEP = "sweep"
    DRY_SWEEP = "dry sweep"
    CHECKPOINTS = "checkpoints"


def housekeeper(airflow: SimulatedAirflow, chore: Chore, *, is_pressed: bool = False) -> Process:
    """A process that does a chore; it has not begun."""

    def work(_mine: Process) -> None:
        with suppress(Killed):
            try:
                _do(airflow, chore, is_pressed=is_pressed)
            except WeirError as error:
                airflow.require_expected(error)

    airflow.started += 1
    return Process(airflow.started, work)


def _do(airflow: SimulatedAirflow, chore: Chore, *, is_pressed: bool) -> None:
    if chore is Chore.RELEASE:
        airflow.collect(None, is_pressed=is_pressed)
    elif chore is Chore.CHECKPOINTS:
        keep_checkpoints(airflow.services, airflow.flow.name)
    elif _has_begun(airflow):
        # With no regard to the age of what nobody knows: an attempt at work is known.
        is_dry, none = chore is Chore.DRY_SWEEP, timedelta()
        sweep(airflow.services, airflow.flow.name, older_than=none, is_full=True, is_dry=is_dry, is_pressed=is_pressed)


def _has_begun(airflow: SimulatedAirflow) -> bool:
    with airflow.services.ledger.transaction() as session:
        return airflow.flow.name in {row.dataflow for row in runs_of(session)}
