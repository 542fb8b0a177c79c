"""The parts of Flink's KeyGroupRangeAssignment that production does not need: a reference for conformance.

Invariant: a key group is in the range of the subtask that it is assigned to (weir.topology.key_groups).
"""

from __future__ import annotations

from weir.errors import Misconfigured
from weir.topology.key_groups import UPPER_BOUND, check_parallelism

_DEFAULT_LOWER_BOUND = 1 << 7


def subtask_of(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """Return the subtask that reads the key group."""
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= key_group < max_parallelism:
        raise Misconfigured(f"key group {key_group} is not one of 0 to {max_parallelism - 1}")
    return key_group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default: half as much again, up to a power of two, at least 128 and at most 32768."""
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, _DEFAULT_LOWER_BOUND), UPPER_BOUND)
