"""Selects the results that a reader may read, by the ledger and the files in the store.

Invariant 3: a reader gets only finished, valid partitions whose files all exist, and only whole published versions. A
refusal says why, and which command makes the results available again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Fault, Loss, Misconfigured, ResultUnavailable
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import Obstacle, RunState
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.publications import newest_published, provisional_rows
from weir.ledger.results import reference, results_in
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.store.probe import probe
from weir.topology.partitions import PLAIN
from weir.topology.regions import PartitionId, Topology


class Unreadable(ResultUnavailable):
    """Raised for results that cannot be read: says why, and which command helps. Has the fault of each result."""

    def __init__(self, losses: Iterable[Loss], advice: str) -> None:
        super().__init__(tuple(losses))
        self.args = (f"{self.args[0]}. {advice}",)


TO_INSPECT = (PartitionState.FINISHED, PartitionState.QUARANTINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The results of one stage of one run; `version` is the published one, for a sink.

    Of what is inspected also results in quarantine are there.
    """

    run: str
    run_id: str
    epoch: str
    stage: str
    layout: str
    version: int | None
    rows: tuple[ResultRow, ...]
    is_inspected: bool = False
    lacks: str = ""
    """Of provisional rows: what their run has yet to do."""

    @classmethod
    def of(cls, run: RunRow, stage: str, layout: str, rows: Iterable[ResultRow], version: int | None = None) -> Chosen:
        """Return results of a stage of a run."""
        return cls(
            run=run.id,
            run_id=run.run_id,
            epoch=run.epoch,
            stage=stage,
            layout=layout,
            version=version,
            rows=tuple(rows),
        )

    @property
    def states(self) -> tuple[PartitionState, ...]:
        """Return the states of results that may be read."""
        return TO_INSPECT if self.is_inspected else (PartitionState.FINISHED,)


def published_results(
    session: Session, row: RunRow, topology: Topology, sink: str, version: int | None = None
) -> Chosen:
    """Return a published version of a sink, the newest unless one is named, whatever has been computed since.

    Raises Misconfigured for one that was never published or is not any more, and Unreadable.
    """
    found = published_version(session, row.id, sink, version)
    if found.expired_at is not None:
        raise Misconfigured.of(
            "reading.version_removed",
            version=found.version,
            sink=sink,
            row_id=row.id,
            at=_at_time(found.expired_at),
        )
    (layout,) = topology.layouts_of(sink)
    rows = _of_version(session, found)
    _require(row, rows)
    return Chosen.of(row, sink, layout.id, rows, found.version)


def provisional_results(session: Session, row: RunRow, topology: Topology, sink: str) -> Chosen | None:
    """Return the provisional rows that a sink of an open run shows; None where it shows none. Raises Unreadable."""
    last = newest_published(session, row.id, sink)
    shown = [each for each in provisional_rows(session, row.id, sink) if each.expiring_at is None]
    if not shown or (last is not None and last.version > shown[-1].version):
        return None
    (layout,) = topology.layouts_of(sink)
    rows = _of_version(session, shown[-1])
    _require(row, rows)
    return replace(Chosen.of(row, sink, layout.id, rows, shown[-1].version), lacks=shown[-1].lacks or "")


def published_version(session: Session, run: str, sink: str, version: int | None = None) -> PublicationRow:
    """Return a version of a sink that was published, the newest unless one is named; it may be removed by now.

    Raises Misconfigured for one that was never published.
    """
    query = select(PublicationRow).where(
        PublicationRow.run == run, PublicationRow.sink == sink, PublicationRow.published_at.is_not(None)
    )
    known = list(session.scalars(query.order_by(PublicationRow.version)))
    if not known:
        raise Misconfigured.of("reading.not_published", row_id=run, sink=sink)
    found = next((each for each in reversed(known) if version in (None, each.version)), None)
    if found is None:
        versions = [each.version for each in known]
        raise Misconfigured.of("reading.version_unknown", row_id=run, sink=sink, version=version, versions=versions)
    return found


def _of_version(session: Session, version: PublicationRow) -> list[ResultRow]:
    rows = {row.folder: row for row in results_in(session, version.run, version.folders)}
    unknown = [folder for folder in version.folders if folder not in rows]
    if unknown:
        raise Misconfigured.of(
            "reading.version_partly_unknown",
            unknown=unknown[0],
            version=version.version,
            sink=version.sink,
            run=version.run,
        )
    return [rows[folder] for folder in version.folders]


def _require(run: RunRow, rows: Iterable[ResultRow]) -> None:
    """Of a published version only the bytes are asked for: its content was valid when it was published."""
    gone = [(row, PartitionState(row.state)) for row in rows if row.state != PartitionState.FINISHED.value]
    if gone:
        losses = [_loss(row, state) for row, state in gone]
        raise Unreadable(losses, advice(run.id, [row for row, _ in gone]))


