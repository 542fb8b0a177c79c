"""Stores runs, and the owners of their epochs.

Invariants:
- An epoch has one owner, which is pinned to the dataflow of its first begin. Only `forget_pin` changes the pin,
  regardless of later DAG files.
- Invariant 2: Airflow counts the tries of a DagRun from 1, so the attempts of deleted DagRuns get numbers below 1. A
  task instance has one id per try, so an attempt with the same try and another id is one of a deleted DagRun.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from weir.dataflow import Dataflow, FailoverStrategy
from weir.dataflow.dataflow import FAILOVER
from weir.dataflow.retention_settings import RetentionSettings
from weir.dataflow.validation import require_no_secrets
from weir.errors import Misconfigured, Retryable
from weir.execution.cadence import Cadence, KnownEpoch
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.database.tables import (
    NO_DAG,
    AttemptRow,
    DataflowRow,
    PendingClearRow,
    ResultRow,
    RunRow,
    SourceSplitRow,
    Table,
)
from weir.ledger.epochs import require_same_kind, require_sound_epoch
from weir.ledger.failed_begins import forget_failed_begins
from weir.ledger.names import SHOWN, as_epoch, unknown_run
from weir.ledger.outbox import note_begins_anew
from weir.ledger.results import latest_sizes, layouts_of_run
from weir.topology.ids import Epoch, RunId
from weir.topology.layouts import chosen_layouts, pinned_json
from weir.topology.regions import Topology

_OF_A_DAY = re.compile(r"[^@]+@\d{8}(T\d*)?")

_OF_EPOCH = select(RunRow).where(RunRow.dataflow == bindparam("dataflow"), RunRow.epoch == bindparam("epoch"))

_RUNS = Table.metadata.tables[RunRow.__tablename__]

_MARK = update(_RUNS).where(_RUNS.c.id == bindparam("run")).values(closed_at=bindparam("now"))

_CLOSE, _REOPEN = _MARK.where(_RUNS.c.closed_at.is_(None)), _MARK.where(_RUNS.c.closed_at.is_not(None))

_DATAFLOW = select(DataflowRow).where(DataflowRow.name == bindparam("dataflow"))
"""Built once: each task runs this query when it begins."""

_NEWEST_PINNED = (
    select(RunRow.pinned)
    .where(RunRow.dataflow == bindparam("dataflow"), RunRow.is_pinned)
    .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
    .limit(1)
)

_NEWEST_OF_EACH = select(
    DataflowRow.name,
    select(RunRow.pinned)
    .where(RunRow.dataflow == DataflowRow.name, RunRow.is_pinned)
    .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
    .limit(1)
    .scalar_subquery(),
).order_by(DataflowRow.name)

_HAS_RANGE = (
    select(SourceSplitRow.run).where(SourceSplitRow.run == RunRow.id, SourceSplitRow.position.is_not(None)).exists()
)
"""What a source that goes on has read in a run is not read again, also if its DagRun was deleted."""

_EARLIER = select(func.max(RunRow.epoch)).where(
    RunRow.dataflow == bindparam("dataflow"),
    RunRow.epoch < bindparam("epoch"),
    ~RunRow.is_given_up | _HAS_RANGE,
    RunRow.sealed_at.is_(None),
)

_LATER = select(RunRow.id).where(RunRow.dataflow == bindparam("dataflow"), RunRow.epoch > bindparam("epoch")).limit(1)

_OPEN_AGAIN = (
    select(RunRow.id)
    .where(
        RunRow.dataflow == bindparam("dataflow"),
        RunRow.epoch > bindparam("epoch"),
        RunRow.closed_at.is_(None),
        select(AttemptRow.id)
        .where(
            AttemptRow.run == RunRow.id,
            AttemptRow.region == CLOSE.name,
            AttemptRow.state == AttemptState.COMMITTED.value,
            AttemptRow.is_of_dag_run,
        )
        .exists(),
        ~select(PendingClearRow.id)
        .where(PendingClearRow.run == RunRow.id, PendingClearRow.settled_at.is_(None))
        .exists(),
    )
    .order_by(RunRow.epoch)
)

FIRST_LINEAGE = 1
"""The lineage of a dataflow at its first begin."""

ZONE = "zone"
"""The field of the record that a run is pinned to with its schedule's time zone, which is no part of a dataflow."""

