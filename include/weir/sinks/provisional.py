"""Publishes rows of sinks before their run is closed (`delivery="at_least_once"`), and takes them back.

What may be shown of an epoch is derived from the ledger: the sink's results, while they are valid and their run is
open, and no version has their content. What is shown is compared with that by whoever comes by: the task that commits,
the closing task, upkeep.

Invariant: provisional rows are no version. Their number is assigned in the transaction that finds them valid, and is
below that of the version that follows: a process that is late finds a newer marker in the target. Rows that are not
valid any more are replaced by the last version, or taken out; only then their pointer is deleted, and their row ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.attempts.rooms import SinkResult
from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.errors import WeirError
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import RunState
from weir.formats.manifest import Manifest
from weir.integrity.verify import reference
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.deliveries import deliveries_of, enter_deliveries
from weir.ledger.publications import (
    begin_publication,
    is_expiring,
    last_publication,
    last_published,
    next_version,
    provisional_rows,
    runs_with_provisional_rows,
)
from weir.ledger.runs import dataflow_of, run_by_id, run_key, topology_of
from weir.ledger.snapshot import run_state
from weir.sinks.delivery import deliver, deliver_provisional, prepare, take_out
from weir.sinks.protocol import PROVISIONAL, Delivery, Outcome
from weir.sinks.publishing import pointer_of, version_of
from weir.store.errors import AlreadyExists, NotFound
from weir.store.probe import probe
from weir.topology.ids import RunId
from weir.topology.regions import PartitionId

_NAMED = 5
"""So many tasks are named that have yet to commit."""


@dataclass(frozen=True, slots=True)
class _Early:
    """What a sink may show of an open run: the numbers of its results in the ledger, in the order of subtasks."""

    sink: str
    results: Mapping[PartitionId, int]
    digest: str
    lacks: str


def settle_provisional(services: Services, dataflow: str, runs: Collection[str] | None, settled: Settled) -> None:
    """Show what may be shown of these runs (None: all of the dataflow), and take back what may not."""
    concerned: list[RunId] = []
    with settled.trying(f"{dataflow}, early results"), services.ledger.transaction() as session:
        concerned = _concerned(session, dataflow, runs)
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
    newest = {row.sink: row for row in shown}
    for sink, early in wanted.items():
        with settled.trying(f"{sink} of {run}, early results"):
            row = newest.get(sink)
            if row is None or row.expiring_at is not None or row.digest != early.digest:
                yield sink, _publish(services, run, early)
            elif _has_pointer(services, row):
                yield from ((sink, str(each)) for each in deliver_provisional(services, dataflow_of(run), row))
                newest.pop(sink)
    with services.ledger.transaction() as session:
        current = {row.sink: row.id for row in provisional_rows(session, run) if row.expiring_at is None}
    for row in shown:
        is_replaced = current.get(row.sink, row.id) != row.id
        if is_replaced or row.sink in newest:
            with settled.trying(f"{row.sink} of {run}, early results"):
                yield row.sink, _withdraw(services, row, is_replaced=is_replaced)


def _has_pointer(services: Services, row: PublicationRow) -> bool:
    """Report whether rows are shown whole: a process may have been killed before it wrote their pointer."""
    services.store_id()  # on an unmounted disk all pointers seem to be missing
    try:
        services.store.size(row.pointer)
    except NotFound:
        return False
    return True


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
    for sink in (stage.name for stage in run.dataflow.stages if stage.is_early):
        (layout,) = run.topology.layouts_of(sink)
        results = [state.results.get(each) for each in run.topology.partitions_of(sink, layout.id)]
        valid = [each for each in results if each is not None and state.is_valid(each.partition)]
        if len(valid) < len(results) or any(each.state is not PartitionState.FINISHED for each in valid):
            continue
        digest, newest = "|".join(each.digest for each in valid), last_publication(session, name, sink)
        published = last_published(session, name, sink)
        is_put_back = newest is None or not is_expiring(newest)  # else the rows that are there now could not be
        if is_put_back and (published is None or published.digest != digest):
            yield _Early(sink, {each.partition: each.result for each in valid}, digest, _lacks(session, row, state))


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
    """Show the rows of a sink, by a pointer and in its targets."""
    dataflow = dataflow_of(run)
    with services.ledger.transaction() as session:
        number = next_version(session, run, early.sink)
        stage = run_by_id(session, run).dataflow.stage(early.sink)
        rows = [session.get_one(ResultRow, each) for each in early.results.values()]
        references = [reference(row) for row in rows]
        folders = [row.folder for row in rows]
    answers = probe(services.store, services.store_id(), references)
    manifests = tuple(found for each in references if isinstance(found := answers[each], Manifest))
    if len(manifests) < len(references):
        return "nothing is shown: files are missing"
    result = SinkResult(early.sink, tuple(early.results), manifests, stage.targets)
    pointer = replace(pointer_of(services, services.ledger.id(), run, result, folders), version=number)
    version = version_of(pointer, manifests, f"{PROVISIONAL}{result.fingerprint}")
    try:
        deliveries = prepare(services, run, stage.targets, version) if stage.targets else []
    except WeirError as error:  # the close tells a person, where it is so still
        return f"nothing is shown: {error}"
    number = max([number, *(each.version.number for each in deliveries)])
    made = tuple(each.to_json() for each in deliveries)
    pointer = replace(pointer, version=number, deliveries=made, lacks=early.lacks)
    with services.ledger.transaction(dataflow) as session:
        again = {each.sink: each for each in _wanted(session, run)}.get(early.sink)
        if again is None or again.results != early.results or next_version(session, run, early.sink) > number:
            return "nothing is shown: results have changed meanwhile"
        if any(each.version.number != number for each in deliveries):
            return "nothing is shown yet: its targets hold different versions"
        newest = last_publication(session, run, early.sink)
        if newest is not None and newest.published_at is None and newest.digest == early.digest:
            return "nothing is shown: the closing task is about to publish it"
        begin_publication(session, run, early.sink, number, pointer.attempt, early.digest, pointer)
        enter_deliveries(session, run, early.sink, number, pointer.deliveries)
        session.flush()
        row = provisional_rows(session, run, early.sink)[-1]
    with suppress(AlreadyExists):
        services.store.create(row.pointer, pointer.to_json())
    problems = deliver_provisional(services, dataflow, row)
    shown = f"{version.rows} row(s) are shown as provisional ones, number {number}: {early.lacks}"
    return "; ".join([shown, *map(str, problems)])


# Taking back


def _withdraw(services: Services, row: PublicationRow, *, is_replaced: bool) -> str:
    """Take rows back: out of the targets, unless newer ones are there, then their pointer."""
    dataflow = dataflow_of(row.run)
    out = _begin_to_withdraw(services, row, is_replaced=is_replaced)
    for number, delivery, outcome in out:
        take_out(services, dataflow, number, delivery, outcome)
    problems = [] if is_replaced else deliver(services, dataflow, [row.sink])
    for problem in problems:
        if problem.run == row.run:
            raise problem.error
    services.store_id()
    services.store.delete(row.pointer)
    services.store_id()  # or it was unmounted meanwhile
    with services.ledger.transaction(dataflow) as session:
        session.get_one(PublicationRow, row.id).expired_at = services.now()
        session.get_one(RunRow, row.run).released_at = None
    return f"the provisional rows number {row.version} are not shown any more"


def _begin_to_withdraw(
    services: Services, row: PublicationRow, *, is_replaced: bool
) -> list[tuple[int, Delivery, str | None]]:
    """Record that rows are taken back, and have the last version put back where there is one.

    Returns the deliveries into targets that are to hold no rows of the epoch. A version that is published with a higher
    number takes their place by itself.
    """
    with services.ledger.transaction(dataflow_of(row.run)) as session:
        session.get_one(PublicationRow, row.id).expiring_at = row.expiring_at or services.now()
        last = last_published(session, row.run, row.sink)
        if is_replaced or (last is not None and last.version > row.version):
            return []
        held = []
        for each in deliveries_of(session, row.run, row.sink, last.version) if last is not None else ():
            delivery = Delivery.from_json(each.delivery)
            if each.outcome != Outcome.ROLLED_BACK.value:
                held.append(delivery.target)
                back = replace(delivery, version=replace(delivery.version, number=row.version + 1))
                each.delivery, each.outcome = back.to_json(), None
        mine = deliveries_of(session, row.run, row.sink, row.version)
        found = [(each.id, Delivery.from_json(each.delivery), each.outcome) for each in mine]
        return [each for each in found if each[1].target not in held]
