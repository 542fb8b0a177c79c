"""An input is probed where its result counts, awaited where it will be computed, and else a loss; drawn runs."""

from random import Random

import pytest
from tests.weir.retention.test_release_rules import random_run

from weir.execution.run_state import Obstacle
from weir.recovery.inputs import sort_inputs
from weir.recovery.rules.backtrack import known_loss


@pytest.mark.parametrize("seed", range(60))
def test_each_input_is_probed_awaited_or_lost(seed):
    state = random_run(Random(seed)).state
    for region in state.region_ids():
        found = sort_inputs(state, region)
        groups = (found.to_probe, found.awaited.keys(), found.losses.keys())
        assert sum(map(len, groups)) == len(frozenset().union(*groups)) == len(set(state.inputs_of(region)))
        for partition in state.inputs_of(region):
            assert partition in groups[_group(state, partition, region)], (region, partition)


def _group(state, partition, region):
    if set(state.obstacles(partition)) <= {Obstacle.OLDER_SIBLING}:
        return 0
    if state.awaited_for(partition):
        return 1
    return 2 if known_loss(state, partition, region) is not None else 0
