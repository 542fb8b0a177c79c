"""Compact the state that a region has committed: an Airflow task of its own merges sorted runs of it.

Invariant: no task waits for a compaction or depends on it. Its files hold the same rows as the committed ones; where it
is missing or incomplete, readers use the files that the manifest names.

Invariant 4: a compaction is entered only while the results count whose files it takes over. So these are in use until
then, and through the compaction from then on: no other process finds them unused in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services, attempt_folder, region_folder
from weir.dataflow.graph import spark_conf
from weir.dataflow.state import State, StateKind
from weir.errors import Internal, Misconfigured
from weir.execution.partition_state import PartitionState
from weir.formats.manifest import DataFile, Manifest, StateContent, StateFile
from weir.formats.region_job import (
    CompactionJob,
    MergeToWrite,
    OutputReport,
    RegionReport,
    StateToRead,
)
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.runs import Run, run_by_id, run_key
from weir.state.assigned import files_to_read
from weir.state.compaction_rules import Limits, Merge, after, bytes_of, merges_of
from weir.state.compactions import (
    Compacted,
    NewCompaction,
    compacted_files,
    compactions_of,
    enter_compaction,
    present_compactions,
)
from weir.state.file_rules import assigned_files, expired_until, sorted_runs, visible
from weir.state.files_in_use import COUNTING
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.topology.ids import AttemptId, RunId
from weir.topology.key_groups import key_group_range
from weir.topology.partitions import Layout
from weir.units import format_size, size_from_text

PART_BYTES = 128 * 2**20
"""The approximate size of the files of a merged run."""


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The region whose state is to be compacted, of the run that owns an epoch; `dag_run` is Airflow's id of it."""

    dataflow: str
    epoch: str
    dag_run: str
    region: str


@dataclass(frozen=True, slots=True)
class PartToCompact:
    """A partition to compact: the files that it consists of, and its merges by their number in the job.

    `used` are the attempts whose results these files are in use through: its own, and those before it.
    """

    of: Compacted
    files: tuple[StateFile, ...]
    merges: Mapping[int, Merge]
    used: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCompact:
    """Run `job`, if there is one, then enter what it reports. Without merges there is nothing to run."""

    run: RunId
    dataflow: str
    attempt: AttemptId
    session_id: str
    job: CompactionJob | None
    parts: tuple[PartToCompact, ...]


def plan_compaction(services: Services, request: CompactionRequest) -> ToCompact | None:
    """Plan the merges of a region's state; None where none is needed, or nothing is committed.

    Raises Retryable where the ledger or the store does not answer.
    """
    with services.ledger.transaction() as session:
        run = _run(session, request)
        found = [] if run is None else list(_committed(session, run, request.region))
    if run is None:
        return None
    attempt = services.compaction_attempt_id()
    parts: list[PartToCompact] = []
    merges: list[MergeToWrite] = []
    for of, state, layout_id, folder in found:
        part = _part(services, run, of, state, folder, len(merges))
        if part is not None:
            parts.append(part)
            layout = run.topology.layout(layout_id)
            merges += [_merge_to_write(services, run, attempt, part, state, layout, each) for each in part.merges]
    if not parts:
        return None
    job = _job(services, run, request.region, attempt, merges) if merges else None
    return ToCompact(
        run=run.id,
        dataflow=run.dataflow.name,
        attempt=attempt,
        session_id=str(services.new_uuid()),
        job=job,
        parts=tuple(parts),
    )


def enter_compacted(services: Services, begun: ToCompact, report: RegionReport | None) -> list[str]:
    """Enter what was merged (`report` is None where there was no job); return a line for the log for each partition.

    Raises Retryable.
    """
    outputs = () if report is None else report.outputs
    merges = () if begun.job is None else begun.job.merges
    if len(outputs) != len(merges):
        raise Internal.of("state.runs_differ", attempt=begun.attempt, expected=len(merges), reported=len(outputs))
    new = [_new(begun, part, outputs) for part in begun.parts]

    def enter(session: Session) -> list[str]:
        return [_entered(session, services, *each) for each in zip(new, begun.parts, strict=True)]

    return services.ledger.perform(begun.dataflow, enter)


