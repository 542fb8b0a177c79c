"""What a task has read and written, for a catalogue of lineage: data sets with their columns, rows and bytes.

Invariant: only an attempt that has committed, or adopted a commit, has written anything; whatever failed has not. This
changes nothing. A data set is a whole stage of all runs, and what one run has of it a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.coordination.values import TaskKey
from weir.dataflow.graph import datasets_read
from weir.dataflow.stage import Stage, StageKind, dataset_of
from weir.execution.run_state import CLOSE, FINISHED, AttemptState
from weir.formats.manifest import Manifest
from weir.ledger.attempts import Origin, attempts_of, tries_of_task
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, PublicationRow, ResultRow, RunRow
from weir.ledger.publications import last_publication
from weir.ledger.reads import reads_of
from weir.ledger.runs import dataflow_of, epoch_of_run, topology_of
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.topology.regions import RegionId, Topology
from weir.wording import first_few

Place = tuple[str, str]
"""A dataflow, and a stage of it."""

_SHOWN: Final = 3
"""How many of the epochs that were read of a data set its version names."""


class DatasetKind(Enum):
    """What a data set is of a stage."""

    SOURCE = "source"
    """What a ready-made source reads."""
    RESULT = "result"
    """The results between tasks."""
    PUBLISHED = "published"
    """The versions of a sink, in the store and in its targets. Another dataflow reads those of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set of a stage, and what an attempt has read or written of it.

    `spark_schema` is Spark's own JSON; what is not known is empty or None.
    """

    dataflow: str
    stage: Stage
    kind: DatasetKind
    version: str = ""
    spark_schema: str = ""
    rows: int | None = None
    bytes: int | None = None

    @property
    def place(self) -> Place:
        """The dataflow and the stage whose rows it has."""
        return self.dataflow, self.stage.name


@dataclass(frozen=True, slots=True)
class ParentFailure:
    """The attempt that had failed (empty: none), the cause, and the failover by which another task runs again."""

    failover: int | None
    attempt: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What an attempt has read and written. `digests` are of what it has written, by partition."""

    dataflow: str
    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...] = ()
    attempt: str = ""
    epoch: str = ""
    state: str = ""
    origin: str = ""
    failure: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    parent: ParentFailure | None = None


def declared_lineage(topology: Topology, region: str) -> Lineage:
    """Return what a region, or the closing task, reads by its declaration."""
    dataflow = topology.dataflow.name
    read = [Dataset(dataflow=dataflow, stage=stage, kind=kind) for stage, kind in _inputs(topology, region)]
    stages = () if region == CLOSE.name else topology.stages_of(region)
    names = [each.stage for *_, each in datasets_read(stages)]
    return Lineage(dataflow=dataflow, inputs=(*read, *map(_dataset, dict.fromkeys(names))))


def _dataset(name: str) -> Dataset:
    """Return a data set of another dataflow, whose targets are nothing to its readers."""
    dataflow, sink = dataset_of(name)
    return Dataset(dataflow=dataflow, stage=Stage(sink, "", kind=StageKind.SINK), kind=DatasetKind.PUBLISHED)


def _inputs(topology: Topology, region: str) -> Iterator[tuple[Stage, DatasetKind]]:
    stage = topology.dataflow.stage
    if region == CLOSE.name:
        yield from ((stage(sink), DatasetKind.RESULT) for sink in topology.sinks)
        return
    yield from ((each, DatasetKind.SOURCE) for each in topology.stages_of(region) if each.kind is StageKind.SOURCE)
    one = RegionId(region, 0)
    read = [each.producer for each in topology.inputs(one)] + [each.producer for each in topology.previous_inputs(one)]
    yield from ((stage(name), DatasetKind.RESULT) for name in dict.fromkeys(read))


def lineage_of(services: Services, dataflow: str, key: TaskKey, try_number: int) -> Lineage | None:
    """Return what a try of a task has read and written; None if it was never registered.

    Raises Retryable, and as the codec does for a manifest that cannot be read.
    """
    with services.ledger.transaction() as session:
        row = session.scalar(
            tries_of_task(dataflow, key.dag_id, key.run_id, key.task_id, key.map_index).where(
                AttemptRow.try_number == try_number
            )
        )
        run = None if row is None else session.get_one(RunRow, row.run)
        if row is None or run is None or run.pinned is None:
            return None
        topology = topology_of(run.pinned)
        read = _by_place(_rows_read(session, row.id))
        written = _by_place(_rows_written(session, row))
        published = _versions(session, {each: rows for each, rows in read.items() if each[0] != dataflow})
        versions = {sink: last_publication(session, run.id, sink) for sink in topology.sinks}
        numbers = {sink: found.version for sink, found in versions.items() if found is not None}
        parent = _parent(session, row)
    manifests = _manifests(services, (rows[0] for rows in (read | written).values()))
    resolved = next((manifests[place].resolved for place in written if place in manifests), {})
    inputs = tuple(
        replace(each, version=resolved.get(each.stage.name, ""))
        if each.kind is DatasetKind.SOURCE
        else _with_counts(each, read.get(each.place, []), manifests, published.get(each.place))
        for each in declared_lineage(topology, row.region).inputs
    )
    if row.region == CLOSE.name:
        outputs = _published(inputs, run.epoch, numbers) if AttemptState(row.state) in FINISHED else ()
    else:
        stages = {place: topology.dataflow.stage(place[1]) for place in written}
        sets = {at: Dataset(dataflow=dataflow, stage=each, kind=DatasetKind.RESULT) for at, each in stages.items()}
        outputs = tuple(_with_counts(sets[place], rows, manifests) for place, rows in written.items())
    digests = {f"{each.stage}[{each.subtask}] {each.layout}": each.digest for rows in written.values() for each in rows}
    return Lineage(
        dataflow=dataflow,
        inputs=inputs,
        outputs=outputs,
        attempt=row.id,
        epoch=run.epoch,
        state=row.state,
        origin=row.origin,
        failure=row.failure,
        digests=digests,
        parent=parent,
    )


