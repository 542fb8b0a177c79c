"""The epoch of a DagRun: its data interval, or the epoch of its dataflow's cadence that begins at its partition.

Invariant: a run that is pinned keeps its interval, whatever the cadence is by now. A DagRun that data sets or a person
have started without an epoch computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.errors import Misconfigured
from weir.execution.cadence import Cadence
from weir.intervals import start_of_partition
from weir.ledger.runs import PreviousRun, epoch_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

    from weir.topology.ids import Epoch
    from weir_airflow.api.clearing import AirflowApi
    from weir_airflow.dags.declaration import Declaration

Interval = tuple["datetime", "datetime"]


def start_of_epoch(declared: Declaration, context: Context) -> datetime:
    """Return the start of the run's epoch. Raises Misconfigured for a run that has none."""
    run = context["dag_run"]
    own = _own(declared, run)
    if own is not None:
        return own[0]
    start = start_of_partition(run.partition_key, getattr(run, "partition_date", None), declared.zone)
    if start is not None:
        return start
    if run.partition_key is not None:
        raise Misconfigured.of(
            "tasks.partition_unreadable", key=run.partition_key, run_id=run.run_id, dag_id=run.dag_id
        )
    cadence = Cadence.of(declared.cadence, declared.zone)
    if not declared.is_partitioned or cadence is None:
        raise Misconfigured.of("tasks.no_interval", run_id=run.run_id, dag_id=run.dag_id)
    dated = _dated(run)
    # Of a cadence by length an epoch begins at any time.
    if dated is not None and cadence.length is None and cadence.interval_at(dated[0]) is not None:
        return dated[0]  # such as that of `dag.test(logical_date=...)`
    example = epoch_of(next(cadence.after(run.run_after))[0])
    raise Misconfigured.of("tasks.no_partition", run_id=run.run_id, dag_id=run.dag_id, example=example)


def data_interval(declared: Declaration, context: Context, pinned: Callable[[Epoch], Interval | None]) -> Interval:
    """Return the interval of the run's epoch; `pinned` has that of an epoch which the DagRun owns already.

    Raises Misconfigured for a run that has none.
    """
    run = context["dag_run"]
    own = _own(declared, run)
    if own is not None:
        return own
    start = start_of_epoch(declared, context)
    cadence = Cadence.of(declared.cadence, declared.zone)
    found = (None if cadence is None else cadence.interval_at(start)) or pinned(epoch_of(start))
    if found is not None:
        return found
    if cadence is None:
        raise Misconfigured.of("tasks.no_interval", run_id=run.run_id, dag_id=run.dag_id)
    raise Misconfigured.of(
        "tasks.partition_off_cadence",
        run_id=run.run_id,
        dag_id=run.dag_id,
        key=run.partition_key,
        start=start,
        dataflow=declared.flow.name,
        every=cadence.every,
        zone=cadence.zone,
        next=next(cadence.after(start))[0],
    )


def previous_run(
    declared: Declaration, context: Context, interval: Interval, airflow: Callable[[], AirflowApi]
) -> PreviousRun | None:
    """Return the newest earlier DagRun that Airflow knows, in whatever state; None where none has an epoch.

    Airflow finds none before a run with a partition, which has no logical date: there the plugin's endpoint does.
    """
    run, cadence = context["dag_run"], Cadence.of(declared.cadence, declared.zone)
    if (declared.is_partitioned or run.partition_key is not None) and cadence is not None:
        key = run.partition_key or epoch_of(interval[0])
        earlier = airflow().run_before(run.dag_id, interval[0], key, cadence)
        return None if earlier is None else PreviousRun(run.dag_id, earlier.run_id, earlier.interval)
    found = context["ti"].get_previous_dagrun()
    dated = None if found is None else _dated(found)
    if found is None or dated is None:
        return None
    return PreviousRun(found.dag_id, found.run_id, dated, _is_queued_after(run, found))


def is_backfill(context: Context) -> bool:
    """Report whether the run is one of a backfill, whose results are no fresh ones."""
    return _kind(context["dag_run"]) == "backfill"


def _own(declared: Declaration, run: DagRunProtocol) -> Interval | None:
    """Return the data interval of a run that has one: Airflow gives a run without length to a person's trigger."""
    dated = _dated(run)
    return None if dated is None or (declared.is_partitioned and dated[0] == dated[1]) else dated


def _dated(run: DagRunProtocol) -> Interval | None:
    start, end = run.data_interval_start, run.data_interval_end
    return None if start is None or end is None else (start, end)


def _is_queued_after(run: DagRunProtocol, earlier: DagRunProtocol) -> bool:
    """Report whether Airflow runs a backfill from its end: this run of it has started, an earlier one has not."""
    state = str(getattr(earlier.state, "value", earlier.state))
    return {_kind(earlier), _kind(run)} == {"backfill"} and state == "queued" and earlier.start_date is None


def _kind(run: DagRunProtocol) -> str:
    return str(getattr(run.run_type, "value", run.run_type))
