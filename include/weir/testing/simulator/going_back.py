"""A person who makes savepoints, and lets dataflows go on from what was kept, by processes that may be struck.

Invariant: who was killed has left nothing that the next one, or whoever keeps house, does not complete or undo.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from weir.coordinator.restore import Wish, restore
from weir.coordinator.savepoint import Asked, create, tidy
from weir.errors import Misconfigured, WeirError
from weir.store.store import Store
from weir.testing.airflow import Killed
from weir.testing.simulator.airflow import SimulatedAirflow
from weir.testing.simulator.events import Event, Verb
from weir.testing.simulator.process import NO_FATE, Fate, Process

if TYPE_CHECKING:
    from weir.testing.simulator.world import World

FORK = "forked"
"""The dataflow that begins with what another one has kept."""


def make_savepoint(world: World, event: Event) -> None:
    """A person copies a checkpoint."""
    kept = sorted(row.number for row in world.witness.snapshots.known.values() if row.is_retained)
    if kept:
        asked = Asked(world.airflow.flow.name, kept[event.number % len(kept)])
        _let(world, lambda: create(world.services, asked, _elsewhere), event.fate)


def go_back(world: World, event: Event) -> None:
    """The dataflow, or a fork of it, goes on from what was kept."""
    kept = sorted(row.number for row in world.witness.snapshots.known.values() if row.is_usable)
    if kept:
        fork = FORK if event.verb is Verb.FORK else None
        wish = Wish(world.airflow.flow.name, str(kept[event.number % len(kept)]), fork)
        _let(world, lambda: restore(world.services, wish, _elsewhere), event.fate)


def complete_savepoints(world: World) -> None:
    """A person lists the savepoints, when those are old whose makers were killed."""
    if any(row.is_savepoint and row.status == "pending" for row in world.witness.snapshots.known.values()):
        world.airflow.wait(world.services.life.orphan_age // timedelta(minutes=1))
        _let(world, lambda: tidy(world.services, world.airflow.flow.name, _elsewhere), NO_FATE)


def run_fork(world: World) -> None:
    """From now on the DAG is that of the fork."""
    airflow = SimulatedAirflow(world.services, world.engine, replace(world.airflow.flow, name=FORK))
    airflow.collects, airflow.strategy, airflow.time = False, world.airflow.strategy, world.airflow.time
    world.airflow = airflow


def _let(world: World, do: Callable[[], object], fate: Fate) -> None:
    airflow = world.airflow

    def work(_mine: Process) -> None:
        with suppress(Killed):
            try:
                do()
            except WeirError as error:
                airflow.require_expected(error)

    airflow.started += 1
    world.run(Process(airflow.started, work), fate)


def _elsewhere(url: str) -> Store:
    raise Misconfigured(f"a simulation has one store, and {url} is none of it")
