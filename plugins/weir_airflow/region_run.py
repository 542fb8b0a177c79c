"""One attempt of a region, and the closing of a run, as a task does them (DESIGN 5).

Invariant: only the coordinator decides; this carries out, in order, and turns each decision into Airflow's terms.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from weir.coordinator.values import Adopted, Awaiting, BeginRequest, Begun, Exhausted, NotInRecord, Published, TaskKey
from weir.errors import (
    Fenced,
    InputUnreadable,
    Internal,
    Misconfigured,
    QualityFailed,
    ResultUnavailable,
    Retryable,
    WeirError,
)
from weir.ledger.runs import PreviousRun, epoch_of
from weir.results.codec import region_job_to_json, region_report_from_json
from weir.results.region_job import JOB_NAME
from weir_airflow.assets import announce
from weir_airflow.engines import engine_address, engine_at, engine_for, is_of_kind, prepare_imports
from weir_airflow.office import Office
from weir_airflow.patience import Outcome, awaited
from weir_airflow.quality_pages import make_pages_of
from weir_airflow.renewal import renewed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow.sdk import Connection, Context
    from airflow.sdk.types import DagRunProtocol

    from weir.coordinator.coordinator import Coordinator
    from weir.coordinator.values import Judged, SparkWork
    from weir.recovery.restart import RestartChoice
    from weir.results.region_job import RegionReport
    from weir_airflow.declaration import Declaration
    from weir_airflow.engines import Engine


def run_region(
    declared: Declaration,
    region: str,
    context: Context,
    tell: Callable[[str], None],
    remember: Callable[[Engine], None],
) -> dict[str, Any]:
    """Begin, compute, commit; `remember` gets the engine, so that `on_kill` can stop it."""
    with Office.open() as office:
        _settle(office, declared.flow.name, tell)
        spark = office.spark(declared.spark_conn_id_of(region))
        request = begin_request(declared, context, engine_address(spark), office.recovery.restart)
        prepare_imports()
        outcome = awaited(lambda: _begun(office, request, spark, tell), tell)
        match outcome:
            case Begun():
                engine = engine_for(spark, office.store, office.store_options)
                remember(engine)
                return _compute(office, engine, request.key, outcome, tell)
            case Adopted():
                tell("An earlier try has committed this result, and nobody has asked for it anew: adopted")
                return dict(outcome.summary)
            case _:
                return _without_result(office, request, outcome, tell)


def run_close(declared: Declaration, context: Context, tell: Callable[[str], None]) -> dict[str, Any]:
    """Complete the run and publish its sinks, or raise what is missing."""
    with Office.open() as office:
        _settle(office, declared.flow.name, tell)
        request = begin_request(declared, context, "", office.recovery.restart)
        outcome = awaited(lambda: office.coordinator.close(request, office.clearer), tell)
        if not isinstance(outcome, Published):
            return _without_result(office, request, outcome, tell)
        for sink, version in outcome.versions.items():
            tell(f"Sink {sink}: {'unchanged' if version is None else f'version {version} is published'}")
        announce(context, declared.flow.name, epoch_of(request.interval[0]), outcome.versions)
        _release(office, declared.flow.name, tell)
        return dict(outcome.summary)


def _settle(office: Office, dataflow: str, tell: Callable[[str], None]) -> None:
    """Carry out what is owed. This task does not depend on it: where it fails, whoever comes by tries again."""
    try:
        office.settle(dataflow, tell)
    except WeirError as error:
        tell(f"Clears remain owed: {error}")


def _begun(
    office: Office, request: BeginRequest, spark: Connection, tell: Callable[[str], None]
) -> Begun | Adopted | Awaiting | Exhausted | NotInRecord:
    outcome = office.coordinator.begin(request, office.clearer)
    _interrupt(office, spark, outcome, tell)
    return outcome


def _without_result(
    office: Office, request: BeginRequest, outcome: Outcome, tell: Callable[[str], None]
) -> dict[str, Any]:
    """End a try that computes nothing, in Airflow's terms."""
    match outcome:
        case Exhausted():
            _note(office, request.key, f"Weir: killed, not tried again. {outcome.reason}", tell)
            # Airflow asks no retry policy about this exception: the restart strategy has answered already.
            raise AirflowFailException(outcome.reason)
        case NotInRecord():
            tell(outcome.note)
            office.clearer.annotate(request.key, outcome.note)
            return {"note": outcome.note}
        case _:
            raise Internal(f"{request.key} cannot end with {type(outcome).__name__}")


def _note(office: Office, key: TaskKey, note: str, tell: Callable[[str], None]) -> None:
    """Leave a note at the task instance, which ends as it does also where that fails."""
    try:
        office.clearer.annotate(key, note)
    except WeirError as error:
        tell(f"No note was left at the task instance: {error}")


def _compute(office: Office, engine: Engine, key: TaskKey, begun: Begun, tell: Callable[[str], None]) -> dict[str, Any]:
    attempt, job = begun.attempt, begun.job
    # A record for people, and for engines that start a process of their own from it.
    office.store.create(f"{job.folder}/{JOB_NAME}", region_job_to_json(job))
    tell(f"Attempt {attempt.id} of {attempt.region} computes at {attempt.session_url}, session {attempt.session_id}")
    with renewed(office.coordinator, attempt, tell), _inputs_blamed(office.coordinator, begun):
        engine.run(job, attempt.session_id, tell)
    report = region_report_from_json(office.store.read(job.report))
    judged = _judged(office, begun, report, tell)
    committed = office.coordinator.commit(begun, judged.report, office.clearer)
    for each in judged.notes:
        tell(f"Committed, with a warning: {each}")
    if judged.notes:
        _note(office, key, f"Weir: committed, with a warning: {'; '.join(judged.notes)}", tell)
    if committed.owed:
        _settle(office, begun.run.dataflow.name, tell)
    _release(office, begun.run.dataflow.name, tell, committed.touched)
    return dict(committed.summary)


