"""Blind and exact twins: the same dataflow under the same faults, with and without blind upserts, keeps equal rows."""

import pytest
from sqlalchemy import select
from tests.simulator.actions import apply
from tests.simulator.engine import Nature
from tests.simulator.healing import heal
from tests.simulator.simulate import Shares, scene_and_events
from tests.simulator.world import World

from weir.ledger.database.tables import ResultRow

ONLY_STATE = Shares(1.0, *[0.0] * 9)
"""Nothing is drawn but state, losses and kills: what a twin does at another time would change what it does."""


def healed(scene, events, *, is_blind):
    """The rows of each partition of state once all is healed, and how many have a chain."""
    world = World(scene)
    world.engine.upserts_blindly = is_blind
    for event in events:
        apply(world, event)
    heal(world)
    with world.ledger.transaction() as session:
        found = list(session.scalars(select(ResultRow).where(ResultRow.is_current)))
    kept = [row for row in found if row.stage in {each.name for stage in scene.flow.stages for each in stage.states}]
    rows = {(row.run, row.stage, row.subtask): world.engine.made[row.attempt].contents[row.stage] for row in kept}
    return rows, sum(row.digest.startswith("v3:") for row in kept)


def twins(seed):
    scene, events = scene_and_events(seed, ONLY_STATE)
    assert Nature.MOODY not in scene.natures.values()
    return healed(scene, events, is_blind=True), healed(scene, events, is_blind=False)


@pytest.mark.parametrize(
    "seed", [27, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 10, 22, 23, 32, 33))]
)
def test_blind_and_exact_twins_end_with_equal_rows(seed):
    (blind, chains), (exact, none) = twins(seed)
    assert blind == exact
    assert chains > 0 == none
