"""One call of spark-submit, through the Spark provider's hook. Invariant: it uses the connection that was looked up.

The hook itself would treat a connection that Airflow could not look up as one to YARN. An application's file is that of
the code which the attempt's job names, not the one that is deployed now.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from weir.code.application_rules import ApplicationFailed, bound, name_in_archive
from weir.errors import EngineLost, Fenced, Internal, Message, Misconfigured, Retryable, first_line
from weir.formats.region_job import RegionJob, staged_input, staged_output, staging_of
from weir.intervals import in_zone, interval_of
from weir.secrecy import without_secrets
from weir.store.catalogue import read_archive
from weir_airflow.engines.yarn import YarnApplication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow.sdk import Connection

    from weir.formats.region_job import SparkJob, StageToRun
    from weir.store.store import Store


_KEPT_LINES: Final = 40

_KILLED: Final = frozenset({-15, -9, 137, 143})
"""Exit codes of a JVM or a Python driver that got SIGTERM or SIGKILL."""

_BY_EXIT_CODE: Final = {75: Retryable, 77: Fenced, 78: Misconfigured}
"""The error by the exit code of a driver in client mode that could not write its failure."""

_UNREACHABLE: Final = (
    "All masters are unresponsive",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "NoRouteToHostException",
    "UnknownHostException",
    "Master removed our application",
    "Application has been killed",
    "SparkContext was shut down",
    "stopped SparkContext",
    "killed by external signal",
    "Container exited with a non-zero exit code 137",
    "Container exited with a non-zero exit code 143",
    "Container released on a *lost* node",
    "was preempted",
)


class SubmissionFailed(Exception):
    """A job ended without report and failure, and its cause is unknown: the environment or the application."""


class Submission:
    """A job to submit; `exit_code` is that of spark-submit, None before its end or if it never began.

    `on_progress` is told what YARN says of the application.
    """

    def __init__(
        self, connection: Connection, *, deploy_mode: str, on_progress: Callable[[str], None], **arguments: Any
    ) -> None:
        self.is_in_cluster = deploy_mode == "cluster"
        self.exit_code: int | None = None
        self.application = YarnApplication()
        self._on_progress = on_progress
        try:
            self._hook = _Hook(connection, self._heard, deploy_mode=deploy_mode, **arguments)
        except (RuntimeError, ValueError) as error:
            raise Misconfigured.of("engines.connection_unusable", conn_id=connection.conn_id, error=error) from error

    def run(self, program: str, environment: dict[str, str], folder: str) -> None:
        """Call spark-submit in `folder` and wait for its end, however it ends; its output goes to the task's log.

        Raises Misconfigured if there is no such program.
        """
        try:
            # Not `env_vars`, which the hook puts on the command line for YARN and Kubernetes.
            self._hook.submit(program, env=environment, cwd=folder)
        except FileNotFoundError as error:
            raise Misconfigured.of("engines.program_missing", filename=error.filename) from error
        except AirflowException as error:
            self._hook.kept.append(first_line(error))
        finally:
            self.exit_code = self._hook.exit_code

    def kill(self) -> None:
        """End spark-submit, and the application on Kubernetes; on YARN, `yarn.kill` does."""
        self._hook.on_kill()

    def _heard(self, line: str) -> None:
        news = self.application.heard(line)
        if news is not None:
            self._on_progress(news)

    @property
    def tail(self) -> str:
        """The last lines of spark-submit's output."""
        return "\n".join(self._hook.kept)

    def failure_without_answer(self, region: str) -> Exception:
        """Return the error to raise for a job that left neither report nor failure."""
        code, tail = self.exit_code, self.tail
        output = f"Its last output:\n{tail}"
        of_driver = self.application.exit_code if self.is_in_cluster else code
        kind = _BY_EXIT_CODE.get(of_driver or 0)
        if kind is not None:
            return kind(f"region {region}: its driver could not write what had failed. {output}")
        if code in _KILLED or self.application.was_killed:
            return EngineLost.of("engines.driver_killed", region=region, code=code, output=output)
        found = next((text for text in _UNREACHABLE if text in tail), None)
        if found is not None:
            return EngineLost.of("engines.cluster_lost", region=region, found=found, output=output)
        if "ModuleNotFoundError" in tail:
            return Misconfigured.of("engines.package_missing", region=region, output=output)
        return SubmissionFailed(
            f"region {region}: spark-submit ended with exit code {code}, and the driver has written neither "
            f"report.json nor failure.json into the attempt's folder. {output}"
        )

    def failure_of_application(self, owner: str) -> Exception:
        """Return the error to raise for an application that ended with another exit code than 0."""
        # Not by its output: that of an application is its own, and says anything.
        code, output = self.exit_code, f"Its last output:\n{self.tail}"
        if code in _KILLED:
            return EngineLost.of("engines.application_killed", owner=owner, code=code, output=output)
        return ApplicationFailed(Message("engines.application_failed", owner=owner, code=code, output=output))


