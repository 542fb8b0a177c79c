"""Lists and broadcast state as the fake engine keeps them: a hash, then the elements as JSON, then zeroes.

Invariant: each epoch adds one element to each subtask's list; broadcast state depends on the epochs and the world only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from weir.dataflow.state import StateKind
from weir.errors import Internal
from weir.results.region_job import RegionJob, StageToRun
from weir.state.operator_lists import own


def next_operator_state(
    job: RegionJob,
    stage: StageToRun,
    contents: Mapping[str, str],
    world: Mapping[str, Any],
    read: Callable[[str], bytes],
) -> tuple[str, bytes]:
    """What a state that is not keyed becomes: the content's hash, and its elements as bytes.

    An element of a list is the epoch, the subtask that added it, and the content of the stage that keeps it. What
    `world` has for a broadcast state is part of its content; for "name[1]", in subtask 1 only, as in a wrong stage.
    """
    keeper = next(each for each in job.stages if each.name == stage.keeps_state_of)
    given = next(each for each in keeper.inputs if each.argument == stage.name)
    if given.state is None:
        raise Internal(f"the state {stage.name} was given no description")
    lists = [
        [element for file in part.files for element in elements_of(read(file))]
        for part in sorted(given.partitions, key=lambda each: each.subtask)
    ]
    if given.state.state.kind is StateKind.BROADCAST:
        of_all = world.get(stage.name)
        elements = [*(lists[0] if lists else []), job.epoch, str(world.get(f"{stage.name}[{stage.subtask}]", of_all))]
    else:
        mine = f"{job.epoch}/{stage.subtask}/{contents[keeper.name][:6]}"
        elements = [*own(lists, stage.parallelism, stage.subtask), mine]
    data = json.dumps(elements).encode()
    return hashlib.sha256(data).hexdigest(), data


def elements_of(data: bytes) -> list[str]:
    """The elements in a file of such a state."""
    elements: list[str] = json.loads(data[64:].rstrip(b"\0"))
    return elements
