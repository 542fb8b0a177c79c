"""Data sets: who publishes them, who reads which epochs of them, what waits for them, and what a run has read.

Invariant: how many statements that takes depends neither on epochs, nor on versions, nor on readers.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.dataflow.graph import datasets_read
from weir.dataflow.stage import dataset_of
from weir.errors import Misconfigured
from weir.execution.run_state import AttemptState, Results
from weir.ledger.database.columns import taken
from weir.ledger.database.dataset_tables import DatasetEpochRow, DatasetInputRow
from weir.ledger.database.tables import AttemptRow, ConsumptionRow, PublicationRow, ReadSetRow, RunRow
from weir.ledger.names import MOST_PARTS, NO_RUN
from weir.ledger.publications import READABLE, DataSet, published_results, readable_versions
from weir.ledger.reads import resolved_inputs
from weir.ledger.runs import dataflow_of, epoch_of_run, named_run, newest_dataflows, run_by_id, run_key
from weir.ledger.snapshot import HAS_CURRENT_RESULTS
from weir.topology.ids import RunId
from weir.topology.regions import RegionId, Topology
from weir.wording import did_you_mean, first_few

NEWEST: Final = 30
"""How many of the newest epochs of a data set are listed by default."""

Made = tuple[str, str, str]
"""A run that reads, the run that it reads, and the sink of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReader:
    """An input of a dataflow, as its newest run declares it, and how it chooses among the epochs of a data set."""

    dataflow: str
    stage: str
    argument: str
    epoch: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """A task that waits for a data set: the region of a run, since when, and why.

    It looks for it every minute: one that last `looked_at` it long ago is kept by Airflow, or gone.
    """

    run: RunId
    region: RegionId
    since: datetime
    looked_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEpoch:
    """The version of an epoch that readers get. `digest` is that of all of its partitions."""

    epoch: str
    version: int
    digest: str
    rows: int
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetView:
    """A data set, `name` ("dataflow.sink"), and the DAGs that publish it.

    It is not declared where the newest run of its dataflow has no such sink, or there is no such dataflow. `epochs` is
    how many epochs are published, `newest` the last of them.
    """

    name: str
    dataflow: str
    dag_ids: tuple[str, ...]
    is_declared: bool
    epochs: int
    newest: PublishedEpoch | None
    readers: tuple[DatasetReader, ...]
    waiting: tuple[WaitingTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReader:
    """A run that reads an epoch; `is_valid` is None where nothing of it was made of the epoch yet.

    It is valid where what it has made was made of what is published now, or no version is published any more.
    """

    run: RunId
    is_valid: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochView:
    """An epoch of a data set, and the runs that read it; `published` is None where all of its versions are deleted."""

    run: RunId
    epoch: str
    published: PublishedEpoch | None
    readers: tuple[EpochReader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDetails:
    """A data set and its newest epochs, oldest first; `older` is how many are left out."""

    overview: DatasetView
    epochs: tuple[EpochView, ...]
    older: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRead:
    """An epoch that an input reads: the version that is published of it now, and whether what was made of it is valid.

    `version` is None where all versions are deleted, `is_valid` where nothing was made of it yet.
    """

    run: RunId
    version: int | None
    is_valid: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInput:
    """An input of a run that reads a data set, and the epochs that it was resolved to, oldest first.

    `left_out` are epochs that were to exist, and were not published when that was. `resolved_at` is None until then.
    """

    stage: str
    argument: str
    dataset: str
    epoch: str
    missing: str
    resolved_at: datetime | None
    epochs: tuple[EpochRead, ...]
    left_out: tuple[str, ...]
    waiting: tuple[WaitingTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """A run, and its inputs that read data sets."""

    run: RunId
    inputs: tuple[DatasetInput, ...]


def dataset_views(session: Session, dag_ids: Collection[str] | None = None) -> list[DatasetView]:
    """Return all data sets by name: those that are declared, published or read.

    With `dag_ids` those that dataflows of these DAGs publish or read, and of readers and tasks that wait only theirs.
    """
    views = _all_views(session)
    if dag_ids is None:
        return views
    seen = dataflows_of(session, dag_ids)
    found = [
        replace(
            each,
            readers=tuple(one for one in each.readers if one.dataflow in seen),
            waiting=tuple(one for one in each.waiting if dataflow_of(one.run) in seen),
        )
        for each in views
    ]
    return [each for each in found if each.dataflow in seen or each.readers]


def dataflows_of(session: Session, dag_ids: Collection[str]) -> frozenset[str]:
    """Return the dataflows of which these DAGs have runs."""
    return frozenset(name for name, dags in _dags(session).items() if not set(dags).isdisjoint(dag_ids))


def _all_views(session: Session) -> list[DatasetView]:
    declared = newest_dataflows(session)
    sinks = {f"{name}.{sink}" for name, topology in declared.items() for sink in topology.sinks}
    readers, waiting, counted = declared_readers(declared), waiting_tasks(session), _counted(session)
    wanted = [last for _, last in counted.values()]
    newest = _published(session, wanted, published_results(session, wanted))
    dags = _dags(session)
    return [
        DatasetView(
            name=name,
            dataflow=dataset_of(name).dataflow,
            dag_ids=tuple(dags[dataset_of(name).dataflow]),
            is_declared=name in sinks,
            epochs=counted[name][0] if name in counted else 0,
            newest=newest.get(counted[name][1]) if name in counted else None,
            readers=tuple(readers.get(name, ())),
            waiting=tuple(waiting.get(name, ())),
        )
        for name in sorted({*sinks, *counted, *readers, *waiting})
    ]


def dataset_details(session: Session, name: str, newest: int = NEWEST) -> DatasetDetails:
    """Return a data set and its newest epochs. Raises Misconfigured for one that nobody publishes or reads."""
    views = {each.name: each for each in _all_views(session)}
    if name not in views:
        raise unknown_dataset(name, [each.name for each in views.values() if each.is_declared or each.epochs])
    dataflow, sink = dataset_of(name)
    ever = select(PublicationRow.run).where(PublicationRow.sink == sink, PublicationRow.published_at.is_not(None))
    query = select(RunRow.id).where(RunRow.dataflow == dataflow, RunRow.id.in_(ever))
    runs = list(reversed(session.scalars(query.order_by(RunRow.epoch.desc()).limit(newest)).all()))
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    wanted = [(run, sink) for run in runs]
    results = published_results(session, wanted)
    published, made = _published(session, wanted, results), _made_of(session, wanted, results)
    readers = _readers(session, name, runs, made)
    epochs = tuple(
        EpochView(
            run=run, epoch=epoch_of_run(run), published=published.get((run, sink)), readers=tuple(readers.get(run, ()))
        )
        for run in runs
    )
    return DatasetDetails(overview=views[name], epochs=epochs, older=total - len(runs))


def unknown_dataset(name: str, known: Iterable[str]) -> Misconfigured:
    """Return the error about a data set that there is not."""
    names = sorted(known)
    others = f"there are {first_few(names, MOST_PARTS)}" if names else NO_RUN
    return Misconfigured.of("views.dataset_unknown", name=name, said=did_you_mean(name, names, others, form="{}"))


def inputs_of_run(session: Session, name: str, dataset: str | None = None) -> RunInputs:
    """Return what the inputs of a run read of data sets, or of one.

    Raises Misconfigured for a run that is not known or pinned, and for a data set that it does not read.
    """
    run = run_by_id(session, named_run(session, name).id)
    declared = _declared({run.dataflow.name: run.topology})
    if dataset is not None and dataset not in (names := {each for each, _ in declared}):
        raise unknown_dataset(dataset, names)
    resolved = {(each.stage, each.argument): each for each in resolved_inputs(session, run.id)}
    rows = session.scalars(select(DatasetInputRow).where(DatasetInputRow.run == run.id))
    times = {(row.stage, row.argument): row.resolved_at for row in rows}
    wanted = [(of, dataset_of(each.dataset).sink) for each in resolved.values() for of in each.runs]
    made = _made_of(session, wanted, published_results(session, wanted), run.id)
    versions = readable_versions(session, wanted)
    waiting = waiting_tasks(session, run.id)
    found = []
    for read, of in declared:
        region, sink = run.topology.logical_region_of(of.stage).name, dataset_of(read).sink
        known = resolved.get((of.stage, of.argument))
        epochs = [
            EpochRead(
                run=RunId(run_of),
                version=versions[run_of, sink].version if (run_of, sink) in versions else None,
                is_valid=made.get((run.id, run_of, sink)),
            )
            for run_of in (known.runs if known is not None else ())
        ]
        found.append(
            taken(
                DatasetInput,
                of,
                dataset=read,
                resolved_at=times.get((of.stage, of.argument)),
                epochs=tuple(epochs),
                left_out=known.left_out if known is not None else (),
                waiting=tuple(task for task in waiting.get(read, ()) if task.region.name == region),
            )
        )
    return RunInputs(run=run.id, inputs=tuple(each for each in found if dataset in (None, each.dataset)))


# Who reads


def _declared(dataflows: Mapping[str, Topology]) -> list[tuple[str, DatasetReader]]:
    return [
        (
            exchange.stage,
            DatasetReader(
                dataflow=name, stage=stage.name, argument=argument, epoch=exchange.epoch, missing=exchange.missing
            ),
        )
        for name, topology in dataflows.items()
        for stage, argument, exchange in datasets_read(topology.dataflow.stages)
    ]


def declared_readers(dataflows: Mapping[str, Topology]) -> dict[str, list[DatasetReader]]:
    """Return the inputs that read each data set, by its name, of these dataflows."""
    found: dict[str, list[DatasetReader]] = defaultdict(list)
    for dataset, reader in _declared(dataflows):
        found[dataset].append(reader)
    return found


def waiting_tasks(session: Session, run: str | None = None) -> dict[str, list[WaitingTask]]:
    """Return the tasks that wait for each data set, of one run or of all; those that have waited longest first."""
    query = (
        select(AttemptRow)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(AttemptRow.state == AttemptState.WAITING.value, AttemptRow.awaited.is_not(None))
        .where(RunRow.deleted_at.is_(None), RunRow.expired_at.is_(None))
        .order_by(AttemptRow.began_at, AttemptRow.run, AttemptRow.region, AttemptRow.subtask)
    )
    found: dict[str, list[WaitingTask]] = defaultdict(list)
    for row in session.scalars(query if run is None else query.where(AttemptRow.run == run)):
        for dataset, reason in (row.awaited or {}).items():
            if not dataset_of(dataset).sink:
                continue  # a shadow waits for a dataflow
            found[dataset].append(
                WaitingTask(
                    run=row.run,
                    region=RegionId(row.region, row.subtask),
                    since=row.began_at,
                    looked_at=row.heard_at or row.began_at,
                    reason=reason,
                )
            )
    return found


def _readers(
    session: Session, name: str, runs: Iterable[str], made: Mapping[Made, bool]
) -> dict[str, list[EpochReader]]:
    """Return the runs that read each epoch of a data set, by its run."""
    query = select(DatasetEpochRow.of_run, DatasetEpochRow.run).where(
        DatasetEpochRow.dataset == name, DatasetEpochRow.of_run.in_(runs)
    )
    found = defaultdict(list)
    for of_run, run in session.execute(query.distinct().order_by(DatasetEpochRow.of_run, DatasetEpochRow.run)):
        found[of_run].append(EpochReader(run=RunId(run), is_valid=made.get((run, of_run, dataset_of(name).sink))))
    return found


# What is published, and what was made of it


def _dags(session: Session) -> dict[str, list[str]]:
    query = select(RunRow.dataflow, RunRow.dag_id).where(RunRow.has_dag_run).distinct()
    found = defaultdict(list)
    for dataflow, dag_id in session.execute(query.order_by(RunRow.dataflow, RunRow.dag_id)):
        found[dataflow].append(dag_id)
    return found


def _counted(session: Session) -> dict[str, tuple[int, DataSet]]:
    """Return of how many epochs each data set has a version that can be read, and the newest of these."""
    query = (
        select(RunRow.dataflow, PublicationRow.sink, func.count(RunRow.id.distinct()), func.max(RunRow.epoch))
        .join(RunRow, RunRow.id == PublicationRow.run)
        .where(READABLE)
        .group_by(RunRow.dataflow, PublicationRow.sink)
    )
    return {
        f"{name}.{sink}": (number, (run_key(name, epoch), sink)) for name, sink, number, epoch in session.execute(query)
    }


def _published(session: Session, wanted: Collection[DataSet], results: Results) -> dict[DataSet, PublishedEpoch]:
    """Return what readers get of epochs of data sets."""
    rows: dict[DataSet, int] = defaultdict(int)
    for partition, result in results.items():
        rows[partition.run, partition.stage] += result.rows
    return {
        key: PublishedEpoch(
            epoch=epoch_of_run(row.run),
            version=row.version,
            digest=hashlib.sha256(row.digest.encode()).hexdigest(),
            rows=rows[key],
            published_at=row.published_at,
        )
        for key, row in readable_versions(session, wanted).items()
        if row.published_at is not None
    }


def _made_of(
    session: Session, wanted: Collection[DataSet], published: Results, reader: str | None = None
) -> dict[Made, bool]:
    """Report whether what runs have made of epochs of data sets was made of what is published now; of one or of all.

    Those that have made nothing of them are left out.
    """
    if not wanted:
        return {}
    query = (
        select(AttemptRow.run, ConsumptionRow.run, ConsumptionRow.stage, ReadSetRow.members)
        .join(AttemptRow, AttemptRow.id == ConsumptionRow.attempt)
        .join(ReadSetRow, ReadSetRow.id == ConsumptionRow.read_set)
        .where(ConsumptionRow.run.in_({run for run, _ in wanted}), HAS_CURRENT_RESULTS)
        .where(ConsumptionRow.stage.in_({sink for _, sink in wanted}))
    )
    digests: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for partition, result in published.items():
        digests[partition.run, partition.stage][partition.subtask] = result.digest
    found: dict[Made, bool] = {}
    for run, of_run, sink, members in session.execute(
        query if reader is None else query.where(AttemptRow.run == reader)
    ):
        if dataflow_of(run) != dataflow_of(of_run):
            present = digests.get((of_run, sink))
            is_same = present in (None, {int(subtask): digest for subtask, _, digest in members})
            found[run, of_run, sink] = is_same and found.get((run, of_run, sink), True)
    return found
