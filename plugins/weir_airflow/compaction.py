"""The task that compacts what a region keeps.

Invariant: it is a teardown in Airflow's terms, so that neither its failure nor its absence changes what becomes of a
run, and what comes behind a group of tasks does not wait for it.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator

from weir.topology.compaction_tasks import compaction_task
from weir_airflow.operators import STOP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

    from weir.topology.regions import LogicalRegion
    from weir_airflow.declaration import Declaration
    from weir_airflow.engines import Engine

_RETRIES: Final = 2
_RETRY_DELAY: Final = timedelta(seconds=30)
"""The next epoch makes up for what is not compacted: it is not worth more tries."""


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
        retries=_RETRIES,
        retry_delay=_RETRY_DELAY,
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
    """Plan, merge, enter; `remember` gets the engine, so that `on_kill` can stop it."""
    # Here rather than above: each parse of a DAG file would pay for it.
    from weir.coordinator.compaction import CompactionRequest  # noqa: PLC0415
    from weir.ledger.runs import epoch_of  # noqa: PLC0415
    from weir.results.codec import region_job_to_json, region_report_from_json  # noqa: PLC0415
    from weir.results.region_job import JOB_NAME  # noqa: PLC0415
    from weir_airflow.engines import engine_for  # noqa: PLC0415
    from weir_airflow.office import Office  # noqa: PLC0415
    from weir_airflow.region_run import data_interval  # noqa: PLC0415

    with Office.open() as office:
        epoch = epoch_of(data_interval(context)[0])
        request = CompactionRequest(declared.flow.name, epoch, context["ti"].run_id, region)
        begun = office.coordinator.plan_compaction(request)
        if begun is None:
            tell("Nothing is to be merged")
            return {"merged": []}
        report = None
        if begun.job.merges:
            engine = engine_for(office.spark(declared.spark_conn_id_of(region)), office.store, office.store_options)
            remember(engine)
            office.store.create(f"{begun.job.folder}/{JOB_NAME}", region_job_to_json(begun.job))
            engine.run(begun.job, begun.session_id, tell)
            report = region_report_from_json(office.store.read(begun.job.report))
        lines = office.coordinator.enter_compacted(begun, report)
        for line in lines:
            tell(line)
        return {"merged": lines}


_DOC: Final = """### Compacts state

Merges small runs of what the region keeps, so that the next epochs read few files. Nothing waits for it: where it has
not ended in time or has failed, all go on from what was committed."""
