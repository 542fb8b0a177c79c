"""Tells whether Airflow will make a task instance that it does not have.

Airflow adds an index to a task that is mapped over more subtasks now than when the DagRun was created only when it may
schedule another index of it (`DagRun._revise_map_indexes_if_mapped` of Airflow 3.3): when the task's input is done. So
the last subtasks of a run that was moved to the present dataflow and cleared come long after the first ones.

Invariant: an instance is to come only while Airflow will look at its task again; it has no state, as one that waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weir.coordination.airflow import ClearAnswer, Clearer, ClearItem
from weir.execution.airflow_words import MISSING, NOT_IN_AIRFLOW

EXPANDABLE = (None, "up_for_retry", "up_for_reschedule", "restarting")
"""Airflow's states of a task instance that it will look at again, and then add the indexes that its task lacks."""

_QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A task instance, and over how many subtasks its task is mapped now.

    `is_running`: a task of the same DagRun asks, so that Airflow has made what is new in the DAG.
    """

    item: ClearItem
    parallelism: int
    is_running: bool

    @property
    def siblings(self) -> list[ClearItem]:
        """The other forms in which Airflow may have its task: not mapped, and the other indexes."""
        every = (replace(self.item, map_index=index) for index in range(-1, max(self.parallelism, 1)))
        return [each for each in every if each.map_index != self.item.map_index]


def as_airflow_makes_them(
    clearer: Clearer, wanted: Sequence[Wanted], answers: Sequence[ClearAnswer]
) -> list[ClearAnswer]:
    """Return Airflow's answers; for an instance that it does not have, but will make, that it has no state yet.

    Costs nothing where Airflow has all of them. Raises Retryable or Misconfigured as the clearer does.
    """
    gone = [each for each, answer in zip(wanted, answers, strict=True) if answer.state in NOT_IN_AIRFLOW]
    items = list(dict.fromkeys(item for each in gone for item in each.siblings))
    known = {answer.item: answer for answer in clearer.inspect(items)} if items else {}
    found = []
    for each, answer in zip(wanted, answers, strict=True):
        if answer.state in NOT_IN_AIRFLOW:
            there = [known[item] for item in each.siblings if known[item].state not in NOT_IN_AIRFLOW]
            found.append(_in_another_form(clearer, each, answer, there))
        else:
            found.append(answer)
    return found


def _in_another_form(
    clearer: Clearer, wanted: Wanted, answer: ClearAnswer, there: Sequence[ClearAnswer]
) -> ClearAnswer:
    """Return what Airflow has, or will have, in place of an instance; `there` are the other ones of its task."""
    first = next((each for each in there if each.item.map_index == 0), None)
    if wanted.item.map_index < 0 and first is not None:
        return first  # the task was mapped when its DagRun was created: its first index computes the only subtask
    if any(each.state in EXPANDABLE for each in there):
        return replace(answer, state=None)
    # A task that is new in the DAG gets its instances when Airflow starts a run that was cleared.
    dag_run = (wanted.item.dag_id, wanted.item.run_id)
    is_new = answer.state == MISSING and not there and not wanted.is_running
    is_to_come = is_new and clearer.exists(*dag_run) is True and clearer.start(*dag_run) == _QUEUED
    return replace(answer, state=None) if is_to_come else answer