CADENCE = "cadence"
"""The field of that record with `every` of the schedule's cadence, which is read in the zone; absent without one."""

Owner = tuple[str, str, tuple[datetime, datetime]]
"""The DAG, the run id and the data interval of the DagRun that owns an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that owns an epoch of a dataflow. `interval` is in UTC, its end exclusive."""

    id: RunId
    topology: Topology
    epoch: Epoch
    interval: tuple[datetime, datetime]
    dag_id: str
    run_id: str
    task_prefix: str
    parameters: Mapping[str, Any]
    predecessor: Epoch | None
    lineage: int
    zone: str = "UTC"
    """The time zone of the schedule by which it was pinned."""
    cadence: Cadence | None = None
    """How epochs follow each other by that schedule; None where it does not say."""
    pinned_to: str = ""
    """The fingerprint of the record that it is pinned to."""

    @property
    def dataflow(self) -> Dataflow:
        """The dataflow that the run is pinned to."""
        return self.topology.dataflow

    @property
    def has_dag_run(self) -> bool:
        """Report whether a DagRun computes it; a run that was only restored has none."""
        return self.dag_id != NO_DAG

    @property
    def predecessor_run(self) -> RunId | None:
        """The id of the run of the epoch before; None in the first."""
        return None if self.predecessor is None else run_key(self.dataflow.name, self.predecessor)


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """Airflow's newest DagRun with an earlier data interval, in any state."""

    dag_id: str
    run_id: str
    interval: tuple[datetime, datetime]
    is_queued: bool = False
    """Both runs are of one backfill, and this one is queued after the later one: the backfill runs backwards."""

    @property
    def owner(self) -> Owner:
        """The DagRun as the owner of its epoch."""
        return self.dag_id, self.run_id, self.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A DagRun of which a task begins, possibly the first."""

    dataflow: Dataflow
    interval: tuple[datetime, datetime]
    dag_id: str
    run_id: str
    task_prefix: str
    parameters: Mapping[str, Any]
    store_id: str
    small_result: int
    previous: PreviousRun | None = None
    zone: str = "UTC"
    cadence: str | None = None
    """`every` of the schedule's cadence."""
    failover: FailoverStrategy = FailoverStrategy.REGION
    """The deployment's, which the run is pinned to where the dataflow declares none."""

    @property
    def owner(self) -> Owner:
        """The DagRun as the owner of its epoch."""
        return self.dag_id, self.run_id, self.interval


class EpochOwned(Misconfigured):
    """Another DagRun owns the epoch: `dag_id`, `run_id`, and the `task_prefix` of its tasks.

    `is_repeated` says that it is one of the same DAG, with the same data interval.
    """

    def __init__(self, row: RunRow, new: NewRun) -> None:
        self.dag_id, self.run_id, self.task_prefix = row.dag_id, row.run_id, row.task_prefix
        self.is_repeated = (row.dag_id, owner_interval(row)) == (new.dag_id, new.interval)
        super().__init__(
            f"epoch {row.epoch} of dataflow {row.dataflow} belongs to run {row.run_id} of DAG {row.dag_id}: "
            f"run {new.run_id} of DAG {new.dag_id} {_shared(row, new)} and would write the same results. "
            f"Clear {row.run_id} to compute the epoch again, and delete {new.run_id}. Or delete {row.run_id}, once no "
            f"task of it runs, and clear {new.run_id}, which then computes the epoch in its place"
        )


def _shared(row: RunRow, new: NewRun) -> str:
    if (row.interval_start, row.interval_end) == new.interval:
        return "has the same data interval"
    found = [f"{start.isoformat()} to {end.isoformat()}" for start, end in (owner_interval(row), new.interval)]
    return f"has a data interval that begins in the same second ({found[1]}; that of {row.run_id} is {found[0]})"


