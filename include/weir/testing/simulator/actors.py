"""Harm to the files of current results, behind everybody's back. Invariant: what was there can be brought back.

A person who makes savepoints, and lets dataflows go on from what was kept, by processes that may be struck.

Invariant: who was killed has left nothing that the next one, or whoever keeps house, does not complete or undo.

Processes that keep house: they release, sweep, and keep checkpoints, and may be struck as any other.

Invariant: what they raise is what Weir's own upkeep knows how to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

from weir.errors import Misconfigured, WeirError
from weir.ledger.runs import runs_of
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.sweep import sweep
from weir.snapshots.restore import Wish, restore
from weir.snapshots.savepoint import Asked, create, tidy
from weir.store.store import Store
from weir.testing.fakes.airflow import Killed
from weir.testing.simulator.airflow import SimulatedAirflow
from weir.testing.simulator.events import Event, Verb
from weir.testing.simulator.process import NO_FATE, Fate, Process

if TYPE_CHECKING:
    from weir.testing.simulator.world import World


def damage(world: World, event: Event) -> None:
    """A current result loses files, or has wrong ones."""
    folders = sorted({path.rpartition("/")[0] for path in world.witness.current_files()})
    if not folders:
        return
    claimed = sorted(world.witness.sight.claimed()) if event.number % 2 else []
    world.witness.harmed.add(folder := (claimed or folders)[event.number % len(claimed or folders)])
    file, manifest = f"{folder}/part-0.bin", f"{folder}/manifest.json"
    for path in {"folder": (file, manifest), "manifest": (manifest,)}.get(event.how, (file,)):
        _damage(world, path, event)


def _damage(world: World, path: str, event: Event) -> None:
    data = world.files.data.get(path)
    if data is None:
        return
    world.removed.setdefault(path, data)
    if event.how in ("folder", "manifest"):
        del world.files.data[path]
    elif event.how == "cut":
        world.files.data[path] = data[: len(data) // 2]
    else:
        at = event.number % len(data)
        world.files.data[path] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def bring_back(world: World, event: Event) -> None:
    """What was damaged is as it was."""
    if world.removed:
        path = sorted(world.removed)[event.number % len(world.removed)]
        world.files.data[path] = world.removed.pop(path)


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
        world.airflow.wait(world.services.retention.orphan_age // timedelta(minutes=1))
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


class Chore(Enum):
    """What is done; a sweep tidies up the store, too."""

    RELEASE = "release"
    SWEEP = "sweep"
    DRY_SWEEP = "dry sweep"
    CHECKPOINTS = "checkpoints"


def housekeeper(airflow: SimulatedAirflow, chore: Chore, *, is_reclaiming: bool = False) -> Process:
    """A process that does a chore; it has not begun."""

    def work(_mine: Process) -> None:
        with suppress(Killed):
            try:
                _do(airflow, chore, is_reclaiming=is_reclaiming)
            except WeirError as error:
                airflow.require_expected(error)

    airflow.started += 1
    return Process(airflow.started, work)


def _do(airflow: SimulatedAirflow, chore: Chore, *, is_reclaiming: bool) -> None:
    if chore is Chore.RELEASE:
        airflow.collect(None, is_reclaiming=is_reclaiming)
    elif chore is Chore.CHECKPOINTS:
        maintain_checkpoints(airflow.services, airflow.flow.name)
    elif _has_begun(airflow):
        # With no regard to the age of what nobody knows: an attempt at work is known.
        is_dry, none = chore is Chore.DRY_SWEEP, timedelta()
        sweep(
            airflow.services,
            airflow.flow.name,
            older_than=none,
            is_full=True,
            is_dry=is_dry,
            is_reclaiming=is_reclaiming,
        )


def _has_begun(airflow: SimulatedAirflow) -> bool:
    with airflow.services.ledger.transaction() as session:
        return airflow.flow.name in {row.dataflow for row in runs_of(session)}
