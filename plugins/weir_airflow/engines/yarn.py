"""An application of YARN: what spark-submit's client tells of it, where its log is, and how it is killed.

Invariant: it is found by a tag that is its attempt's own, so that any process can kill it, also while it waits in a
queue, where no driver looks for the file that stops it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from weir.errors import Retryable

if TYPE_CHECKING:
    from collections.abc import Mapping

TAGS_SETTING: Final = "spark.yarn.tags"
_SUBMITTED: Final = re.compile(r"Submitted application (application_\d+_\d+)")
_REPORT: Final = re.compile(r"Application report for application_\d+_\d+ \(state: ([A-Z_]+)\)")
_DETAIL: Final = re.compile(r"^\s*(diagnostics|tracking URL): (.*\S)")
_NO_DETAIL: Final = "N/A"
_EXIT_CODE: Final = re.compile(r"User application exited with (?:status )?(\d+)")
_LISTED: Final = re.compile(r"^\s*(application_\d+_\d+)\s", re.MULTILINE)
_PROGRAM: Final = "spark-class"
_APPLICATIONS: Final = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
_QUEUES: Final = "org.apache.hadoop.yarn.client.cli.QueueCLI"
_VERSION: Final = "org.apache.hadoop.util.VersionInfo"
_KILLABLE: Final = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_SECONDS: Final = 60.0


class YarnApplication:
    """An application, as far as the lines of spark-submit's client have told of it."""

    def __init__(self) -> None:
        self.id = ""
        self.page = ""
        self.exit_code: int | None = None
        """That of the driver in a cluster, where YARN has told it."""
        self._state = ""

    def heard(self, line: str) -> str | None:
        """Take a line; return what the task should say of it, if it is news."""
        if found := _SUBMITTED.search(line):
            self.id = found[1]
            return f"{self.id} was submitted to YARN"
        if (found := _REPORT.search(line)) and found[1] != self._state:
            self._state = found[1]
            waits = ": it waits for room in its queue" if self._state == "ACCEPTED" else ""
            return f"{self.id} is {self._state}{waits}"
        if found := _EXIT_CODE.search(line):
            self.exit_code = int(found[1])
        return self._detail(line)

    def _detail(self, line: str) -> str | None:
        found = _DETAIL.match(line)
        if found is None or found[2] == _NO_DETAIL:
            return None
        if found[1] == "diagnostics":
            return f"YARN says of {self.id}: {found[2]}"
        if found[2] == self.page:
            return None
        self.page = found[2]
        return f"The page of {self.id}, with the logs of its driver and executors: {self.page}"

    @property
    def was_killed(self) -> bool:
        """Whether somebody has killed it, as far as YARN has told."""
        return self._state == "KILLED"

    @property
    def where_its_log_is(self) -> str | None:
        """What finds the log of the driver; None if there is no application."""
        if not self.id:
            return None
        page = f", and {self.page}" if self.page else ""
        return f"The log of its driver: `yarn logs -applicationId {self.id}`{page}"


def tag_of(attempt: str) -> str:
    """Return the tag of an attempt's application."""
    return f"weir-{attempt}".lower()


def kill(attempt: str, environment: Mapping[str, str]) -> None:
    """Kill the application of an attempt, if YARN has one that has not ended, as `yarn application -kill` does.

    Where there is no program of Spark that can ask, its driver is left to the file that stops it. Raises Retryable.
    """
    program = shutil.which(_PROGRAM, path=environment.get("PATH"))
    if program is None:
        return
    found = _told(_of_applications(program, environment, "-list", "-appTags", tag_of(attempt), "-appStates", _KILLABLE))
    if listed := _LISTED.findall(found):
        _told(_of_applications(program, environment, "-kill", *listed))


def state_of_queue(name: str, environment: Mapping[str, str]) -> str:
    """Return what YARN says of a queue, also that there is none. Raises Retryable."""
    run = _run(_program(environment), environment, _QUEUES, "-status", name)
    return run.stdout or run.stderr


def version_of_client(environment: Mapping[str, str]) -> str:
    """Return the version of Spark's own Hadoop. Raises Retryable."""
    lines = _told(_run(_program(environment), environment, _VERSION)).splitlines()
    return lines[0].removeprefix("Hadoop ") if lines else "unknown"


def _program(environment: Mapping[str, str]) -> str:
    return shutil.which(_PROGRAM, path=environment.get("PATH")) or _PROGRAM


def _of_applications(program: str, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run(program, environment, _APPLICATIONS, "application", *arguments)


def _run(program: str, environment: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a main class among Spark's jars, with the cluster's settings."""
    try:
        return subprocess.run(
            [program, *command], env=dict(environment), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Retryable.of("engines.yarn_did_not_answer", error=error) from error


def _told(run: subprocess.CompletedProcess[str]) -> str:
    if run.returncode != 0:
        told = " ".join((run.stdout + run.stderr).split())[-300:]
        raise Retryable.of("engines.yarn_did_not_answer", error=told)
    return run.stdout
