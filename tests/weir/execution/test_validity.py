"""A result is valid if it is what its inputs, which are valid themselves, still are; and if one code made its stage.

By definition, and so without the shortcuts of RunState; runs in any state are drawn.
"""

from dataclasses import replace
from random import Random

import pytest
from tests.weir.retention.test_release_rules import random_run

from weir.execution.partition_state import PartitionState
from weir.execution.run_state import RunState


def drawn_state(seed):
    random = Random(seed)
    state = random_run(random).state
    codes = [frozenset({"v1"}), frozenset({"v1", "v2"}), frozenset({"v2"})] if seed % 2 else [frozenset({"v1"})]
    results = {
        partition: replace(result, versions=(made := random.choice(codes)), code=min(made), generation=len(made))
        for partition, result in state.results.items()
    }
    return RunState(run=state.run, topology=state.topology, results=results, regions=state.regions)


def is_valid(state, partition):
    result = state.results.get(partition)
    if result is None or result.state is PartitionState.QUARANTINED:
        return False
    of_stage = [each.versions for each in state.results.values() if each.partition.stage == partition.stage]
    reads = [read for group in result.reads for read in group.members]
    return bool(frozenset.intersection(*of_stage)) and all(_holds(state, read) for read in reads)


def _holds(state, read):
    current = state.results.get(read.partition)
    return current is not None and current.digest == read.digest and is_valid(state, read.partition)


@pytest.mark.parametrize("seed", range(120))
def test_a_result_is_valid_by_its_definition(seed):
    state = drawn_state(seed)
    for region in state.region_ids():
        for partition in state.outputs(region):
            found = state.results.get(partition)
            expected = is_valid(state, partition)
            assert state.is_valid(partition) is expected
            assert state.is_good(partition) is (expected and found.state is PartitionState.FINISHED)
            done = (PartitionState.FINISHED, PartitionState.RELEASED)
            assert state.is_done(partition) is (expected and found.state in done)