def _entered(session: Session, services: Services, new: NewCompaction, part: PartToCompact) -> str:
    query = select(ResultRow.attempt).where(ResultRow.stage == new.of.state, ResultRow.state.in_(COUNTING))
    if not part.used <= set(session.scalars(query.where(ResultRow.attempt.in_(part.used)))):
        return f"{_name(new)}: not entered, since the state that was compacted was released meanwhile"
    if not enter_compaction(session, new, services.now()):
        return f"{_name(new)}: compacted by another attempt meanwhile"
    return _summary(new, part)


# Selecting partitions


def _run(session: Session, request: CompactionRequest) -> Run | None:
    """Return the run, if it is this DagRun's and has begun."""
    row = session.get(RunRow, run_key(request.dataflow, request.epoch))
    if row is None or row.pinned is None or row.run_id != request.dag_run:
        return None
    run = run_by_id(session, row.id)
    known = {region.name for region in run.topology.regions}
    return run if request.region in known else None


def _committed(session: Session, run: Run, region: str) -> Iterator[tuple[Compacted, State, str, str]]:
    """Yield the region's current partitions of keyed state that are not compacted, with layouts and folders."""
    states = {
        state.name: state
        for stage in run.topology.stages_of(region)
        for state in stage.states
        if state.kind is StateKind.KEYED
    }
    query = (
        select(ResultRow)
        .where(
            ResultRow.run == run.id,
            ResultRow.stage.in_(states),
            ResultRow.is_current,
            ResultRow.state == PartitionState.FINISHED.value,
        )
        .order_by(ResultRow.stage, ResultRow.subtask)
    )
    rows = list(session.scalars(query)) if states else []
    done = compactions_of(session, {row.attempt for row in rows})
    for row in rows:
        of = Compacted(row.attempt, row.stage, row.subtask)
        if of not in done:
            yield of, states[row.stage], row.layout, row.folder


# Planning merges


def _part(services: Services, run: Run, of: Compacted, state: State, folder: str, first: int) -> PartToCompact | None:
    try:
        manifest = read_manifest(services.store, folder)
    except (NotFound, Misconfigured):
        return None  # it is lost, and will be recomputed
    if manifest.state is None:
        return None
    files, used = _with_earlier(services, run, of, state, manifest)
    until = expired_until(state, run.epoch)
    live = _live(manifest.state, until)
    limits = Limits(max(1, state.runs), size_from_text("budget", state.budget), manifest.bytes)
    merges = dict(enumerate(merges_of(files, live, limits), first))
    return PartToCompact(of, files, merges, used) if merges or files != manifest.state.files else None


def _live(content: StateContent, until: int | None) -> int:
    """Return the number of visible rows; where they were not counted, the least, and the most where rows expire."""
    if content.tallies is not None:
        return sum(each.rows for each in visible(content.tallies, until))
    if content.rows is None:
        raise Internal.of("state.rows_uncounted", content=content)
    return content.rows.least if until is None else content.rows.most


def _with_earlier(
    services: Services, run: Run, of: Compacted, state: State, manifest: Manifest
) -> tuple[tuple[StateFile, ...], frozenset[str]]:
    """Return the files of a partition, with earlier ones replaced that were compacted after its attempt had begun.

    Returns also the attempts whose results these files are in use through.
    """
    assert manifest.state is not None  # noqa: S101  # a partition of keyed state
    as_committed = manifest.state.files, frozenset({of.of_attempt})
    read = {each.attempt for each in manifest.inputs if each.stage == of.state}
    compacted = present_compactions(services, read)
    if not compacted:
        return as_committed
    parallelism = run.dataflow.stage(of.state).parallelism
    groups, until = key_group_range(manifest.max_parallelism, parallelism, of.subtask), expired_until(state, run.epoch)
    kept = [each for each in manifest.state.files if each.epoch != run.epoch]
    own = [each for each in manifest.state.files if each.epoch == run.epoch]
    before = _manifests(services, of.state, read)
    plain = [file for each in before for file in (each.state.files if each.state else ())]
    if list(assigned_files(plain, groups, until)) != kept:
        return as_committed  # it resumed from the compacted files already, or from others
    replaced = [file for each in before for file in compacted_files(each, compacted)]
    return (*assigned_files(replaced, groups, until), *own), frozenset({of.of_attempt, *read})


