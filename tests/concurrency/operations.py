"""The eight operations in the prepared world, and what each may come to."""

from tests.concurrency.pair import tried
from tests.concurrency.process import Asked
from tests.concurrency.worlds import AIRCRAFT, COMPACTION, COUNTS, run_of

from weir.coordination.values import TaskKey
from weir.execution.run_state import CLOSE
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.savepoint import SavepointRequest

KINDS = ("begin", "commit", "close", "release", "upkeep", "restore", "savepoint", "compact")

VARIANTS = 3
"""Of each kind there are several, which do it to something else."""

FORK = ("restore", 1)

_TASKS = {
    "begin": ((4, AIRCRAFT, 0), (4, AIRCRAFT, 1), (2, COUNTS, 0)),
    "commit": ((4, AIRCRAFT, 0), (4, AIRCRAFT, 1), (2, COUNTS, 0)),
    "close": ((3, CLOSE.name, -1), (2, CLOSE.name, -1), (3, CLOSE.name, -1)),
    "compact": ((3, COMPACTION, -1),) * 3,
}
_RESTORES = (
    RestoreRequest("ladder", "1"),
    RestoreRequest("ladder", "1", fork="forked"),
    RestoreRequest("ladder", "2"),
)
_SAVEPOINTS = (
    SavepointRequest("ladder", 1),
    SavepointRequest("ladder"),
    SavepointRequest("ladder", 1, name="kept"),
)

EXPECTED = {
    "begin": {"Fenced", "Conflict", "ResultUnavailable", "rescheduled"},
    "commit": {"Fenced", "Conflict", "ResultUnavailable"},
    "close": {"Fenced", "Conflict", "ResultUnavailable", "rescheduled"},
    "release": set(),
    "upkeep": set(),
    "restore": {"Misconfigured", "Conflict"},
    "savepoint": {"Misconfigured", "Conflict"},
    "compact": set(),
}
"""What an operation may come to besides its end: kinds of errors that its caller knows what to do with."""


def asked_of(world, kind, which):
    """An operation; that of a task is its next try."""
    if kind in _TASKS:
        day, task, index = _TASKS[kind][which]
        return Asked(kind=kind, request=tried(world.airflow, TaskKey("dag", run_of(day), task, index)))
    if kind == "restore":
        return Asked(kind=kind, restore=_RESTORES[which])
    return Asked(kind=kind, savepoint=_SAVEPOINTS[which] if kind == "savepoint" else None)


NOT_BEGUN = (
    "has not",
    "was subsumed while it was read",
    "was subsumed, or its manifest",
    "was taken meanwhile",
    "there is something at",
)
"""Why a savepoint is not made: one that has its number, and leases, is."""


def is_expected(ended, kind):
    if kind == "savepoint" and ended.how == "raised" and not any(each in ended.said for each in NOT_BEGUN):
        return False
    return ended.how == "done" or ended.how in EXPECTED[kind] or not EXPECTED[kind].isdisjoint(ended.kinds)