def owner_interval(row: RunRow) -> tuple[datetime, datetime]:
    """Return the data interval of the DagRun that owns an epoch."""
    return row.interval_start, row.interval_end


def epoch_of(start: datetime) -> Epoch:
    """Return the key of an epoch: the start of its interval in UTC, to the second. Keys are compared as texts."""
    at = start.astimezone(UTC)
    return Epoch(f"{at.year:04d}{at:%m%dT%H%M%SZ}")


def start_of(epoch: str) -> datetime:
    """Return the start of the interval of an epoch."""
    return datetime.strptime(epoch, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def run_key(dataflow: str, epoch: str) -> RunId:
    """Return the id of the run that owns an epoch."""
    return RunId(f"{dataflow}@{epoch}")


def dataflow_of(run: str) -> str:
    """Return the name of the dataflow of the run with this id."""
    return run.partition("@")[0]


def epoch_of_run(run: str) -> Epoch:
    """Return the epoch of the run with this id."""
    return Epoch(run.partition("@")[2])


def ensure_dataflow(session: Session, name: str, store_id: str) -> DataflowRow:
    """Return the row of a dataflow, added at its first begin. Raises Retryable if its results are in another store."""
    row = session.scalar(_DATAFLOW, {"dataflow": name})
    if row is None:
        row = DataflowRow(name=name, lineage=FIRST_LINEAGE, store_id=store_id)
        session.add(row)
        session.flush()
    if row.store_id != store_id:
        raise Retryable.of("ledger.other_store", name=name, store_id=row.store_id, mounted=store_id)
    return row


def own_epoch(session: Session, new: NewRun, now: datetime, on_pin: Callable[[RunRow], None]) -> Run:
    """Return the run of this epoch, created and pinned by its first task that begins.

    `on_pin` is called if the run is pinned now, or begins again after it had expired.

    Raises EpochOwned if another DagRun owns the epoch, and Misconfigured where a parameter looks like a secret.
    """
    dataflow = ensure_dataflow(session, new.dataflow.name, new.store_id)
    epoch = epoch_of(new.interval[0])
    row = session.scalar(_OF_EPOCH, {"dataflow": dataflow.name, "epoch": epoch})
    if row is None:
        row = _row(new, epoch, new.owner, now)
        session.add(row)
    if (row.dag_id, row.run_id) == (new.dag_id, new.run_id):
        row.deleted_at = None  # its DagRun exists, since a task of it begins
    else:
        if row.pinned is not None:
            raise EpochOwned(row, new)
        # Not pinned: the first DagRun that begins owns the epoch.
        hand_over(session, row, new.owner, new.task_prefix)
    require_same_kind(row, new.dataflow)
    was_expired, row.expired_at = row.expired_at is not None, None
    if row.pinned is None:
        require_no_secrets(dataflow.name, (), new.parameters)
        dataflow.first_epoch = min(dataflow.first_epoch or epoch, epoch)
        row.pinned, row.parameters = _pinned(session, row.id, new), dict(new.parameters)
        row.task_prefix, row.predecessor = new.task_prefix, predecessor_of(session, new, epoch, now)
        session.flush()
        is_backwards = new.previous is not None and new.previous.is_queued
        require_sound_epoch(session, row, new.dataflow, is_backwards=is_backwards)
        on_pin(row)
    elif was_expired:
        session.flush()
        on_pin(row)  # its record is written again, from which its new results can be found
    return _run(row, dataflow.lineage)


def _pinned(session: Session, run: str, new: NewRun) -> dict[str, Any]:
    """Return the record that a run is pinned to: its dataflow, with its failover strategy and written layouts."""
    sizes, before = latest_sizes(session, new.dataflow.name), layouts_of_run(session, run)
    record = pinned_json(new.dataflow, chosen_layouts(new.dataflow, sizes, new.small_result, before))
    failover = record[FAILOVER] or new.failover.value
    return {**record, FAILOVER: failover, ZONE: new.zone, **({CADENCE: new.cadence} if new.cadence else {})}


def predecessor_of(session: Session, new: NewRun, epoch: str, now: datetime) -> Epoch | None:
    """Return the newest earlier epoch, begun or not: Airflow starts several runs at once, in any order."""
    known = newest_before(session, new.dataflow.name, epoch)
    if new.previous is None:
        return known
    earlier = epoch_of(new.previous.interval[0])
    if earlier >= epoch or (known is not None and known >= earlier):
        return known
    row = session.scalar(_OF_EPOCH, {"dataflow": new.dataflow.name, "epoch": earlier})
    if row is None:
        session.add(_row(new, earlier, new.previous.owner, now))
    elif row.sealed_at is not None:
        return known
    else:  # given up, and created again in Airflow
        hand_over(session, row, new.previous.owner, new.task_prefix)
    return earlier


def hand_over(session: Session, row: RunRow, owner: Owner, task_prefix: str) -> None:
    """Have another DagRun own the epoch of a run that is not pinned; its first task that begins pins the run."""
    row.dag_id, row.run_id, (row.interval_start, row.interval_end) = owner
    row.task_prefix, row.deleted_at = task_prefix, None
    note_begins_anew(session, row.id)
    set_aside(session, row.id)


def newest_before(session: Session, dataflow: str, epoch: str) -> Epoch | None:
    """Return the newest earlier epoch, without those that are sealed, or never began and whose DagRun was deleted."""
    return session.scalar(_EARLIER, {"dataflow": dataflow, "epoch": epoch})


def _row(new: NewRun, epoch: str, owner: Owner, now: datetime) -> RunRow:
    dag_id, run_id, interval = owner
    return RunRow(
        id=run_key(new.dataflow.name, epoch),
        dataflow=new.dataflow.name,
        epoch=epoch,
        interval_start=interval[0],
        interval_end=interval[1],
        dag_id=dag_id,
        run_id=run_id,
        task_prefix=new.task_prefix,
        pinned=None,
        parameters={},
        predecessor=None,
        created_at=now,
    )


def run_by_id(session: Session, run: str, like: Topology | None = None) -> Run:
    """Return the run with this id, which must exist; `like` is the topology of a run that is not pinned.

    Raises Misconfigured for a run that is not pinned, if `like` is not given.
    """
    row = session.get_one(RunRow, run)
    return _run(row, session.get_one(DataflowRow, row.dataflow).lineage, like)


def _run(row: RunRow, lineage: int, like: Topology | None = None) -> Run:
    if row.pinned is None and like is None:
        raise Misconfigured.of("ledger.run_not_pinned", row_id=row.id)
    return Run(
        id=row.id,
        topology=topology_of(row.pinned) if row.pinned is not None else cast("Topology", like),
        epoch=row.epoch,
        interval=(row.interval_start, row.interval_end),
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_prefix=row.task_prefix,
        parameters=row.parameters,
        predecessor=row.predecessor,
        lineage=lineage,
        zone=(row.pinned or {}).get(ZONE, "UTC"),
        cadence=Cadence.of((row.pinned or {}).get(CADENCE), (row.pinned or {}).get(ZONE)),
        pinned_to=pin_fingerprint(row.pinned) if row.pinned is not None else "",
    )


def known_epochs(
    session: Session, dataflow: str, until: datetime, most: int | None = None, since: datetime | None = None
) -> list[KnownEpoch]:
    """Return the epochs of a dataflow that have begun or were given up, oldest first, with their cadences.

    They end at `until` or before it, and begin at `since` or after it; of these the newest `most`.
    """
    every, zone = (RunRow.pinned[name].as_string() for name in (CADENCE, ZONE))
    query = (
        select(RunRow.interval_start, RunRow.interval_end, RunRow.dag_id, every, zone, RunRow.is_given_up)
        .where(RunRow.dataflow == dataflow, RunRow.is_pinned | RunRow.is_given_up)
        .where(RunRow.interval_start < until, RunRow.interval_end <= until)
        .order_by(RunRow.epoch.desc())
        .limit(most)
    )
    if since is not None:
        query = query.where(RunRow.interval_start >= since)
    found = (_known_epoch(*each) for each in reversed(session.execute(query).all()))
    return [each for each in found if each.end <= until]


def _known_epoch(
    start: datetime, end: datetime, dag_id: str, every: str | None, zone: str | None, is_given_up: Any
) -> KnownEpoch:
    cadence = Cadence.of(every, zone)
    if dag_id == NO_DAG and cadence is not None:  # a run that was only restored knows no end
        end = (cadence.interval_at(start) or (start, end))[1]
    return KnownEpoch(start, end, cadence, bool(is_given_up))


def has_later(session: Session, run: Run) -> bool:
    """Report whether the dataflow has an epoch after that of `run`."""
    return session.scalar(_LATER, {"dataflow": run.dataflow.name, "epoch": run.epoch}) is not None


def open_again_after(session: Session, run: Run) -> list[RunId]:
    """Return the later runs that are open though their closing tasks have committed and no clear is pending."""
    session.flush()
    return list(session.scalars(_OPEN_AGAIN, {"dataflow": run.dataflow.name, "epoch": run.epoch}))


def topology_of(pinned: Mapping[str, Any]) -> Topology:
    """Return the topology that a run is pinned to, cached in the process."""
    return _topology(json.dumps(pinned, sort_keys=True))


def pin_fingerprint(pinned: Mapping[str, Any]) -> str:
    """Return the fingerprint of a record that a run is pinned to."""
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=256)
def _topology(pinned: str) -> Topology:
    return Topology.from_json(json.loads(pinned))