def _manifests(services: Services, state: str, attempts: Collection[str]) -> list[Manifest]:
    """Read the manifests of a state's partitions that these attempts have committed; none where one is lost."""
    query = select(ResultRow.folder).where(ResultRow.stage == state, ResultRow.attempt.in_(attempts))
    with services.ledger.transaction() as session:
        folders = list(session.scalars(query))
    try:
        return [read_manifest(services.store, each) for each in folders]
    except (NotFound, Misconfigured):
        return []


# The job, and entering its report


def _merge_to_write(
    services: Services, run: Run, attempt: AttemptId, part: PartToCompact, state: State, layout: Layout, number: int
) -> MergeToWrite:
    merge = part.merges[number]
    folder = attempt_folder(run, state.name, layout.id, part.of.subtask, attempt) + f"/m{number}"
    until = expired_until(state, run.epoch)
    return MergeToWrite(
        stage=state.name,
        layout=layout,
        state=StateToRead(state=state, files=files_to_read(services.store, merge.files), expired_until=until),
        is_bottom=merge.is_bottom,
        parts=1 + _read_bytes(merge) // PART_BYTES,
        folder=folder,
        spark_folder=services.store.spark_url(folder),
    )


def _job(
    services: Services, run: Run, region: str, attempt: AttemptId, merges: Sequence[MergeToWrite]
) -> CompactionJob:
    start, end = (each.astimezone(UTC).isoformat() for each in run.interval)
    return CompactionJob(
        attempt=attempt,
        dataflow=run.dataflow.name,
        epoch=run.epoch,
        interval=(start, end),
        region=region,
        subtask=0,
        store=services.store.url,
        report=region_folder(run, region, 0, attempt) + "/report.json",
        spark_conf=spark_conf(run.topology.stages_of(region)),
        merges=tuple(merges),
    )


def _new(begun: ToCompact, part: PartToCompact, outputs: Sequence[OutputReport]) -> NewCompaction:
    written = [file for number, merge in part.merges.items() for file in _written(merge, outputs[number])]
    return NewCompaction(
        of=part.of,
        dataflow=begun.dataflow,
        run=begun.run,
        attempt=begun.attempt,
        files=after(part.files, tuple(part.merges.values()), written),
        read_bytes=sum(_read_bytes(merge) for merge in part.merges.values()),
        written_bytes=sum(each.file.bytes for each in written),
    )


def _written(merge: Merge, output: OutputReport) -> Iterator[StateFile]:
    """Yield the files of a sorted run; where there are several, each has key groups of its own."""
    files = [each for each in output.files if each.rows]
    for file in files:
        yield StateFile(output.folder, file, merge.epoch, merge.key_groups if len(files) == 1 else _key_groups(file))


def _key_groups(file: DataFile) -> tuple[int, int]:
    known = [each.key_groups for each in file.segments if each.key_groups is not None]
    if not known:
        raise Internal.of("state.key_groups_unknown", file=file.name)
    return min(first for first, _ in known), max(last for _, last in known)


def _read_bytes(merge: Merge) -> int:
    return sum(bytes_of(each, each.key_groups) for each in merge.files)


def _summary(new: NewCompaction, part: PartToCompact) -> str:
    return (
        f"{_name(new)}: {sorted_runs(part.files)} sorted runs are {sorted_runs(new.files)} now; "
        f"{format_size(new.read_bytes)} read, {format_size(new.written_bytes)} written"
    )


def _name(new: NewCompaction) -> str:
    return f"state {new.of.state}[{new.of.subtask}]"