def _published(results: Iterable[Dataset], epoch: str, numbers: Mapping[str, int]) -> tuple[Dataset, ...]:
    """Return the versions with these numbers, of sinks with these results."""
    found = ((each, numbers[each.stage.name]) for each in results if each.stage.name in numbers)
    return tuple(replace(each, kind=DatasetKind.PUBLISHED, version=f"{epoch} v{number}") for each, number in found)


def _rows_read(session: Session, attempt: str) -> list[ResultRow]:
    reads = {
        (each.attempt, each.partition.stage, each.partition.subtask, each.partition.layout)
        for each in reads_of(session, attempt)
    }
    rows = session.scalars(select(ResultRow).where(ResultRow.attempt.in_({attempt for attempt, *_ in reads})))
    return [row for row in rows if (row.attempt, row.stage, row.subtask, row.layout) in reads]


def _rows_written(session: Session, row: AttemptRow) -> list[ResultRow]:
    """Return the results that an attempt has committed, or adopted; none that are in quarantine."""
    if AttemptState(row.state) not in FINISHED:
        return []
    by = str((row.metrics or {}).get("adopted") or row.id)
    return list(session.scalars(select(ResultRow).where(ResultRow.attempt == by).order_by(ResultRow.id)))


def _by_place(rows: Iterable[ResultRow]) -> dict[Place, list[ResultRow]]:
    found: dict[Place, list[ResultRow]] = {}
    for row in rows:
        found.setdefault((dataflow_of(row.run), row.stage), []).append(row)
    return found


def _versions(session: Session, read: Mapping[Place, list[ResultRow]]) -> dict[Place, str]:
    """Name the versions of other dataflows' data sets that were read: the newest epochs, and how many more."""
    folders = {row.folder: place for place, rows in read.items() for row in rows}
    query = select(PublicationRow).where(
        PublicationRow.run.in_({row.run for rows in read.values() for row in rows}),
        PublicationRow.sink.in_({sink for _, sink in read}),
        PublicationRow.published_at.is_not(None),
    )
    numbers: dict[Place, dict[str, int]] = {}
    for row in session.scalars(query.order_by(PublicationRow.run.desc(), PublicationRow.version)) if read else ():
        for place in {folders[each] for each in row.folders if each in folders}:
            numbers.setdefault(place, {})[row.run] = row.version
    return {
        place: first_few([f"{epoch_of_run(run)} v{number}" for run, number in found.items()], _SHOWN)
        for place, found in numbers.items()
    }


def _with_counts(
    dataset: Dataset, rows: list[ResultRow], manifests: Mapping[Place, Manifest], version: str | None = None
) -> Dataset:
    """Add the version (None: the epoch), the columns, the rows in one of a run's layouts, and the bytes in all."""
    if not rows:
        return dataset
    first, layouts = rows[0], {row.run: row.layout for row in reversed(rows)}
    return replace(
        dataset,
        version=epoch_of_run(first.run) if version is None else version,
        spark_schema=manifests[dataset.place].spark_schema if dataset.place in manifests else "",
        rows=sum(each.rows for each in rows if each.layout == layouts[each.run]),
        bytes=sum(each.bytes for each in rows),
    )


def _manifests(services: Services, rows: Iterable[ResultRow]) -> dict[Place, Manifest]:
    """Return the manifests of results by dataflow and stage; one that is lost meanwhile costs the columns only."""
    found = {}
    for row in rows:
        with suppress(NotFound):
            found[dataflow_of(row.run), row.stage] = read_manifest(services.store, row.folder)
    return found


def _parent(session: Session, row: AttemptRow) -> ParentFailure | None:
    """Return the failure because of which there is this try: that of the try before, or of another task's."""
    region = RegionId(row.region, row.subtask)
    if row.origin == Origin.RETRY.value:
        before = [each for each in attempts_of(session, row.run, region) if each.try_number < row.try_number]
        return ParentFailure(None, before[-1].id, before[-1].error or "") if before and before[-1].failure else None
    if row.origin != Origin.CLEARED_BY_WEIR.value:
        return None
    query = (
        select(FailoverRow)
        .join(PendingClearRow, PendingClearRow.failover == FailoverRow.id)
        .where(
            PendingClearRow.run == row.run,
            PendingClearRow.region == region.name,
            PendingClearRow.subtask == region.subtask,
            PendingClearRow.expected_try < row.try_number,
        )
        .order_by(FailoverRow.id.desc())
        .limit(1)
    )
    found = session.scalar(query)
    return None if found is None else ParentFailure(found.id, found.attempt, found.cause)