def pinned_interval(
    session: Session, dataflow: str, epoch: str, dag_id: str, run_id: str
) -> tuple[datetime, datetime] | None:
    """Return the data interval of an epoch that a DagRun owns and has begun; None of any other."""
    row = session.scalar(_OF_EPOCH, {"dataflow": dataflow, "epoch": epoch})
    is_own = row is not None and row.pinned is not None and (row.dag_id, row.run_id) == (dag_id, run_id)
    return owner_interval(row) if row is not None and is_own else None


def unexpired_runs(session: Session, dataflow: str) -> list[RunId]:
    """Return the runs of a dataflow that have not expired, by epoch."""
    query = select(RunRow.id).where(RunRow.dataflow == dataflow, RunRow.expired_at.is_(None))
    return list(session.scalars(query.order_by(RunRow.epoch)))


def runs_of(session: Session, dataflow: str | None = None) -> list[RunRow]:
    """Return all runs, of one dataflow or of all, by dataflow and epoch."""
    query = select(RunRow).order_by(RunRow.dataflow, RunRow.epoch)
    return list(session.scalars(query if dataflow is None else query.where(RunRow.dataflow == dataflow)))


def runs_named(session: Session, name: str | None) -> list[str]:
    """Return the runs of a dataflow, of one run, or of all (None). Raises Misconfigured with similar names."""
    known = runs_of(session, name)
    if known or name is None:
        return [row.id for row in known]
    run = run_if_known(session, name)
    if run is None:
        raise unknown_run(session, name, or_dataflow=True)
    return [run.id]


