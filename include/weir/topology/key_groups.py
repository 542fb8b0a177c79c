"""A subtask's key groups, as Flink's KeyGroupRangeAssignment. Invariant: the subtasks' ranges divide all groups."""

from __future__ import annotations

from weir.errors import Misconfigured

UPPER_BOUND = 1 << 15
_DEFAULT_LOWER_BOUND = 1 << 7


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> tuple[int, int]:
    """Return the inclusive range of key groups that the subtask reads."""
    _check(max_parallelism, parallelism)
    if not 0 <= subtask < parallelism:
        raise Misconfigured(f"subtask {subtask} is not one of 0 to {parallelism - 1}")
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return first, last


def subtask_of(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """Return the subtask that reads the key group."""
    _check(max_parallelism, parallelism)
    if not 0 <= key_group < max_parallelism:
        raise Misconfigured(f"key group {key_group} is not one of 0 to {max_parallelism - 1}")
    return key_group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default: half as much again, up to a power of two, at least 128 and at most 32768."""
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, _DEFAULT_LOWER_BOUND), UPPER_BOUND)


def _check(max_parallelism: int, parallelism: int) -> None:
    if not 1 <= parallelism <= max_parallelism <= UPPER_BOUND:
        raise Misconfigured(
            f"parallelism {parallelism} of at most {max_parallelism}: "
            f"expected 1 <= parallelism <= maximum <= {UPPER_BOUND}"
        )
