"""Compare and clear, in one transaction of Airflow's own database; and enter the assets of sinks and events there.

Invariant: a task instance is cleared only while its run is locked, it has finished, and its try is the expected one;
so of several concurrent requests one clears, and the others answer what they found.
Imported where Airflow's database may be used: in the api-server, and in process under `dag.test()`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from airflow.api.common.airflow_health import get_airflow_health
from airflow.assets.manager import asset_manager
from airflow.models.asset import AssetActive, AssetAliasModel, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.serialization.definitions.assets import SerializedAssetUniqueKey
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, State, TaskInstanceState
from sqlalchemy import false, func, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from weir.coordination.airflow import (
    MOST_RUNS,
    ClearAnswer,
    ClearItem,
    EarlierRun,
    OpenRun,
    SeenDag,
    SeenRun,
    UserRights,
    by_dag,
)
from weir.coordination.clearing import HEALTHY
from weir.coordination.values import TaskKey
from weir.execution.airflow_words import CLEARABLE, MISSING, UNSUCCESSFUL
from weir.execution.cadence import Cadence
from weir.execution.failure_words import NOTE_LENGTH, noted
from weir.intervals import start_of_partition
from weir_airflow.assets import sink_alias, sink_asset

_ITEMS_A_QUERY: Final = 300
_Key = tuple[str, str, int]


def compare_and_clear(
    session: Session,
    dag_id: str,
    wanted: Sequence[ClearItem],
    *,
    user_id: str | None = None,
    user_name: str = "weir",
    dry_run: bool = False,
) -> list[ClearAnswer]:
    """Clear what has finished and has the expected try; answer for each item, in order.

    A finished run is set running, not queued: queued, `max_active_runs` may hold it back for runs that wait for it.
    An active run keeps its state. With `dry_run` nothing is locked or changed and `cleared` says what would be.
    """
    if not dry_run:
        _lock_runs(session, dag_id, {item.run_id for item in wanted})
    found = _task_instances(session, dag_id, wanted, is_locked=not dry_run)
    answers = [_answer(item, found.get(_key(item))) for item in wanted]
    if dry_run:
        return answers
    chosen = {_key(answer.item): answer for answer in answers if answer.cleared}
    _clear(session, [found[key] for key in chosen])
    for key, answer in chosen.items():
        _record(session, found[key], answer, user_id=user_id, user_name=user_name)
    session.flush()
    return answers


def start_queued(session: Session, dag_id: str, run_id: str, *, user_name: str = "weir") -> tuple[str, bool]:
    """Set a queued run running that a run of a later epoch waits for; return the state found, and whether it was set.

    A later run that waits for this one would hold its place among the active runs for ever, so running runs of later
    epochs do not count here. Runs of earlier epochs do: this one is not started where `max_active_runs` of them are
    running. What is paused is not started. The state is `missing` where there is no such run.

    A later run would also wait for ever for a finished run of which a task instance has been cleared: without row locks
    (SQLite), a scheduler that had read that run before the clear sets it finished after the clear. It is set running
    again, as the clear had.
    """
    _lock_runs(session, dag_id, {run_id})
    query = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    dag_run = session.scalar(query.with_for_update(of=DagRun).execution_options(populate_existing=True))
    if dag_run is None:
        return MISSING, False
    found = str(dag_run.state)
    may_start = dag_run.state == DagRunState.QUEUED and _has_place(session, dag_run)
    if may_start or _is_stranded(session, dag_run):
        dag_run.state = DagRunState.RUNNING
        dag_run.start_date = datetime.now(UTC)
        session.add(Log(event="weir_start", owner=user_name, dag_id=dag_id, run_id=run_id))
        session.flush()
    return found, may_start


def _has_place(session: Session, dag_run: DagRun) -> bool:
    """Report whether fewer runs of earlier epochs are running than may be, of its backfill or else of its DAG."""
    dag, backfill = session.get_one(DagModel, dag_run.dag_id), dag_run.backfill
    if dag.is_paused or (backfill is not None and backfill.is_paused):
        return False
    most = dag.max_active_runs if backfill is None else backfill.max_active_runs
    is_of_same = DagRun.backfill_id.is_(None) if backfill is None else DagRun.backfill_id == backfill.id
    running = select(func.count(DagRun.id)).where(
        DagRun.dag_id == dag_run.dag_id, is_of_same, DagRun.state == DagRunState.RUNNING
    )
    if dag_run.logical_date is not None:
        running = running.where(DagRun.logical_date < dag_run.logical_date)
    elif dag_run.partition_key is not None:  # keys of one dataflow sort as their times
        running = running.where(DagRun.partition_key < dag_run.partition_key)
    return not most or (session.scalar(running) or 0) < most


def _is_stranded(session: Session, dag_run: DagRun) -> bool:
    cleared = select(TaskInstance.id).where(
        TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id, TaskInstance.state.is_(None)
    )
    return dag_run.state in State.finished_dr_states and session.scalar(cleared.limit(1)) is not None


def run_before(session: Session, dag_id: str, start: datetime, key: str, cadence: Cadence) -> EarlierRun | None:
    """Return the newest DagRun of an epoch before `start`, in any state: Airflow itself finds none without a date.

    Keys are compared as texts, as those of one dataflow sort. One at which no epoch of the cadence begins is of none.
    """
    of_dag = DagRun.dag_id == dag_id
    is_interval = DagRun.data_interval_start < DagRun.data_interval_end
    dated = select(DagRun).where(of_dag, is_interval, DagRun.data_interval_start < start)
    dated = dated.order_by(DagRun.data_interval_start.desc()).limit(1)
    keyed = select(DagRun).where(of_dag, DagRun.partition_key < key).order_by(DagRun.partition_key.desc())
    found = [
        EarlierRun(each.run_id, (each.data_interval_start, each.data_interval_end)) for each in session.scalars(dated)
    ]
    for each in session.scalars(keyed.limit(MOST_RUNS)):
        at = start_of_partition(each.partition_key, each.partition_date, cadence.zone)
        interval = None if at is None or at >= start else cadence.interval_at(at)
        if interval is not None:
            found.append(EarlierRun(each.run_id, interval))
            break
    return max(found, key=lambda each: each.interval, default=None)


def enter_assets(session: Session, dataflow: str, sinks: Iterable[str]) -> None:
    """Enter those assets of sinks, with their aliases, that Airflow's database does not have, and commit.

    They are active, unless an active one has their name already: of an inactive one no event with a partition is kept.
    """
    # SQLite has one writer: who has read before cannot become it once another one was.
    session.execute(update(AssetModel).where(false()).values(name=AssetModel.name))
    for sink in sorted(sinks):
        asset, alias = sink_asset(dataflow, sink), sink_alias(dataflow, sink)
        of_asset = select(AssetModel).where(AssetModel.name == asset.name, AssetModel.uri == asset.uri)
        of_alias = select(AssetAliasModel).where(AssetAliasModel.name == alias.name)
        with suppress(IntegrityError), session.begin_nested():  # another request has entered both
            model = session.scalar(of_asset) or AssetModel(name=asset.name, uri=asset.uri, group=asset.group)
            session.add(model)
            if alias.name not in {each.name for each in model.aliases}:
                model.aliases.append(session.scalar(of_alias) or AssetAliasModel(name=alias.name, group=alias.group))
        with suppress(IntegrityError), session.begin_nested():
            model = session.scalars(of_asset).one()
            if model.active is None:
                session.add(AssetActive.for_asset(model))
    session.commit()


def announce(session: Session, key: TaskKey, dataflow: str, events: Mapping[str, Mapping[str, Any]]) -> None:
    """Emit an event without a partition for each sink, with its `extra`, as from a task; and commit.

    Those that the task itself emits have the partition of its run, which starts no DAG with `schedule=[asset]`.
    """
    enter_assets(session, dataflow, events)
    ti = _task_instance(session, key)
    for sink, extra in events.items():
        asset, alias = sink_asset(dataflow, sink), sink_alias(dataflow, sink)
        asset_manager.register_asset_change(
            task_instance=ti,
            asset=SerializedAssetUniqueKey(asset.name, asset.uri),
            extra=dict(extra),
            source_alias_names=[alias.name],
            session=session,
        )
    session.commit()


class DbClearer:
    """Airflow by its database, in this process: in the api-server, and under `dag.test()`, which allows it."""

    def clear(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Clear what matches, in one transaction a DAG."""
        return self._compare(wanted, is_dry_run=False)

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        return self._compare(wanted, is_dry_run=True)

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running; answer the state found."""
        with create_session(scoped=False) as session:
            return start_queued(session, dag_id, run_id)[0]

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Report whether there is this DagRun; None where Airflow does not know the DAG, either."""
        with create_session(scoped=False) as session:
            if _run(session, dag_id, run_id) is not None:
                return True
            return None if session.get(DagModel, dag_id) is None else False

    def note(self, key: TaskKey) -> str:
        """Return a task instance's note, "" where there is none."""
        with create_session(scoped=False) as session:
            found = _task_instance(session, key)
            return "" if found is None else found.note or ""

    def annotate(self, key: TaskKey, note: str) -> None:
        """Set a task instance's note; one that Airflow does not know has none."""
        with create_session(scoped=False) as session:
            found = _task_instance(session, key)
            if found is not None:
                _write_note(found, note[:NOTE_LENGTH], None)

    def seen_run(self, dag_id: str, run_id: str) -> SeenRun | None:
        """Return state and note of a DagRun."""
        with create_session(scoped=False) as session:
            found = _run(session, dag_id, run_id)
            return None if found is None else SeenRun(str(found.state), found.note or "")

    def seen_dag(self, dag_id: str) -> SeenDag | None:
        """Look at a DAG and at the scheduler."""
        with create_session(scoped=False) as session:
            found = session.get(DagModel, dag_id)
            told = None if found is None else (bool(found.is_paused), bool(found.has_import_errors))
        if told is None:
            return None
        is_paused, has_import_errors = told
        return SeenDag(is_paused, get_airflow_health()["scheduler"]["status"] == HEALTHY, has_import_errors)

    def pause(self, dag_id: str, *, is_paused: bool) -> None:
        """Pause or unpause a DAG."""
        with create_session(scoped=False) as session:
            found = session.get(DagModel, dag_id)
            if found is not None:
                found.is_paused = is_paused

    def clear_run(self, dag_id: str, run_id: str) -> int:
        """Clear all task instances of a run that have ended, in one transaction."""
        of_run = select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
        with create_session(scoped=False) as session:
            _lock_runs(session, dag_id, [run_id])
            found = list(session.scalars(of_run.where(TaskInstance.state.in_({*CLEARABLE, TaskInstanceState.SKIPPED}))))
            _clear(session, found)
            return len(found)

    def open_runs(self, dag_id: str, zone: str = "UTC") -> list[OpenRun]:
        """Return the newest runs of a DAG that are no success, and have a data interval or a partition."""
        has_start = DagRun.data_interval_start.is_not(None) | DagRun.partition_key.is_not(None)
        query = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.state.in_(UNSUCCESSFUL), has_start)
        with create_session(scoped=False) as session:
            rows = session.scalars(query.order_by(DagRun.run_after.desc()).limit(MOST_RUNS))
            found = [(row, _interval(row, zone)) for row in rows]
            return [OpenRun(row.run_id, str(row.state), interval) for row, interval in found if interval is not None]

    def run_before(self, dag_id: str, start: datetime, key: str, cadence: Cadence) -> EarlierRun | None:
        """Return the newest run of an earlier epoch, in any state."""
        with create_session(scoped=False) as session:
            return run_before(session, dag_id, start, key, cadence)

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a run's note; one that Airflow does not know has none."""
        with create_session(scoped=False) as session:
            found = _run(session, dag_id, run_id)
            if found is None:
                return
            if found.dag_run_note is None:
                found.note = (note[:NOTE_LENGTH], None)
            else:
                found.dag_run_note.content = note[:NOTE_LENGTH]

    def rights(self, dag_id: str, user: str) -> UserRights:
        """Ask the auth manager of Airflow's configuration."""
        from airflow.api_fastapi.app import create_auth_manager  # noqa: PLC0415  the app may be being made

        from weir_airflow.api.users import rights_named  # noqa: PLC0415  likewise

        return rights_named(create_auth_manager(), user, dag_id)

    def enter_assets(self, dag_id: str, dataflow: str, sinks: Sequence[str]) -> None:  # noqa: ARG002  no rights here
        """Enter the assets of sinks that the database does not have."""
        with create_session(scoped=False) as session:
            enter_assets(session, dataflow, sinks)

    def announce(self, key: TaskKey, dataflow: str, events: Mapping[str, Mapping[str, Any]]) -> None:
        """Emit an event without a partition of each sink's asset."""
        with create_session(scoped=False) as session:
            announce(session, key, dataflow, events)

    def can_defer(self, pool: str) -> bool:
        """Report whether a triggerer runs, and deferred tasks hold no slot of a pool."""
        found = Pool.get_pool(pool)
        is_counted = found is None or found.include_deferred
        return not is_counted and get_airflow_health()["triggerer"]["status"] == HEALTHY

    def _compare(self, wanted: Sequence[ClearItem], *, is_dry_run: bool) -> list[ClearAnswer]:
        answers: dict[ClearItem, ClearAnswer] = {}
        for dag_id, items in by_dag(wanted):
            with create_session(scoped=False) as session:
                found = compare_and_clear(session, dag_id, items, dry_run=is_dry_run)
            answers.update((answer.item, answer) for answer in found)
        return [answers[item] for item in wanted]


