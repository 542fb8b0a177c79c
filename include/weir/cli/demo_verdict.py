"""The demo's verdict: which task instances ran again, and whether these are exactly the expected ones.

Invariant: a task instance that ran again, was added or has gone is never left out of the comparison, whatever its run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weir.cli.airflow_api import TaskInstance

Tries = tuple[int, int]
"""The number of tries before the loss, and now."""


def changed_tries(before: Sequence[TaskInstance], now: Sequence[TaskInstance]) -> dict[TaskInstance, Tries]:
    """Return the task instances whose number of tries is another one than before; 0 tries of one that is not there."""
    old = {_key(one): one for one in before}
    new = {_key(one): one for one in now}
    found = {}
    for key in sorted(old.keys() | new.keys()):
        tries = (old[key].try_number if key in old else 0, new[key].try_number if key in new else 0)
        if tries[0] != tries[1]:
            found[new.get(key) or old[key]] = tries
    return found


def unexpected_reruns(
    changed: Mapping[TaskInstance, Tries], run_id: str, expected: Mapping[str, int], day: str
) -> str | None:
    """Compare with the `expected` further tries of task instances of the damaged run, by their names.

    Returns None if exactly these were made; otherwise a sentence that names the expected and the found task instances.
    """
    more = {one: now - before for one, (before, now) in changed.items()}
    of_run = {str(one): tries for one, tries in more.items() if one.run_id == run_id}
    elsewhere = {f"{one} of {one.run_id}": tries for one, tries in more.items() if one.run_id != run_id}
    if of_run == dict(expected) and not elsewhere:
        return None
    found = _listed({**of_run, **elsewhere})
    return f"expected to run again, of {day}: {_listed(expected)}, and nothing else; found: {found}"


def needed_several_tries(instances: Sequence[TaskInstance]) -> list[TaskInstance]:
    """Return the task instances that did not succeed in their first try: their run was not without faults."""
    return [one for one in instances if one.try_number != 1 or one.state != "success"]


def _listed(tries: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:+d} tries)" for name, count in sorted(tries.items())) or "none"


def _key(one: TaskInstance) -> tuple[str, str, int]:
    return one.run_id, one.task_id, one.map_index