class _Hook(SparkSubmitHook):  # type: ignore[misc]  # Airflow's classes are not followed
    """The provider's hook with a given connection; `kept` are the last lines of spark-submit's output."""

    def __init__(self, connection: Connection, on_line: Callable[[str], None], **arguments: Any) -> None:
        self._connection_given = connection
        self._on_line = on_line
        self.kept: deque[str] = deque(maxlen=_KEPT_LINES)
        super().__init__(conn_id=connection.conn_id, **arguments)

    def on_kill(self) -> None:
        """End spark-submit; Weir itself kills an application on YARN, without a program `yarn`."""
        self._yarn_application_id = None
        super().on_kill()

    def get_connection(self, conn_id: str) -> Connection:
        del conn_id
        return self._connection_given

    @property
    def exit_code(self) -> int | None:
        return None if self._submit_sp is None else self._submit_sp.poll()

    def _process_spark_submit_log(self, itr: Iterator[str]) -> None:
        super()._process_spark_submit_log(self._keeping(itr))

    def _keeping(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            told = without_secrets(line)
            self.kept.append(self._mask_cmd(told.rstrip()))
            self._on_line(told)
            yield told


def write_application(job: SparkJob, stage: StageToRun, store: Store, scratch: str) -> str:
    """Write the application of a stage from the archive of its job's code; return the path. Raises Misconfigured."""
    code = job.code if isinstance(job, RegionJob) else None
    if code is None:
        raise Internal.of("engines.application_without_code", region=job.region)
    content = read_archive(code, store).files.get(name_in_archive(stage.function))
    if content is None:
        raise Misconfigured.of("engines.application_file_missing", stage=stage.name, function=stage.function)
    # In a folder of its own: Python looks for modules beside a program first.
    path = Path(scratch, "application", PurePosixPath(stage.function).name)
    path.parent.mkdir()
    path.write_bytes(content)
    return str(path)


def arguments_of(job: SparkJob, stage: StageToRun, store: Store) -> list[str]:
    """Return the arguments of an application with their values. Raises Misconfigured."""
    if stage.application is None or not isinstance(job, RegionJob):
        raise Internal.of("engines.not_an_application", stage=stage.name)
    staging = staging_of(job, stage)
    values: dict[str, Any] = {
        "output": store.spark_url(staged_output(staging)),
        "ctx.epoch": job.epoch,
        **_bounds_of(job),
        "ctx.subtask": stage.subtask,
        "ctx.parallelism": stage.parallelism,
        **{f"inputs.{each.argument}": store.spark_url(staged_input(staging, each.argument)) for each in stage.inputs},
        **{f"ctx.parameters.{name}": value for name, value in job.parameters.items()},
    }
    return bound(stage.application.arguments, values)


def _bounds_of(job: SparkJob) -> dict[str, str]:
    """Return the bounds of the interval: in UTC, and in the schedule's zone."""
    start, end = (datetime.fromisoformat(each) for each in job.interval)
    found: dict[str, str] = {}
    for name, zone in (("interval", "UTC"), ("local_interval", job.zone)):
        interval = in_zone(interval_of(start, end), zone)
        for place in (0,) if start == end else (0, 1):
            at = interval[place].isoformat()
            found |= {f"ctx.{name}[{place}]": at, f"ctx.{name}[{place}].date": at[:10]}
    return found
