"""The operators of a dataflow's tasks: they run a region, compact its state, and close the run.

Invariant: DAG files import them at every parse, so what they run is imported in `execute`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator

from weir_airflow.api.quality_link import QualityLink, links_of
from weir_airflow.dags.callbacks import quiet
from weir_airflow.dags.declaration import CLOSE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from weir_airflow.dags.declaration import Declaration
    from weir_airflow.engines.engines import Engine


STOP_SECONDS: Final = 4.0
"""How long `on_kill` waits for Spark: Airflow's supervisor kills the process 5 s after its signal."""


class _WeirOperator(BaseOperator):  # type: ignore[misc]  # Airflow's classes are not followed
    """An operator that may be deferred while it waits, and then begins again."""

    template_fields: ClassVar[Sequence[str]] = ()

    def __init__(self, *, declared: Declaration, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        quiet(self.__dict__)
        self.declared = declared
        self.may_defer = True

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Begin again, whatever has ended the wait: where its trigger has failed, this process defers no more."""
        self.may_defer = next_method == "execute"
        if not self.may_defer:
            found = next_kwargs or {}
            self.log.warning(
                "The wait was not watched: %s\n%s", found.get("error"), "".join(found.get("traceback") or ())
            )
        return self.execute(context)


class _SparkOperator(_WeirOperator):
    """An operator that computes for a region; a kill of its task stops the Spark work."""

    def __init__(self, *, declared: Declaration, region: str, **kwargs: Any) -> None:
        super().__init__(declared=declared, **kwargs)
        # Not `region`: Airflow 3.4 takes that name in a task's scope.
        self.weir_region = region
        self._engine: Engine | None = None

    def on_kill(self) -> None:
        """Stop the Spark work. Airflow calls this in a signal handler, where the main thread may hold any lock."""
        engine = self._engine
        if engine is None:
            return
        # The thread may wait for a lock that the interrupted main thread holds; then only the wait is lost, and the
        # next attempt interrupts the session by its recorded id.
        stopping = threading.Thread(target=engine.stop, name="weir-stop", daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)

    def on_engine(self, engine: Engine) -> None:
        """Take the engine that `on_kill` has to stop."""
        self._engine = engine


class _WithLineage:
    """What OpenLineage's provider asks an operator for.

    All three are needed: where one is missing, it asks another, and a failed try would claim its outputs.
    """

    declared: Declaration
    weir_region: str

    def get_openlineage_facets_on_start(self) -> Any:
        """Return what the task is to read."""
        from weir_airflow.tasks.lineage import on_start  # noqa: PLC0415  only the provider asks

        return on_start(self.declared, self.weir_region)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what the task has read and written."""
        from weir_airflow.tasks.lineage import on_end  # noqa: PLC0415  only the provider asks

        return on_end(self.declared, self.weir_region, task_instance, has_failed=False)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return what the task has read."""
        from weir_airflow.tasks.lineage import on_end  # noqa: PLC0415  only the provider asks

        return on_end(self.declared, self.weir_region, task_instance, has_failed=True)


def _leave_out_own_frames(error: Exception) -> None:
    """Let Airflow's log show the user's frames: before each `raise` here, since that adds this module's."""
    from weir.execution.tracebacks import with_users_frames  # noqa: PLC0415  spares each parse of a DAG file its imports

    with_users_frames(error)


class WeirRegionOperator(_WithLineage, _SparkOperator):
    """Runs one subtask of a region: begin, compute, commit."""

    # Airflow asks the class of a mapped task, whatever its instances have.
    operator_extra_links: ClassVar[Sequence[QualityLink]] = (QualityLink(),)

    def __init__(self, *, declared: Declaration, region: str, subtask: int = 0, **kwargs: Any) -> None:
        super().__init__(declared=declared, region=region, **kwargs)
        self.subtask = subtask
        self.operator_extra_links = links_of(declared.topology.stages_of(region))  # type: ignore[misc]  # as Airflow's

    def execute(self, context: Context) -> dict[str, Any]:
        """Compute the region and commit its results; the summary that is returned shows as XCom.

        Raises TaskDeferred or AirflowRescheduleException while inputs are awaited, else what `weir.errors` says.
        """
        from weir_airflow.tasks.running import run_region  # noqa: PLC0415  spares each parse of a DAG file its imports

        try:
            return run_region(self.declared, self.weir_region, context, self.log.info, self.on_engine)
        except Exception as error:
            _leave_out_own_frames(error)
            raise


class WeirCompactOperator(_SparkOperator):
    """Merges sorted runs of the state that a region keeps, of all its subtasks, once they have been committed."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Merge what compaction selects; the summary that is returned shows as XCom."""
        from weir_airflow.tasks.running import run_compaction  # noqa: PLC0415  spares each parse its imports

        return run_compaction(self.declared, self.weir_region, context, self.log.info, self.on_engine)


class WeirCloseOperator(_WithLineage, _WeirOperator):
    """Closes the run when all results are valid and available and no clear is pending, then publishes the sinks."""

    weir_region: ClassVar[str] = CLOSE  # type: ignore[misc]  # the one region of all of them

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish the run's results; the summary that is returned shows as XCom.

        Raises ResultUnavailable for all that is missing, TaskDeferred or AirflowRescheduleException while a repair is
        under way.
        """
        from weir_airflow.tasks.running import run_close  # noqa: PLC0415  spares each parse of a DAG file its imports

        try:
            return run_close(self.declared, context, self.log.info)
        except Exception as error:
            _leave_out_own_frames(error)
            raise
