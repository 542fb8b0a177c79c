"""Looks for what another attempt has made of the same, for a task to take instead of computing.

Invariants: a result is taken only while a lease keeps its files, and as a copy that is compared byte for byte: nothing
depends on the other attempt afterwards. A person's clear means that the task computes, and so do suspicious rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.dataflow.dataflow import stage_to_json
from weir.dataflow.stage import Stage, StageKind
from weir.errors import Fault, Retryable
from weir.execution.run_state import AttemptState
from weir.formats.made_of import Digests, keys_with_contexts, made_of
from weir.formats.manifest import Manifest
from weir.formats.region_job import OutputReport, RegionJob, ResultToTake, StateReport
from weir.ledger.attempts import Origin, attempts_ever_of
from weir.ledger.database.tables import ResultRow
from weir.ledger.leases import take_leases
from weir.ledger.results import attempts_with_keys, reference, results_made_of
from weir.ledger.runs import Run
from weir.store.probe import probe
from weir.topology.regions import RegionId, Topology

_MOST: Final = 3
"""How many attempts are looked at whose files may be gone."""


def with_result_to_take(
    services: Services,
    registered: Registered,
    job: RegionJob,
    digests_of: Callable[[], Digests],
    *,
    is_of_backfill: bool,
) -> RegionJob:
    """Add to a job what its rows are made of, and a result that was made of the same, if there is one.

    `digests_of` returns those of its inputs, and is called only where its results may be shared.
    In a run of a backfill a clear is no person's: that runs all tasks of a run again, which are to take what they can.
    What the store does not give can be computed.
    """
    if not _may_be_shared(registered.topology, registered.attempt.region):
        return job
    declared = registered.topology.stages_of(registered.attempt.region.name)
    job = replace(job, made_of=made_of(job, [_on_which_rows_depend(each) for each in declared], digests_of()))
    if not job.made_of:
        return job
    keys = dict(keys_with_contexts(job))
    with services.ledger.transaction() as session:
        region = registered.attempt.region
        is_by_person = not is_of_backfill and _is_by_person(session, registered.run, region)
        if is_by_person or _is_suspected(session, registered.run, registered.topology, region):
            return job
        found = _candidates(session, registered, job, keys)
    whole = next(_whole(services, job, found), None)
    if whole is None:
        return job
    rows, take = whole
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        # What is deleted before this is found to be so by the job, and computed.
        take_leases(session, [row.id for row in rows], registered.attempt.id, services.now())
    return replace(job, take=take)


def results_to_take(
    session: Session, run: Run, regions: Iterable[RegionId], cleared: Collection[RegionId]
) -> dict[RegionId, str]:
    """Return the attempts whose results tasks take, if these are to make them of the same as they did last.

    What a task itself has made counts where it is `cleared`; else it is lost, or out of date. By what the ledger knows:
    whether code and session are the same, and bytes are there, shows when a task runs.
    """
    made, found = attempts_with_keys(session, run.id), dict[RegionId, str]()
    for region in (each for each in regions if each in made and _takes(session, run, each)):
        own, key = made[region]
        wanted = {(each.stage, each.layout) for each in run.topology.outputs(region)}
        for (attempt, _), _ in _whole_attempts(session, run.dataflow.name, [key], wanted):
            if attempt != own or region in cleared:
                found[region] = attempt
                break
    return found


def _on_which_rows_depend(stage: Stage) -> dict[str, Any]:
    """Return what of a declaration counts: neither where its task runs, nor who checks, names or publishes its rows."""
    return {name: value for name, value in stage_to_json(stage).items() if name not in _NO_ROWS}


_NO_ROWS: Final = frozenset({"task", "asset", "quality", "targets", "delivery", "reuse"})


def _may_be_shared(topology: Topology, region: RegionId) -> bool:
    """Report whether what a region writes, and is checked, may depend on nothing but what its key has."""
    stages = topology.stages_of(region.name)
    written = {each.stage for each in topology.outputs(region)}
    # A sink has the rows of the stage that it publishes.
    written |= {read for each in stages if each.kind is StageKind.SINK for read in each.exchanges}
    return all(
        topology.dataflow.reuses(each)
        and each.deterministic
        and each.application is None
        and (not each.gates or each.name in written)
        for each in stages
        if each.kind not in (StageKind.SINK, StageKind.STATE)
    )


def _takes(session: Session, run: Run, region: RegionId) -> bool:
    """Report whether a task that Weir clears takes what it finds."""
    return _may_be_shared(run.topology, region) and not (
        _is_by_person(session, run, region) or _is_suspected(session, run, run.topology, region)
    )


def _is_by_person(session: Session, run: Run, region: RegionId) -> bool:
    """Report whether a person has cleared the task since it last committed, also if a try of it has failed since.

    Who has deleted its DagRun, and has it run again, has cleared it, too.
    """
    # Those of deleted DagRuns come last, whatever their tries were.
    for row in reversed(attempts_ever_of(session, run.id, region)):
        if not row.is_of_dag_run and row.origin not in (Origin.RESTORED.value, Origin.REBUILT.value):
            return True
        if row.state in (AttemptState.COMMITTED.value, AttemptState.ADOPTED.value):
            return False
        if row.origin == Origin.CLEARED_BY_PERSON.value:
            return True
    return False


def _is_suspected(session: Session, run: Run, topology: Topology, region: RegionId) -> bool:
    """Report whether rows that the task has made in this run violate an expectation: they are to be compared."""
    query = select(ResultRow.id).where(
        ResultRow.run == run.id,
        ResultRow.subtask == region.subtask,
        ResultRow.stage.in_(topology.region(region.name).stages),
        ResultRow.fault == Fault.SUSPECTED.value,
        ResultRow.is_current,
    )
    return session.scalar(query.limit(1)) is not None


_Found = list[tuple[list[ResultRow], tuple[str, ...]]]


def _candidates(
    session: Session, registered: Registered, job: RegionJob, keys: Mapping[str, tuple[str, ...]]
) -> _Found:
    """Return the newest results of whole attempts that are made of the same, with what their functions looked at."""
    wanted = {(stage.name, output.layout.id) for stage in job.stages for output in stage.outputs}
    return [
        (rows, keys[key])
        for (_, key), rows in _whole_attempts(session, registered.run.dataflow.name, list(keys), wanted)
    ]


def _whole_attempts(
    session: Session, dataflow: str, keys: Sequence[str], wanted: Set[tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], list[ResultRow]]]:
    """Yield the newest attempts with one of these keys whose results, by stage and layout, are those wanted."""
    by_attempt: dict[tuple[str, str], list[ResultRow]] = {}
    for row, key in results_made_of(session, dataflow, keys, _MOST * len(wanted)):
        by_attempt.setdefault((row.attempt, key), []).append(row)
    for attempt, found in by_attempt.items():
        if {(row.stage, row.layout) for row in found} == wanted:
            yield attempt, found


def _whole(services: Services, job: RegionJob, found: _Found) -> Iterator[tuple[list[ResultRow], ResultToTake]]:
    for rows, looked_at in found:
        references = {reference(row): row for row in rows}
        try:
            answers = probe(services.store, services.store_id(), list(references))
        except Retryable:
            continue  # it can be computed
        there = {
            (row.stage, row.layout): (row, manifest)
            for each, row in references.items()
            if isinstance(manifest := answers[each], Manifest)
        }
        if len(there) == len(rows):
            yield rows, _to_take(job, there, looked_at)


def _to_take(
    job: RegionJob, found: Mapping[tuple[str, str], tuple[ResultRow, Manifest]], looked_at: tuple[str, ...]
) -> ResultToTake:
    places = [(stage.name, output) for stage in job.stages for output in stage.outputs]
    outputs = [(stage, output, *found[stage, output.layout.id]) for stage, output in places]
    first = outputs[0][3]
    return ResultToTake(
        attempt=first.attempt,
        run=first.run,
        code=first.code,
        session=first.session,
        looked_at=looked_at,
        outputs=tuple(
            OutputReport(
                stage=stage,
                layout=output.layout,
                folder=row.folder,
                spark_schema=manifest.spark_schema,
                digest=manifest.digest,
                files=manifest.files,
                state=_state_taken(manifest),
            )
            for stage, output, row, manifest in outputs
        ),
    )


def _state_taken(manifest: Manifest) -> StateReport | None:
    """Return what an attempt has reported of a keyed state that went on from the same one."""
    if manifest.state is None:
        return None
    content = manifest.state
    return StateReport(
        tallies=content.tallies,
        changed=content.changed,
        is_whole=all(each.epoch == manifest.epoch for each in content.files),
        rows=content.rows,
        estimate=content.estimate,
    )