def named_run(session: Session, name: str) -> RunRow:
    """Return the run named DATAFLOW@EPOCH, DATAFLOW@DAY or by its run id. Raises Misconfigured with similar ones."""
    found = run_if_known(session, name)
    if found is None:
        raise unknown_run(session, name)
    return found


def run_if_known(session: Session, name: str) -> RunRow | None:
    """Return the run of this name, if there is one. Raises Misconfigured if it is that of several."""
    runs = select(RunRow).order_by(RunRow.dataflow, RunRow.epoch)
    found = list(session.scalars(runs.where(or_(RunRow.id == name, RunRow.run_id == name))))
    of_day = as_epoch(name)
    if not found and _OF_A_DAY.fullmatch(of_day):
        found = list(session.scalars(runs.where(RunRow.id.startswith(of_day, autoescape=True))))
    if len(found) > 1:
        named = ", ".join(row.id for row in found[:SHOWN]) + (f" and {len(found) - SHOWN} more" * (len(found) > SHOWN))
        what = "a run of several dataflows" if found[0].dataflow != found[1].dataflow else "several runs"
        raise Misconfigured.of("ledger.run_ambiguous", name=name, what=what, named=named)
    return found[0] if found else None


def mark_closed(session: Session, run: str, now: datetime | None) -> None:
    """Record that all results of `run` are valid since `now`, unless they already were; None: that they are not."""
    session.connection().execute(_REOPEN if now is None else _CLOSE, {"run": run, "now": now})


