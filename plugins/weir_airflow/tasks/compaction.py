"""The task that compacts what a region keeps.

Invariant: it is a teardown in Airflow's terms, so that neither its failure nor its absence changes what becomes of a
run, and what comes behind a group of tasks does not wait for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator

from weir.topology.regions import RETRIES, RETRY_DELAY, compaction_task
from weir_airflow.tasks.operators import STOP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

    from weir.topology.regions import LogicalRegion
    from weir_airflow.dags.declaration import Declaration
    from weir_airflow.engines.engines import Engine


class WeirCompactOperator(BaseOperator):  # type: ignore[misc]  # Airflow's classes are not followed
    """Merges runs of the state that a region keeps, of all its subtasks, once they have been committed."""

    template_fields: ClassVar[Sequence[str]] = ()
    ui_color: ClassVar[str] = "#e8eef0"

    def __init__(self, *, declared: Declaration, region: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.declared = declared
        self.weir_region = region
        self._engine: Engine | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Merge what is to be merged; the summary that is returned shows as XCom."""
        return run_compaction(self.declared, self.weir_region, context, self.log.info, self._remember)

    def on_kill(self) -> None:
        """Stop the Spark work. See WeirRegionOperator."""
        if self._engine is not None:
            stopping = threading.Thread(target=self._engine.stop, name="weir-stop", daemon=True)
            stopping.start()
            stopping.join(STOP_SECONDS)

    def _remember(self, engine: Engine) -> None:
        self._engine = engine


def compaction_of(declared: Declaration, region: LogicalRegion) -> Any:
    """The task that compacts what a region keeps."""
    settings = {name: value for name, value in declared.task_arguments(region).items() if name != "execution_timeout"}
    task = WeirCompactOperator(
        declared=declared,
        region=region.name,
        task_id=compaction_task(region.name),
        doc_md=_DOC,
        retries=RETRIES,
        retry_delay=RETRY_DELAY,
        **settings,
    )
    return task.as_teardown()


def run_compaction(
    declared: Declaration,
    region: str,
    context: Context,
    tell: Callable[[str], None],
    remember: Callable[[Engine], None],
) -> dict[str, Any]:
    """Compact what a region keeps; `remember` gets the engine, so that `on_kill` can stop it."""
    # Here rather than above: each parse of a DAG file would pay for it.
    from weir.attempts import compacting  # noqa: PLC0415
    from weir.ledger.runs import epoch_of  # noqa: PLC0415
    from weir.state.compaction import CompactionRequest  # noqa: PLC0415
    from weir_airflow.tasks.context import Office  # noqa: PLC0415
    from weir_airflow.tasks.ports import AirflowTask, SparkEngine  # noqa: PLC0415
    from weir_airflow.tasks.region_run import data_interval  # noqa: PLC0415

    with Office.open() as office:
        epoch = epoch_of(data_interval(context)[0])
        request = CompactionRequest(declared.flow.name, epoch, context["ti"].run_id, region)
        engine = SparkEngine(office, declared.spark_conn_id_of(region), remember)
        return compacting.run_compaction(AirflowTask(office, tell), engine, request)


_DOC: Final = """### Compacts state

Merges small runs of what the region keeps, so that the next epochs read few files. Nothing waits for it: where it has
not ended in time or has failed, all go on from what was committed."""
