"""What a task has read and written, for a catalogue of lineage: data sets with their columns, rows and bytes.

Invariant: only an attempt that has committed, or adopted a commit, has written anything; whatever failed has not. This
changes nothing. A data set is a whole stage of all runs, and what one run has of it a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.coordination.values import TaskKey
from weir.dataflow.stage import Stage, StageKind
from weir.execution.run_state import CLOSE, FINISHED, AttemptState
from weir.formats.manifest import Manifest
from weir.ledger.attempts import Origin, attempts_of, tries_of_task
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, ResultRow, RunRow
from weir.ledger.publications import last_publication
from weir.ledger.reads import reads_of
from weir.ledger.runs import epoch_of_run, topology_of
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.topology.regions import RegionId, Topology


class DatasetKind(Enum):
    """What a data set is of a stage."""

    SOURCE = "source"
    """What a ready-made source reads."""
    RESULT = "result"
    """The results between tasks."""
    PUBLISHED = "published"
    """The versions of a sink, in the store and in its targets."""


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
    read = (Dataset(dataflow=dataflow, stage=stage, kind=kind) for stage, kind in _inputs(topology, region))
    return Lineage(dataflow=dataflow, inputs=tuple(read))


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
        read = _by_stage(_rows_read(session, row.id))
        written = _by_stage(_rows_written(session, row))
        versions = {sink: last_publication(session, run.id, sink) for sink in topology.sinks}
        numbers = {sink: found.version for sink, found in versions.items() if found is not None}
        parent = _parent(session, row)
    manifests = _manifests(services, (rows[0] for rows in (read | written).values()))
    resolved = next((manifests[stage].resolved for stage in written if stage in manifests), {})
    inputs = tuple(
        _with_counts(each, read.get(each.stage.name, []), manifests)
        if each.kind is DatasetKind.RESULT
        else replace(each, version=resolved.get(each.stage.name, ""))
        for each in declared_lineage(topology, row.region).inputs
    )
    if row.region == CLOSE.name:
        outputs = _published(inputs, run.epoch, numbers) if AttemptState(row.state) in FINISHED else ()
    else:
        stages = {name: topology.dataflow.stage(name) for name in written}
        sets = {name: Dataset(dataflow=dataflow, stage=each, kind=DatasetKind.RESULT) for name, each in stages.items()}
        outputs = tuple(_with_counts(sets[name], rows, manifests) for name, rows in written.items())
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


def _by_stage(rows: Iterable[ResultRow]) -> dict[str, list[ResultRow]]:
    found: dict[str, list[ResultRow]] = {}
    for row in rows:
        found.setdefault(row.stage, []).append(row)
    return found


def _with_counts(dataset: Dataset, rows: list[ResultRow], manifests: Mapping[str, Manifest]) -> Dataset:
    """Add the epoch, the columns, the rows in one of the layouts, and the bytes in all of them."""
    if not rows:
        return dataset
    first = rows[0]
    return replace(
        dataset,
        version=epoch_of_run(first.run),
        spark_schema=manifests[first.stage].spark_schema if first.stage in manifests else "",
        rows=sum(each.rows for each in rows if each.layout == first.layout),
        bytes=sum(each.bytes for each in rows),
    )


def _manifests(services: Services, rows: Iterable[ResultRow]) -> dict[str, Manifest]:
    """Return the manifests of results by stage; one that is lost meanwhile costs the columns only."""
    found = {}
    for row in rows:
        with suppress(NotFound):
            found[row.stage] = read_manifest(services.store, row.folder)
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
