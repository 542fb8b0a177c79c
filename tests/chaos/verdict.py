"""The comparison of a run under faults with one without, and the check of its ledger.

Invariant: what cannot be read is a difference, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.chaos.field import CALM

from weir.errors import WeirError
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.formats.manifest import Manifest
from weir.ledger.attempts import LIVE, newest_attempts
from weir.ledger.clears import open_clears
from weir.ledger.database.tables import AttemptRow, PublicationRow, ResultRow
from weir.ledger.results import results_in
from weir.ledger.snapshot import committed_attempt
from weir.recovery.inputs import reference
from weir.store.catalogue import published
from weir.store.probe import PartitionRef, probe, verify_segments
from weir_dev.demo.evidence import epoch_key, first_difference, published_rows

if TYPE_CHECKING:
    from datetime import date

    from tests.chaos.field import Field, RunView


Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DayVerdict:
    """One published day; `differences` is empty if it equals what it was compared with, row by row."""

    day: date
    rows: int
    differences: tuple[str, ...]


def unsettled(field: Field, dag: str, days: list[date]) -> list[str]:
    """Return why the runs of these days are not green; empty when they are.

    Raises Retryable while Airflow or the ledger does not answer.
    """
    runs = {run.start[:10]: run for run in field.api.runs(dag)}
    missing = [f"there is no run of {day}" for day in days if day.isoformat() not in runs]
    unfinished = [f"the run of {day} is {run.state}" for day, run in sorted(runs.items()) if run.state != "success"]
    names = {run.run_id: day for day, run in runs.items()}
    instances = [
        f"{one} of {names.get(one.run_id, one.run_id)} is {one.state or 'not scheduled'}"
        for one in field.api.task_instances(dag)
        if one.state not in {"success", "removed"}
    ]
    with field.ledger.transaction() as session:
        pending = [
            f"pending clear: {row.task_id}[{row.map_index}] of {row.run_id}" for row in open_clears(session, dag)
        ]
    running = [f"a process of {work.task.name} is running" for work in field.running_tasks()]
    return [*missing, *unfinished, *instances, *pending, *running]


def verdict_of(field: Field, day: date) -> DayVerdict:
    """Compare a published day with plain computation and with the run without faults."""
    differences = []
    try:
        rows = _rows(field, field.dag, day)
        against = {"plain Python": field.expected(epoch_key(day)), "the run without faults": _rows(field, CALM, day)}
    except (WeirError, OSError, ValueError) as error:
        return DayVerdict(day, 0, (f"what is published cannot be read: {error}",))
    for name, expected in against.items():
        difference = first_difference(rows, expected)
        if difference is not None:
            differences.append(f"against {name}: {difference}")
    if _digests(field, field.dag, day) != _digests(field, CALM, day):
        differences.append("the digests are not those of the run without faults")
    return DayVerdict(day, len(rows), tuple(differences))


def broken_invariants(field: Field) -> list[str]:
    """Return what is wrong with the ledger, or between ledger and store."""
    with field.ledger.transaction() as session:
        found = [
            f"a clear of {row.task_id}[{row.map_index}] of {row.run_id} is pending" for row in open_clears(session)
        ]
        live = session.query(AttemptRow).filter(AttemptRow.state.in_(LIVE))
        found += [f"attempt {row.id} of {row.region}[{row.subtask}] is {row.state}" for row in live]
    for run in field.runs():
        found += [f"{run.id}: {what}" for what in (*_of_results(field, run), *_of_publication(field, run))]
    return found


def _of_results(field: Field, run: RunView) -> list[str]:
    state = run.state
    wanted = [partition for region in state.topology.region_ids() for partition in state.topology.outputs(region)]
    found = [f"{each} is not valid, or lost" for each in wanted if not state.is_done(each)]
    with field.ledger.transaction() as session:
        rows = session.query(ResultRow).filter_by(run=run.id, is_current=True).all()
        if len({(row.stage, row.subtask, row.layout) for row in rows}) != len(rows):
            found.append("two results of one partition are current")
        for region, attempts in newest_attempts(session, run.id).items():
            committed = committed_attempt(session, run.id, region)
            later = [row for row in attempts if row.state == AttemptState.COMMITTED.value]
            if committed is not None and later[-1].id != committed.id:
                found.append(f"the current attempt of {region} is not the newest committed one")
        current = {row.attempt for row in rows}
        states = {row.id: row.state for row in session.query(AttemptRow).filter(AttemptRow.id.in_(current))}
    found += [f"attempt {each} is {state} and current" for each, state in states.items() if state != "committed"]
    return [*found, *_of_bytes(field, run)]


def _of_bytes(field: Field, run: RunView) -> list[str]:
    """Return damage that was not noticed, of results that were read since, or that the sink publishes."""
    store_id = field.store.initialise()
    pointer = published(field.store, field.dag, field.sink, run.epoch)
    with field.ledger.transaction() as session:
        seen = results_in(session, run.id, [each.folder for each in pointer.partitions] if pointer else [])
    references = {
        *(reference(result, run.id) for result in run.results if result.state is PartitionState.FINISHED),
        *(
            PartitionRef(
                run=run.id,
                stage=row.stage,
                subtask=row.subtask,
                layout=row.layout,
                attempt=row.attempt,
                folder=row.folder,
                manifest_sha256=row.manifest_sha256,
            )
            for row in seen
        ),
    }
    answers = probe(field.store, store_id, list(references))
    manifests = [(answer, ref.folder, None) for ref, answer in answers.items() if isinstance(answer, Manifest)]
    lost = [answer for answer in answers.values() if not isinstance(answer, Manifest)]
    return [str(loss) for loss in (*lost, *verify_segments(field.store, store_id, manifests))]


def _of_publication(field: Field, run: RunView) -> list[str]:
    pointer = published(field.store, field.dag, field.sink, run.epoch)
    if pointer is None:
        return ["nothing is published"]
    with field.ledger.transaction() as session:
        rows = session.query(PublicationRow).filter_by(run=run.id, sink=field.sink)
        version = max((row.version for row in rows if row.published_at is not None), default=0)
    found = []
    if pointer.version != version:
        found.append(f"readers see version {pointer.version}, but the ledger published {version}")
    current = {(each.partition.subtask, each.digest) for each in run.results if each.partition.stage == field.sink}
    if {(each.subtask, each.digest) for each in pointer.partitions} != current:
        found.append(f"version {pointer.version}, which readers see, is not of the current results")
    return found


def _rows(field: Field, dag: str, day: date) -> Rows:
    return sorted(published_rows(field.store, dag, field.sink, day), key=lambda row: int(row["bucket"]))


def _digests(field: Field, dag: str, day: date) -> list[tuple[int, str]]:
    pointer = published(field.store, dag, field.sink, epoch_key(day))
    return [] if pointer is None else sorted((each.subtask, each.digest) for each in pointer.partitions)
