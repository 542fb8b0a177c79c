"""`python -m tests.mutations.search`: simulates fresh seeds of several mixes until one breaks an invariant.

It runs in the tree of a fault, in one process, and prints what it found as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

from tests.builders.ledgers import fast_folder
from tests.simulation.dataflows import require_right
from tests.simulation.races import race
from tests.simulator.dataflows import Scene
from tests.simulator.events import Event
from tests.simulator.exhaustive.scope import SCOPES, Play
from tests.simulator.exhaustive.traffic import Traffic
from tests.simulator.observer import Broken, NeedsARestore
from tests.simulator.simulate import USUAL, Finding, scene_and_events, simulate

import weir

MIXES: dict[str, Callable[[int], tuple[Scene, Sequence[Event]]]] = {
    "usual": scene_and_events,
    "stateful": partial(scene_and_events, shares=replace(USUAL, stateful=1.0)),
    "gated": partial(scene_and_events, shares=replace(USUAL, gated=1.0)),
    "listed": partial(scene_and_events, shares=replace(USUAL, listed=1.0, lossy=1.0, stateful=0.0)),
    "race": partial(race, stateful=0.0),
    "stateful race": partial(race, stateful=1.0),
}
"""Scenes and schedules by seed: those of the simulator (`--stateful 1`, `--gated 1`), and short ones."""

SCOPE = "scope"
"""The mix of the schedules of small scopes: any number of switches, at any step."""

DATAFLOWS = "dataflows"
"""The mix of dataflows that read each other, for faults of data sets: the others have one."""

SCHEDULES_OF_A_SEED = 8
"""Of one scope: from the first ones it is known which paths several processes use."""

WEIGHTS = {
    SCOPE: 0.15,
    "usual": 0.15,
    "stateful": 0.15,
    "gated": 0.1,
    "listed": 0.15,
    "race": 0.15,
    "stateful race": 0.15,
}
"""The parts of the processor time."""

STATEFUL = {"stateful": 0.5, "stateful race": 0.5}
WEIGHTS_OF = {
    "include/weir/state/": STATEFUL,
    "include/weir/snapshots/": STATEFUL,
    "include/weir/retention/checkpoints.py": STATEFUL,
    "include/weir/ledger/checkpoints.py": STATEFUL,
    "include/weir/ledger/restores.py": STATEFUL,
    "include/weir/ledger/sources.py": {"listed": 0.9, "usual": 0.1},
    "include/weir/rebuild/": {"listed": 0.8, "usual": 0.2},
    "include/weir/coordination/import": {"listed": 0.8, "usual": 0.2},
    "include/weir/quality/": {"gated": 0.8, "usual": 0.2},
}
"""The same for the modules of one kind of scene."""


def search(first: int, seconds: float, weights: dict[str, float]) -> dict[str, object]:
    """Simulate seeds from `first` on for so many seconds of processor time; return the first finding."""
    gc.set_threshold(100_000, 20, 100)
    spent = dict.fromkeys(weights, 0.0)
    for seed in count(first):
        if seed > first and sum(spent.values()) > seconds:
            return {"seeds": seed - first}
        mix = min(weights, key=lambda each: spent[each] / weights[each])
        began = time.process_time()
        try:
            finding = _simulated(mix, seed)
            found = None if finding is None else (finding.invariant, finding.found)
        except Exception as error:  # noqa: BLE001  the simulator itself stumbles over the fault
            found = ("the_simulation_crashes", f"{type(error).__name__}: {error}")
        spent[mix] += time.process_time() - began
        if found is not None:
            said = {"invariant": found[0], "said": found[1], "number": seed, "mix": mix}
            return {"seeds": seed - first + 1, "seed": f"{mix} {seed}", **said}
    raise AssertionError("seeds have no end")


def _simulated(mix: str, seed: int) -> Finding | None:
    if mix == DATAFLOWS:
        return between_dataflows(seed)
    return scheduled(seed) if mix == SCOPE else simulate(*MIXES[mix](seed))


def between_dataflows(seed: int) -> Finding | None:
    """Have what is drawn happen to dataflows that read each other; return what is not as it should be."""
    with fast_folder() as folder:
        try:
            require_right(folder, seed)
        except AssertionError as error:
            return Finding("what_is_published_is_right_and_nothing_is_in_vain", str(error)[:500], None)
    return None


def scheduled(seed: int) -> Finding | None:
    """Carry out some schedules of a small scope at random; return the first broken invariant."""
    random, traffic = Random(seed), Traffic()
    scope = SCOPES[random.choice(("tries", "clears"))]
    for _ in range(SCHEDULES_OF_A_SEED):
        play = Play(scope, traffic)
        try:
            while choices := play.choices():
                play.choose(random.choice(choices))
            play.heal()
        except NeedsARestore:
            pass
        except Broken as broken:
            return Finding(broken.invariant, broken.found, None)
        finally:
            play.world.close()
    return None


def weights_of(module: str) -> dict[str, float]:
    """Return the parts of the mixes for a module."""
    return next((weights for prefix, weights in WEIGHTS_OF.items() if module.startswith(prefix)), WEIGHTS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.search", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of processor time")
    parser.add_argument("--first", type=int, help="the first seed; those of no earlier search by default")
    parser.add_argument("--module", default="", help="the module in question, which decides about the mixes")
    parser.add_argument("--mix", help="the only mix")
    asked = parser.parse_args()
    first = int(Random().random() * 2**40) if asked.first is None else asked.first
    weights = weights_of(asked.module) if asked.mix is None else {asked.mix: 1.0}
    print(json.dumps({"weir": str(weir.__file__), **search(first, asked.seconds, weights)}))


if __name__ == "__main__":
    main()
