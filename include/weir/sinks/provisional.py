"""Publishes rows of sinks before their run is closed (`delivery="at_least_once"`), and takes them back.

What may be shown of an epoch is derived from the ledger: the sink's results, while they are valid and their run is
open, and no version has their content. What is shown is compared with that by whoever comes by: the task that commits,
the closing task, upkeep.

Invariant: provisional rows are no version. Their number is assigned in the transaction that finds them valid, and is
below that of the version that follows: a process that is late finds a newer marker in the target. Rows that are not
valid any more are replaced by the last version, or taken out; only then their pointer is deleted, and their row ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.attempts.rooms import SinkResult
from weir.coordination.evidence import require_known_publications, require_not_behind
from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.errors import LedgerBehind, Retryable, WeirError
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import RunState
from weir.formats.manifest import Manifest
from weir.formats.pointer import Pointer
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.deliveries import deliveries_of, enter_deliveries
from weir.ledger.publications import (
    begin_publication,
    is_expiring,
    last_publication,
    newest_published,
    next_version,
    provisional_rows,
    published_rows,
    runs_with_provisional_rows,
)
from weir.ledger.results import reference, results_in
from weir.ledger.runs import dataflow_of, run_by_id, run_key, topology_of
from weir.ledger.snapshot import run_state
from weir.sinks.delivery import (
    TOLD_AFTER,
    Undelivered,
    deliver_provisional,
    deliver_rows,
    fence,
    prepare,
    take_out,
)
from weir.sinks.protocol import PROVISIONAL, Outcome
from weir.sinks.publishing import pointer_of, version_of
from weir.store.errors import AlreadyExists, NotFound
from weir.store.probe import probe
from weir.topology.ids import RunId
from weir.topology.regions import PartitionId

_OUT = Outcome.ROLLED_BACK.value

_NAMED = 5
"""So many tasks are named that have yet to commit."""


@dataclass(frozen=True, slots=True)
class _Early:
    """What a sink may show of an open run: the numbers of its results in the ledger, in the order of subtasks."""

    sink: str
    results: Mapping[PartitionId, int]
    digest: str
    lacks: str


def settle_provisional(
    services: Services, dataflow: str, runs: Collection[str] | None, settled: Settled, *, is_thorough: bool = False
) -> None:
    """Show what may be shown of these runs (None: all of the dataflow), and take back what may not.

    Upkeep is thorough: it compares the ledger with the store before. Raises LedgerBehind; `settled` has other errors.
    """
    with services.ledger.transaction() as session:
        concerned = _concerned(session, dataflow, runs)
    if concerned and is_thorough:
        require_not_behind(services, dataflow)
    for run in concerned:
        for sink, said in _settle_run(services, run, settled):
            settled.done[f"{sink} of {run}, early results"] = said


def _concerned(session: Session, dataflow: str, runs: Collection[str] | None) -> list[RunId]:
    if runs is not None:
        return [RunId(each) for each in sorted(runs)]
    live = (RunRow.closed_at.is_(None), RunRow.deleted_at.is_(None), RunRow.expired_at.is_(None), RunRow.is_pinned)
    rows = session.scalars(select(RunRow).where(RunRow.dataflow == dataflow, *live))
    publishing = {row.id for row in rows if topology_of(row.pinned or {}).dataflow.publishes_early}
    return sorted(publishing | {*runs_with_provisional_rows(session, dataflow)})


def _settle_run(services: Services, run: RunId, settled: Settled) -> Iterator[tuple[str, str]]:
    """Yield what was done, by sink."""
    with services.ledger.transaction() as session:
        wanted = {each.sink: each for each in _wanted(session, run)}
        shown = provisional_rows(session, run)
    stay = set[int]()
    for sink, early in wanted.items():
        newest = next((row for row in reversed(shown) if row.sink == sink and row.expiring_at is None), None)
        with settled.trying(f"{sink} of {run}, early results", LedgerBehind):
            if newest is None or newest.digest != early.digest:
                yield sink, _publish(services, run, early)
            else:
                stay.add(newest.id)
                yield from ((sink, str(problem)) for problem in _show(services, newest))
    for row in reversed(shown):
        if row.id not in stay:
            with settled.trying(f"{row.sink} of {run}, early results", LedgerBehind):
                yield row.sink, _withdraw(services, row)


# What may be shown


def _wanted(session: Session, name: str) -> Iterator[_Early]:
    """Yield what sinks of a run may show: valid results of which no version has the content, while the run is open."""
    row = session.get(RunRow, name)
    if row is None or row.pinned is None or row.is_passed_over:
        return
    if row.closed_at is not None or row.deleted_at is not None or row.expired_at is not None:
        return
    run = run_by_id(session, name)
    if not run.dataflow.publishes_early:
        return
    state = run_state(session, run)
    lacks = _lacks(session, row, state)
    for sink in (stage.name for stage in run.dataflow.stages if stage.is_early):
        (layout,) = run.topology.layouts_of(sink)
        results = [state.results.get(each) for each in run.topology.partitions_of(sink, layout.id)]
        valid = [each for each in results if each is not None and state.is_valid(each.partition)]
        if len(valid) < len(results) or any(each.state is not PartitionState.FINISHED for each in valid):
            continue
        digest, last = "|".join(each.digest for each in valid), newest_published(session, name, sink)
        # The rows of a version that is about to go could not be put back.
        if last is None or (last.digest != digest and not is_expiring(last)):
            yield _Early(sink, {each.partition: each.result for each in valid}, digest, lacks)


def _lacks(session: Session, row: RunRow, state: RunState) -> str:
    """Say what a run has yet to do before its results are published."""
    missing = [each for each in state.region_ids() if not all(map(state.is_valid, state.outputs(each)))]
    before = None if row.predecessor is None else session.get(RunRow, run_key(row.dataflow, row.predecessor))
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    said = [f"{', '.join(map(str, missing[:_NAMED]))}{more} have not committed"] if missing else []
    said += [f"{before.id} is not closed"] if before is not None and before.closed_at is None else []
    return "; ".join(["its run is not closed", *said])


# Publishing


def _publish(services: Services, run: RunId, early: _Early) -> str:
    """Show the rows of a sink, by a pointer and in its targets. Raises LedgerBehind or Retryable."""
    dataflow = dataflow_of(run)
    require_known_publications(services, run, [early.sink])
    with services.ledger.transaction() as session:
        first = next_version(session, run, early.sink)
        stage = run_by_id(session, run).dataflow.stage(early.sink)
        folders = [session.get_one(ResultRow, each).folder for each in early.results.values()]
    manifests = _manifests(services, run, folders)
    if manifests is None:
        return "nothing is shown: files are missing"
    result = SinkResult(early.sink, tuple(early.results), manifests, stage.targets)
    pointer = replace(pointer_of(services, services.ledger.id(), run, result, folders), version=first)
    version = version_of(pointer, manifests, f"{PROVISIONAL}{result.fingerprint}")
    try:
        deliveries = prepare(services, run, stage.targets, version) if stage.targets else []
    except WeirError as error:  # the close tells a person, where it is so still
        return f"nothing is shown: {error}"
    number = max([first, *(each.version.number for each in deliveries)])
    made = tuple(each.to_json() for each in deliveries)
    pointer = replace(pointer, version=number, deliveries=made, lacks=early.lacks)
    with services.ledger.transaction(dataflow) as session:
        if why := _why_not(session, run, early, [first, number, *(each.version.number for each in deliveries)]):
            return f"nothing is shown: {why}"
        begin_publication(session, run, early.sink, number, pointer.attempt, early.digest, pointer)
        enter_deliveries(session, run, early.sink, number, made)
        session.flush()
        row = provisional_rows(session, run, early.sink)[-1]
    is_shown = _is_pointed_to(services, row, pointer)
    problems = deliver_provisional(services, dataflow, row) if is_shown else []
    shown = f"{version.rows} row(s) are shown as provisional ones, number {number}: {early.lacks}"
    return "; ".join([shown, *map(str, problems)])


def _why_not(session: Session, run: RunId, early: _Early, numbers: Sequence[int]) -> str:
    """Say why rows cannot be shown after all; `numbers` are the next one, that of the rows, and those of targets."""
    again = {each.sink: each for each in _wanted(session, run)}.get(early.sink)
    first, number, *of_targets = numbers
    if again is None or again.results != early.results or next_version(session, run, early.sink) > number:
        return "results have changed meanwhile"
    if any(each != number for each in of_targets):
        return "its targets hold different versions"
    if number > first and newest_published(session, run, early.sink) is None:
        return "a target holds rows of the epoch that the ledger does not know"
    last = last_publication(session, run, early.sink)
    is_due = last is not None and last.published_at is None and last.digest == early.digest
    return "the closing task is about to publish it" if is_due else ""


def _manifests(services: Services, run: RunId, folders: Sequence[str]) -> tuple[Manifest, ...] | None:
    """Read the manifests of results; None where files of any are missing."""
    with services.ledger.transaction() as session:
        known = {row.folder: reference(row) for row in results_in(session, run, folders)}
    answers = probe(services.store, services.store_id(), [*known.values()])
    found = [answers.get(known[each]) if each in known else None for each in folders]
    manifests = tuple(each for each in found if isinstance(each, Manifest))
    return manifests if len(manifests) == len(folders) else None


def _show(services: Services, row: PublicationRow) -> list[Undelivered]:
    """Write the pointer to rows, where no process has, and commit them into their targets; return what could not be."""
    if not _has_pointer(services, row):
        pointer = _pointer_to(services, row)
        if pointer is None or not _is_pointed_to(services, row, pointer):
            return []
    return deliver_provisional(services, dataflow_of(row.run), row)


def _has_pointer(services: Services, row: PublicationRow) -> bool:
    services.store_id()  # on an unmounted disk all pointers seem to be missing
    try:
        services.store.size(row.pointer)
    except NotFound:
        return False
    return True


def _pointer_to(services: Services, row: PublicationRow) -> Pointer | None:
    """Make the pointer that another process was to write; None where files are missing."""
    manifests = _manifests(services, row.run, row.folders)
    if manifests is None:
        return None
    with services.ledger.transaction() as session:
        deliveries = tuple(each.delivery for each in deliveries_of(session, row.run, row.sink, row.version))
    parts = tuple(PartitionId(row.sink, each.subtask, each.layout) for each in manifests)
    result = SinkResult(row.sink, parts, manifests, ())
    pointer = pointer_of(services, services.ledger.id(), row.run, result, row.folders)
    return replace(pointer, version=row.version, deliveries=deliveries, lacks=row.lacks or "")


def _is_pointed_to(services: Services, row: PublicationRow, pointer: Pointer) -> bool:
    """Write the pointer to rows; it goes again where these were taken back meanwhile."""
    with suppress(AlreadyExists):  # another process has written the same
        services.store.create(row.pointer, pointer.to_json())
    with services.ledger.transaction() as session:
        is_shown = session.get_one(PublicationRow, row.id).expiring_at is None
    if not is_shown:
        services.store.delete(row.pointer)
    return is_shown


# Taking back


def _withdraw(services: Services, row: PublicationRow) -> str:
    """Take rows back: out of each target, unless newer ones are there, then their pointer.

    Raises what a target refuses, and what has not been possible for an hour.
    """
    dataflow = dataflow_of(row.run)
    with services.ledger.transaction(dataflow) as session:
        mine = session.get_one(PublicationRow, row.id)
        if mine.expired_at is not None:
            return "another process has taken them back"
        since = mine.expiring_at = mine.expiring_at or services.now()
    try:
        _take_back(services, row)
    except Retryable as error:
        if since + TOLD_AFTER <= services.now():
            raise
        return f"the provisional rows number {row.version} are still to be taken back: {error}"
    services.store_id()
    services.store.delete(row.pointer)
    services.store_id()  # or it was unmounted meanwhile
    with services.ledger.transaction(dataflow) as session:
        session.get_one(PublicationRow, row.id).expired_at = services.now()
        session.get_one(RunRow, row.run).released_at = None
    return f"the provisional rows number {row.version} are not shown any more"


def _take_back(services: Services, row: PublicationRow) -> None:
    """Have each target of rows hold what is newer, else the last version, else nothing of the epoch.

    Where it is not known whether the rows got there, they are put there first: a process that was suspended while it
    did that finds what takes their place, also where that has the rows of the version before and changes nothing.
    """
    dataflow = dataflow_of(row.run)
    with services.ledger.transaction() as session:
        mine = deliveries_of(session, row.run, row.sink, row.version)
        unknown = {each.id for each in mine if each.outcome is None}
    fence(services, dataflow, unknown)
    with services.ledger.transaction(dataflow) as session:
        instead = _instead_of(session, row, unknown)
    for problem in deliver_rows(services, dataflow, [each for each in instead.values() if each is not None]):
        raise problem.error
    for number, other in instead.items():
        if other is None:
            take_out(services, dataflow, number)


def _instead_of(session: Session, row: PublicationRow, unknown: Collection[int]) -> dict[int, int | None]:
    """Return the deliveries that take the place of each of the rows' own ones; None where there is none.

    What is newer is looked for once more in a target that may have got the rows after it. The last version gets a
    number above theirs.
    """
    shown = [each for each in provisional_rows(session, row.run, row.sink) if each.expiring_at is None]
    published = [each for each in published_rows(session, row.run, row.sink) if not is_expiring(each)]
    others = sorted((*shown, *published), key=lambda each: each.version, reverse=True)
    held = [(other, deliveries_of(session, row.run, row.sink, other.version)) for other in others]
    instead: dict[int, int | None] = {}
    for mine in deliveries_of(session, row.run, row.sink, row.version):
        target = mine.delivery["target"]
        found = ((other, each) for other, rows in held for each in rows if each.delivery["target"] == target)
        other, each = next(found, (None, None))
        instead[mine.id] = None
        if other is None or each is None or (other.version < row.version and each.outcome == _OUT):
            continue
        instead[mine.id] = each.id
        if other.version < row.version:
            version = each.delivery["version"]
            number = max(version["number"], row.version + 1)
            each.delivery, each.outcome = {**each.delivery, "version": {**version, "number": number}}, None
        elif mine.id in unknown:
            each.outcome = None
    return instead
