"""Simulating: one seed, or a schedule that was printed. Invariant: equal seeds and events have equal outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from weir.testing.simulator.dataflows import Scene, random_scene, stateful_scene
from weir.testing.simulator.events import Event, random_events, with_bad_rows, with_runs
from weir.testing.simulator.gated_scenes import gated_scene
from weir.testing.simulator.healing import heal
from weir.testing.simulator.witness import Broken
from weir.testing.simulator.world import World


@dataclass(frozen=True, slots=True)
class Finding:
    """An invariant that does not hold: its name, what was found, and behind which event (None: while it healed)."""

    invariant: str
    found: str
    behind: int | None


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of scenes whose epochs go on from one another, which cost several times as much, and of gated ones."""

    stateful: float = 0.03
    gated: float = 0.1


USUAL: Final = Shares()


def scene_and_events(seed: int, shares: Shares = USUAL) -> tuple[Scene, tuple[Event, ...]]:
    """What a seed stands for."""
    random = Random(seed)  # noqa: S311 - nothing is secret
    scene, events = random_scene(random), random_events(random)
    if random.random() < shares.stateful:
        scene, events = stateful_scene(random), with_runs(random, events)
    if random.random() < shares.gated and not scene.collects:
        scene, events = gated_scene(random, scene), with_bad_rows(random, events)
    return scene, events


def simulate(scene: Scene, events: Sequence[Event]) -> Finding | None:
    """Carry out the events, then let all heal; the first thing that is wrong."""
    world, number = World(scene), None
    try:
        for number, event in enumerate(events):  # noqa: B007 - told where it broke
            world.carry_out(event)
        number = None
        heal(world)
    except Broken as broken:
        return Finding(broken.invariant, broken.found, number)
    finally:
        world.close()
    return None