def note_close(session: Session, run: str) -> None:
    """Record that the closing task commits after all results that the run has now."""
    newest = select(func.max(ResultRow.id)).where(ResultRow.run == run).scalar_subquery()
    session.execute(update(RunRow).where(RunRow.id == run).values(closed_result=newest))


def forget_pin(session: Session, run: str) -> None:
    """Remove the pin of `run`: the next begin pins it to the current dataflow."""
    session.get_one(RunRow, run).pinned = None


def set_aside(session: Session, run: str) -> None:
    """Number all attempts of `run` below 1, in their order; no try of it is known in Airflow any more.

    So are the tries that clears have named: none of them has cleared a try of the same number of another DagRun. Tries
    that failed before they were registered are forgotten.
    """
    forget_failed_begins(session, run)
    numbers = select(func.min(AttemptRow.try_number), func.max(AttemptRow.try_number)).where(AttemptRow.run == run)
    named = select(func.max(PendingClearRow.expected_try)).where(PendingClearRow.run == run)
    least, most = session.execute(numbers).one()
    oldest, newest = 1 if least is None else min(1, least), max(most or 0, session.scalar(named) or 0)
    # The distance is so large that no attempt gets the present number of another.
    by = newest - oldest + 1 if newest > 0 else 0
    clears = update(PendingClearRow).where(PendingClearRow.run == run)
    session.execute(clears.values(found_try=None, expected_try=PendingClearRow.expected_try - by))
    if by:
        session.execute(update(AttemptRow).where(AttemptRow.run == run).values(try_number=AttemptRow.try_number - by))
        session.execute(update(RunRow).where(RunRow.id == run).values(is_record_due=True))


def is_of_earlier_incarnation(earlier: Iterable[AttemptRow], try_number: int, ti_id: str) -> bool:
    """Report whether `earlier` attempts of a region are of another DagRun than the task instance with this id.

    Attempts that were found in the store have no task instance id.
    """
    ids = {row.ti_id: row.try_number for row in earlier if row.ti_id}
    return ti_id not in ids and try_number in ids.values()


def dag_ids_of(session: Session, dataflow: str) -> tuple[str, ...]:
    """Return the DAGs that have runs of a dataflow, by name."""
    query = select(RunRow.dag_id).where(RunRow.dataflow == dataflow, RunRow.dag_id != NO_DAG)
    return tuple(session.scalars(query.distinct().order_by(RunRow.dag_id)))


def newest_pinned(session: Session, dataflow: str) -> Mapping[str, Any] | None:
    """Return the pinned dataflow of the newest pinned run; None before the first."""
    pinned: Mapping[str, Any] | None = session.scalar(_NEWEST_PINNED, {"dataflow": dataflow})
    return pinned


def newest_dataflows(session: Session) -> dict[str, Topology]:
    """Return what the newest pinned run of each dataflow declares, by its name; none of one that has yet to begin."""
    found = session.execute(_NEWEST_OF_EACH).tuples()
    return {name: topology_of(pinned) for name, pinned in found if pinned is not None}


def newest_dataflow_settings(session: Session, dataflow: str, deployed: RetentionSettings) -> RetentionSettings:
    """Return the retention settings of a dataflow: those that its newest run is pinned to."""
    pinned = newest_pinned(session, dataflow)
    return deployed if pinned is None else deployed.of(topology_of(pinned).dataflow)