def _interval(dag_run: DagRun, zone: str) -> tuple[datetime, datetime] | None:
    if dag_run.data_interval_start is not None:
        return dag_run.data_interval_start, dag_run.data_interval_end
    start = start_of_partition(dag_run.partition_key, dag_run.partition_date, zone)
    return None if start is None else (start, start)


def _run(session: Session, dag_id: str, run_id: str) -> DagRun | None:
    return session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))


def _task_instance(session: Session, key: TaskKey) -> TaskInstance | None:
    item = ClearItem(key.dag_id, key.run_id, key.task_id, key.map_index, None)
    return _task_instances(session, key.dag_id, [item], is_locked=False).get(_key(item))


def _lock_runs(session: Session, dag_id: str, run_ids: Iterable[str]) -> None:
    """Lock each run's row by an update that changes nothing, always in the same order.

    SQLite has no `FOR UPDATE`: only a write makes it lock before it reads, and a transaction that read first could
    not write any more once another has committed.
    """
    for run_id in sorted(run_ids):
        session.execute(
            update(DagRun)
            .where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            .values(clear_number=DagRun.clear_number, updated_at=DagRun.updated_at)
            .execution_options(synchronize_session=False)
        )


def _task_instances(
    session: Session, dag_id: str, wanted: Sequence[ClearItem], *, is_locked: bool
) -> Mapping[_Key, TaskInstance]:
    keys = sorted({_key(item) for item in wanted})
    found: dict[_Key, TaskInstance] = {}
    for start in range(0, len(keys), _ITEMS_A_QUERY):
        chunk = keys[start : start + _ITEMS_A_QUERY]
        query = (
            select(TaskInstance)
            .where(
                TaskInstance.dag_id == dag_id,
                tuple_(TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index).in_(chunk),
            )
            .order_by(TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
            .execution_options(populate_existing=True)
        )
        rows = session.scalars(query.with_for_update(of=TaskInstance) if is_locked else query)
        found.update(((row.run_id, row.task_id, row.map_index), row) for row in rows)
    return found


def _answer(item: ClearItem, found: TaskInstance | None) -> ClearAnswer:
    if found is None:
        return ClearAnswer(item, MISSING, 0, cleared=False)
    has_expected_try = item.expected_try is None or item.expected_try == found.try_number
    state = None if found.state is None else str(found.state)
    is_clearable = found.state in CLEARABLE or (item.is_skipped and found.state == TaskInstanceState.SKIPPED)
    is_cleared = is_clearable and has_expected_try
    return ClearAnswer(item, state, found.try_number, cleared=is_cleared, ti_id=str(found.id))


def _clear(session: Session, chosen: Sequence[TaskInstance]) -> None:
    finished = [ti for ti in chosen if ti.dag_run.state in State.finished_dr_states]
    active = [ti for ti in chosen if ti.dag_run.state not in State.finished_dr_states]
    clear_task_instances(finished, session, dag_run_state=DagRunState.RUNNING)
    # Resetting an active run would move its `queued_at` and with it the deadlines that are counted from there.
    clear_task_instances(active, session, dag_run_state=False)


def _record(
    session: Session, cleared: TaskInstance, answer: ClearAnswer, *, user_id: str | None, user_name: str
) -> None:
    note = answer.item.note
    if note:
        _write_note(cleared, noted(note, cleared.note or ""), user_id)
    extra = {"note": note, "state": answer.state, "try_number": answer.try_number}
    session.add(Log(event="weir_clear", task_instance=cleared, owner=user_name, extra=json.dumps(extra)))


def _write_note(ti: TaskInstance, note: str, user_id: str | None) -> None:
    if ti.task_instance_note is None:
        ti.note = (note, user_id)
        return
    ti.task_instance_note.content = note
    ti.task_instance_note.user_id = user_id


def _key(item: ClearItem) -> _Key:
    return (item.run_id, item.task_id, item.map_index)
