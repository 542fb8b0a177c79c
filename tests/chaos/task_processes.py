"""The processes of Airflow's running tasks, as a LocalExecutor of the local stack has them.

Invariant: a process is found by the title that Airflow gives it and by its session, never by its name alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

from weir_dev.stack.processes import ProcessRecord, record, session_members

if TYPE_CHECKING:
    from collections.abc import Iterable


_TASK: Final = re.compile(r"^airflow worker -- (?P<ti_id>[0-9a-f-]{36})\s*$")
_SUPERVISOR: Final = re.compile(r"^airflow worker -- LocalExecutor.*: (?P<ti_id>[0-9a-f-]{36})\s*$")


@dataclass(frozen=True, slots=True)
class TaskProcess:
    """The process in which a task instance of that id runs, and the supervisor over it; None over an orphan."""

    ti_id: str
    task: ProcessRecord
    supervisor: ProcessRecord | None

    @property
    def processes(self) -> tuple[ProcessRecord, ...]:
        """The supervisor, if there is one, and the task."""
        return (self.task,) if self.supervisor is None else (self.supervisor, self.task)


def task_processes(scheduler: ProcessRecord) -> list[TaskProcess]:
    """All tasks that run in the scheduler's session, orphans too, by pid."""
    found = []
    for member in session_members(scheduler):
        title = _title(member.pid)
        match = _TASK.match(title)
        if match and member.is_alive():
            found.append(TaskProcess(match["ti_id"], member, _supervisor(member.pid, match["ti_id"])))
    return found


def descendants(of: Iterable[ProcessRecord]) -> list[ProcessRecord]:
    """Return the children of these processes, and their children, by pid."""
    found: dict[int, str] = {}
    for one in of:
        if one.is_alive():
            try:
                found.update({child.pid: one.name for child in psutil.Process(one.pid).children(recursive=True)})
            except psutil.Error:
                continue
    return [record(name, pid) for pid, name in sorted(found.items())]


def _supervisor(pid: int, ti_id: str) -> ProcessRecord | None:
    try:
        parent = psutil.Process(pid).parent()
    except psutil.Error:
        return None
    if parent is None:
        return None
    match = _SUPERVISOR.match(_title(parent.pid))
    return record("supervisor", parent.pid) if match and match["ti_id"] == ti_id else None


def _title(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        return ""