def current_results(session: Session, run: RunRow, stage: str) -> Chosen:
    """Return all partitions of a stage in one layout: each layout has all rows. Raises Unreadable."""
    state = run_state(session, run_by_id(session, run.id))
    layouts = sorted(state.topology.layouts_of(stage), key=lambda layout: layout != PLAIN)
    problem: Unreadable | None = None
    for layout in layouts:
        partitions = state.topology.partitions_of(stage, layout.id)
        losses = {each: loss for each in partitions if (loss := _problem(session, state, each)) is not None}
        if not losses:
            rows = (session.get_one(ResultRow, state.results[each].result) for each in partitions)
            return Chosen.of(run, stage, layout.id, rows)
        problem = problem or _unreadable(session, state, losses)
    raise problem or Misconfigured.of("reading.stage_not_written_by_run", run_id=run.id, stage=stage)


def require_readable(session: Session, state: RunState, partitions: Iterable[PartitionId]) -> None:
    """Require that all of these, of a run or of an earlier one, are finished and valid. Raises Unreadable."""
    losses = {each: loss for each in partitions if (loss := _problem(session, state, each)) is not None}
    if losses:
        raise _unreadable(session, state, losses)


def lost_of(services: Services, state: RunState, losses: Mapping[PartitionId, Loss]) -> Unreadable:
    """Return the error about results that the store has lost, though the ledger has them."""
    with services.ledger.transaction() as session:
        return _unreadable(session, state, losses)


def results_of_attempt(session: Session, rows: Sequence[ResultRow]) -> Chosen:
    """Return the results of one attempt of a stage, in one layout; also those in quarantine, for inspection.

    Raises Unreadable where its bytes are gone.
    """
    first = min(rows, key=lambda row: (row.layout != PLAIN.id, row.layout))
    found = [row for row in rows if row.layout == first.layout]
    run = session.get_one(RunRow, first.run)
    gone = [(row, PartitionState(row.state)) for row in found if PartitionState(row.state) not in TO_INSPECT]
    if gone:
        raise Unreadable([_loss(row, state) for row, state in gone], advice(run.id, found))
    return replace(Chosen.of(run, first.stage, first.layout, found), is_inspected=True)


def _problem(session: Session, state: RunState, partition: PartitionId) -> Loss | None:
    obstacle, result = next(state.obstacles(partition), None), state.results.get(partition)
    if obstacle is None:
        return None
    if result is None or obstacle in (Obstacle.OLDER_CODE, Obstacle.STALE, Obstacle.OLDER_SIBLING):
        return state.loss(partition, obstacle)
    return _loss(session.get_one(ResultRow, result.result), result.state)  # which says when and why


def _loss(row: ResultRow, state: PartitionState) -> Loss:
    names = (row.run, row.stage, row.subtask, row.layout, row.attempt)
    since = f"on {_at_time(row.state_at)}, because {row.state_reason}" if row.state_reason else "some time ago"
    if state is PartitionState.QUARANTINED:
        return Loss(*names, Fault.STALE, f"its content is in doubt; it was quarantined {since}")
    if state is PartitionState.LOST:
        fault = Fault(row.fault) if row.fault else Fault.MISSING
        return Loss(*names, fault, f"it was found lost {since}")
    return Loss(*names, Fault.MISSING, f"it was {state.value} {since}")


def _unreadable(session: Session, state: RunState, losses: Mapping[PartitionId, Loss]) -> Unreadable:
    awaited = sorted({str(region) for each in losses for region in state.awaited_for(each)})
    if awaited:
        return Unreadable(losses.values(), f"{', '.join(awaited)} computes it now: try again when that has ended")
    rows = [session.get_one(ResultRow, state.results[each].result) for each in losses if each in state.results]
    return Unreadable(losses.values(), advice(min(each.run_id(state.run) for each in losses), rows))


def advice(run: str, rows: Iterable[ResultRow], *, is_named: bool = False) -> str:
    """Return the command that recomputes results; `is_named` says that sizes and footers do not show the fault.

    A result that no task needs must be named in the command, too.
    """
    rows = list(rows)
    if rows and not any(row.is_current for row in rows):
        return f"Clear weir_close of {run} in Airflow: it publishes the present results of the run anew"
    asked = [row for row in rows if row.is_current and (is_named or row.state == PartitionState.RELEASED.value)]
    named = "".join(f" --lost '{each}'" for each in sorted({f"{row.stage}[{row.subtask}]" for row in asked}))
    return f"`weir plan {run}{named} --apply` recomputes it; `weir results {run} --story` tells what became of it"


def _at_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def manifests_of(services: Services, chosen: Chosen) -> list[Manifest]:
    """Look whether all is there, with its sizes, indexes and footers. Raises Unreadable."""
    references = [reference(row) for row in chosen.rows]
    answers = probe(services.store, services.store_id(), references)
    losses = [found for found in answers.values() if isinstance(found, Loss)]
    if losses:
        raise Unreadable(losses, advice(chosen.run, chosen.rows))
    return [found for ref in references if isinstance(found := answers[ref], Manifest)]
