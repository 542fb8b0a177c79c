"""The key groups assigned to a subtask, as Flink's KeyGroupRangeAssignment.

Invariant: every key group is in the range of exactly one subtask.
"""

from __future__ import annotations

from weir.errors import Misconfigured

UPPER_BOUND = 1 << 15
"""The largest max_parallelism."""


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> tuple[int, int]:
    """Return the inclusive range of key groups that the subtask reads."""
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= subtask < parallelism:
        raise Misconfigured.of("topology.subtask_unknown", subtask=subtask, parallelism=parallelism - 1)
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return first, last


def check_parallelism(max_parallelism: int, parallelism: int) -> None:
    """Raise Misconfigured unless 1 <= parallelism <= max_parallelism <= UPPER_BOUND."""
    if not 1 <= parallelism <= max_parallelism <= UPPER_BOUND:
        raise Misconfigured.of(
            "topology.parallelism_out_of_range",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            upper_bound=UPPER_BOUND,
        )
