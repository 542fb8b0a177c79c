"""Scenes whose rows are checked, and the suites that they name.

Invariant: each suite has one expectation, which bad rows violate and no others; its name says whom it blames.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from weir.dataflow import Dataflow, Stage, expectations
from weir.dataflow.quality import Gate, Policy
from weir.dataflow.stage import StageKind
from weir.recovery.blames import blamable
from weir.testing.simulator.dataflows import Scene
from weir.testing.simulator.engine import EXPECTED

BLAMES: Final = "blames-"
AND: Final = "-and-"

WHENS: Final = ("always", "always", "always", "restored")

POLICIES: Final = ("backtrack", "backtrack", "backtrack", "fail", "retry", "warn")

ANY_ROWS: Final = "rows"
"""The suite that blames nobody; that of others is named by whom it blames."""


def gated_scene(random: Random, scene: Scene) -> Scene:
    """The same scene, the rows of one or two stages of which are checked."""
    stages = list(scene.flow.stages)
    may_have = [at for at, each in enumerate(stages) if each.kind in (StageKind.SOURCE, StageKind.TRANSFORM)]
    for at in random.sample(may_have, k=min(len(may_have), random.choice([1, 1, 2]))):
        stages[at] = replace(stages[at], quality=_random_gate(random, scene.flow, stages[at]))
    # A person has to end tries that come to the same each time.
    is_patient = scene.is_patient and not any(gate.policy is Policy.RETRY for each in stages for gate in each.gates)
    return replace(scene, flow=replace(scene.flow, stages=stages), is_patient=is_patient)


def _random_gate(random: Random, flow: Dataflow, stage: Stage) -> Gate:
    blamed = [name for name in blamable(flow, stage.name) if name in stage.exchanges]
    some = random.sample(blamed, k=random.randint(1, len(blamed))) if blamed and random.random() < 0.85 else []
    suite = f"{BLAMES}{AND.join(some)}" if some else ANY_ROWS
    return expectations(suite, when=random.choice(WHENS), policy=random.choice(POLICIES))


def suite_folder(scene: Scene) -> TemporaryDirectory[str] | None:
    """A folder with the suites that a scene's stages name, if they name any."""
    names = {gate.suite for stage in scene.flow.stages for gate in stage.gates}
    if not names:
        return None
    folder = TemporaryDirectory(prefix="weir-suites-")
    for name in names:
        Path(folder.name, f"{name}.json").write_text(json.dumps({"expectations": [_expectation(name)]}))
    return folder


def _expectation(suite: str) -> dict[str, object]:
    blames = [] if suite == ANY_ROWS else suite.removeprefix(BLAMES).split(AND)
    return {"type": EXPECTED, "kwargs": {"column": "k"}, "meta": {"blames": blames}}