def _judged(office: Office, begun: Begun, report: RegionReport, tell: Callable[[str], None]) -> Judged:
    """The verdict on what was written; where a person is to look at it, there is a page about why."""
    try:
        return office.coordinator.judge(begun, report)
    except QualityFailed as failed:
        if failed.is_final:  # what is tried again is not to wait for a page
            make_pages_of(office, begun.attempt.id, tell)
        raise


def _release(office: Office, dataflow: str, tell: Callable[[str], None], runs: Sequence[str] | None = None) -> None:
    """Release what nobody needs. This task does not depend on it: where it fails, upkeep does it."""
    try:
        deleted = office.coordinator.release(dataflow, runs)
    except WeirError as error:
        tell(f"What nobody needs any more is still there: {error}")
        return
    if deleted:
        size = sum(each.bytes for each in deleted)
        tell(f"Released {len(deleted)} result partition(s) that nobody needs any more: {size} bytes")


@contextmanager
def _inputs_blamed(coordinator: Coordinator, begun: Begun) -> Iterator[None]:
    """Where a computation fails because an input is gone or damaged, say that instead of what Spark says of it.

    One that Spark could not read, and that the store has as recorded, was only away for a moment.
    """
    try:
        yield
    except InputUnreadable as error:
        coordinator.check_inputs(begun)
        raise InputUnreadable(
            f"{error}. By now it is there, as recorded: nothing is lost, and the task tries again"
        ) from error
    except (Fenced, Retryable):
        raise
    except Exception as error:
        try:
            coordinator.check_inputs(begun)
        except ResultUnavailable as unavailable:
            raise unavailable from error
        raise


def begin_request(declared: Declaration, context: Context, session_url: str, deployed: RestartChoice) -> BeginRequest:
    """What the coordinator needs to know of this try; `deployed` is what the deployment says of restarts."""
    ti = context["ti"]
    return BeginRequest(
        key=task_key(context),
        try_number=ti.try_number,
        max_tries=ti.max_tries,
        ti_id=str(ti.id),
        dataflow=declared.flow,
        task_prefix=declared.task_prefix,
        interval=data_interval(context),
        session_url=session_url,
        clear_number=getattr(context["dag_run"], "clear_number", None) or 0,
        parameters=parameters_of(declared, context),
        previous=previous_run(context) if declared.topology.reads_previous else None,
        restart=declared.restart_strategy(deployed),
        is_backfill=is_backfill(context),
    )


def previous_run(context: Context) -> PreviousRun | None:
    """The newest earlier DagRun that Airflow knows, in whatever state; None where none has an interval."""
    found = context["ti"].get_previous_dagrun()
    if found is None or found.data_interval_start is None or found.data_interval_end is None:
        return None
    interval = (found.data_interval_start, found.data_interval_end)
    return PreviousRun(found.dag_id, found.run_id, interval, _is_queued_behind(context, found))


def _is_queued_behind(context: Context, found: DagRunProtocol) -> bool:
    """Whether Airflow runs a backfill from its end: it has not started an earlier run of it, but a later one."""
    kinds = {_kind(found), _kind(context["dag_run"])}
    state = str(getattr(found.state, "value", found.state))
    return kinds == {"backfill"} and state == "queued" and found.start_date is None


def is_backfill(context: Context) -> bool:
    """Whether the run is one of a backfill: what it makes is no fresh result."""
    return _kind(context["dag_run"]) == "backfill"


def _kind(run: DagRunProtocol) -> str:
    return str(getattr(run.run_type, "value", run.run_type))


def parameters_of(declared: Declaration, context: Context) -> dict[str, Any]:
    """The dataflow's parameters, as this run was triggered: with the values that its configuration has for them."""
    params = context["params"]
    return {name: params.get(name, value) for name, value in declared.flow.parameters.items()}


def task_key(context: Context) -> TaskKey:
    """The task instance; mapped ones have their index, others -1."""
    ti = context["ti"]
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)


def data_interval(context: Context) -> tuple[datetime, datetime]:
    """The run's interval, the epoch. Raises Misconfigured for a run without one."""
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or end is None:
        raise Misconfigured(
            f"The run {run.run_id!r} of {run.dag_id!r} has no data interval, and that is a dataflow's epoch. "
            "Trigger it with a logical date, and give the DAG a schedule with intervals: a cron string to "
            "dataflow_dag, or CronDataIntervalTimetable to the DAG that holds the group"
        )
    return start, end


def _interrupt(office: Office, spark: Connection, outcome: object, tell: Callable[[str], None]) -> None:
    """Stop the Spark work of earlier attempts, so that it neither competes for memory nor outlives its region."""
    works: tuple[SparkWork, ...] = getattr(outcome, "interrupt", ())
    for work in works:
        if not work.session_url:
            continue
        tell(f"Stopping the Spark work of attempt {work.attempt}, session {work.session_id}")
        try:
            account = _account(office, spark, work.session_url)
            engine_at(work.session_url, account, office.store, office.store_options).interrupt(work)
        except Retryable as error:
            # Gone, and the session with it. Should it live after all, a fenced attempt cannot commit.
            tell(f"That server does not answer: {error}")


def _account(office: Office, spark: Connection, address: str) -> Connection:
    """The connection to reach an earlier attempt's engine with: the present one, or that of the settings if it fits."""
    if is_of_kind(spark, address):
        return spark
    try:
        usual = office.spark()
    except Misconfigured:
        return spark  # there may be no other, and a server without accounts needs none
    return usual if is_of_kind(usual, address) else spark
