"""A trial on the inputs of a run: those that its task would read now, under a read lease.

Invariants: no attempt is registered and no split recorded; the lease is the only thing that is written into the ledger.
What is tried is the plan as it is declared, or as the run is pinned to it; what it reads is as the run has written it,
whatever the DAG file says of the stages upstream by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.orm import Session

from weir.attempts.job import region_job
from weir.code.archive import Archive, archive_of, pack, top_level
from weir.code.generation_rules import short
from weir.coordination.read_leases import ReadLease, claimed, reader
from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.coordination.values import Attempt
from weir.dataflow import Dataflow, Stage
from weir.dataflow.graph import reachable
from weir.errors import Message, Misconfigured
from weir.execution.run_state import RunState
from weir.formats.manifest import OF_RESULT, OF_STORED_ROWS, Manifest
from weir.formats.programs import TrialRequest
from weir.formats.region_job import CodeToRun, RegionJob
from weir.ledger.attempts import Origin
from weir.ledger.code import archive_row, functions_of, generations_of
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import Run, run_by_id
from weir.ledger.snapshot import run_state
from weir.ledger.sources import splits_of
from weir.reading.availability import lost_of, require_readable
from weir.reading.choosing import run_named
from weir.recovery.inputs import probe_partitions
from weir.recovery.resolving import resolve, resolve_context, with_previous
from weir.state.assigned import assigned_states, check_states
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.topology.layouts import WrittenLayouts
from weir.topology.regions import PartitionId, RegionId, Topology
from weir.trials.declared import AS_IT_WAS, Declared, Wanted
from weir.trials.trial import Trial, Trimming, new_attempt, stored_code


@contextmanager
def opened_on_run(
    services: Services, declared: Declared, wanted: Wanted, named: str, scratch: Store
) -> Iterator[Trial]:
    """Describe the trial on the run that a person has named, and lease what it reads until the end.

    Raises Misconfigured for a run that is not known or does not fit the DAG file, Unreadable for inputs that cannot be
    read, and Retryable.
    """
    flow, stage, as_it_was = declared.flow, declared.stage, wanted.code == AS_IT_WAS
    with services.ledger.transaction() as session:
        row = run_named(session, flow.name, named)
        if row.pinned is None:
            raise Misconfigured.of("trials.run_not_begun", row_id=row.id, run_id=row.run_id)
        run = run_by_id(session, row.id)
        topology = _topology(declared, run, as_it_was=as_it_was)
        code = _recorded_code(session, row, topology, stage.name) if as_it_was else None
    region = topology.logical_region_of(stage.name)
    subtasks = subtasks_of(topology.dataflow.stage(stage.name), wanted.subtask)
    regions = [RegionId(region.name, subtask) for subtask in subtasks]
    pinned, run = run.topology, replace(run, topology=topology)
    with services.ledger.transaction(flow.name) as session:
        state = run_state(session, run, topology)
        read = list(dict.fromkeys(each for one in regions for each in state.inputs_of(one)))
        require_readable(session, state, read)
        claim = claimed(session, services, flow.name, [state.results[each].result for each in read], reader("weir try"))
    read += [each for one in regions for inputs in state.dataset_inputs(one) for each in inputs.partitions]
    lease = ReadLease(claim)
    try:
        yield _Described(services, declared, scratch, run, pinned, state, regions).trial(read, code, wanted.shown)
    finally:
        lease.close()


def subtasks_of(stage: Stage, wanted: int | None) -> Sequence[int]:
    """Return the subtasks to compute. Raises Misconfigured for one that the stage does not have."""
    if wanted is None:
        return range(stage.parallelism)
    if not 0 <= wanted < stage.parallelism:
        raise Misconfigured.of(
            "trials.subtask_unknown", stage=stage.name, wanted=wanted, parallelism=stage.parallelism - 1
        )
    return [wanted]


# The plan as it is declared, on what the run has written


def _topology(declared: Declared, run: Run, *, as_it_was: bool) -> Topology:
    flow, stage = declared.flow, declared.stage.name
    if as_it_was:
        run.dataflow.stage(stage)
        return run.topology
    region = set(Topology(flow).logical_region_of(stage).stages)
    upstream = _upstream(run.topology, [_read_of(run, each) for each in _boundaries(flow, region)])
    if upstream & region:
        raise _unfit(run, Message("trials.stage_is_upstream", upstream=sorted(upstream & region), stage=stage), None)
    pinned = [each for each in run.dataflow.stages if each.name in upstream]
    try:
        mixed = replace(flow, stages=[*pinned, *(each for each in flow.stages if each.name not in upstream)])
    except Misconfigured as error:
        raise _unfit(run, Message("trials.stages_do_not_fit"), error) from error
    written = {name: WrittenLayouts(run.topology.layouts_of(name), "as the run has written it") for name in upstream}
    return Topology(mixed, {name: found for name, found in written.items() if found.written})


def _boundaries(flow: Dataflow, region: set[str]) -> Iterator[str]:
    """Yield the stages that a region reads from the store, of the same run."""
    for stage in flow.stages:
        if stage.name in region:
            yield from (exchange.stage for exchange in stage.exchanges.values() if exchange.is_boundary)


def _read_of(run: Run, producer: str) -> str:
    known = {stage.name for stage in run.dataflow.stages}
    if producer not in known:
        raise _unfit(run, Message("trials.producer_unknown", producer=producer), None)
    if not run.topology.layouts_of(producer):
        raise _unfit(run, Message("trials.producer_not_written", producer=producer), None)
    return producer


def _upstream(topology: Topology, first: Sequence[str]) -> set[str]:
    stages = {stage.name: stage for stage in topology.dataflow.stages}

    def read(name: str) -> Iterator[str]:
        yield from topology.logical_region_of(name).stages
        yield from (exchange.stage for exchange in stages[name].exchanges.values() if exchange.is_boundary)

    return set(reachable(first, read))


def _unfit(run: Run, why: str, error: Misconfigured | None) -> Misconfigured:
    said = "" if error is None else f" ({error})"
    return Misconfigured.of("trials.declaration_differs", run_id=run.id, why=why, said=said)


# The code


def _recorded_code(session: Session, row: RunRow, topology: Topology, stage: str) -> tuple[str, str]:
    """Return fingerprint and path of the archive that has computed a stage's task, or is pinned to compute it."""
    region = topology.logical_region_of(stage).name
    known = generations_of(session, row.id, {region})
    done = [each for each in known if each.is_current] or known
    fingerprint = done[-1].generation.code.archive if done else row.archive
    found = None if fingerprint is None else archive_row(session, row.dataflow, fingerprint)
    if fingerprint is None or found is None or found.deleting_at is not None:
        raise Misconfigured.of("trials.code_not_stored", stage=stage, row_id=row.id)
    return fingerprint, found.path


def _read_archive(services: Services, recorded: tuple[str, str]) -> Archive:
    fingerprint, path = recorded
    try:
        return archive_of(services.store.read(path), fingerprint)
    except (NotFound, ValueError) as error:
        raise Misconfigured.of("trials.code_damaged", path=path, error=error) from error


# The jobs


@dataclass(slots=True)
class _Described:
    """The description of a trial from one state of its run, in which all that is read is leased."""

    services: Services
    declared: Declared
    scratch: Store
    run: Run
    pinned: Topology
    state: RunState
    regions: Sequence[RegionId]
    notes: dict[str, None] = field(default_factory=dict)
    splits: dict[str, list[Any]] = field(default_factory=dict)

    def trial(self, read: Sequence[PartitionId], recorded: tuple[str, str] | None, shown: int) -> Trial:
        """Return the trial; `read` is all that it reads, `recorded` the archive of its code (None: the newest)."""
        probed = probe_partitions(self.services, self.services.store_id(), self.state, read)
        if probed.losses:
            raise lost_of(self.services, self.state, probed.losses)
        topology, name = self.run.topology, self.declared.stage.name
        functions = functions_of(topology, topology.logical_region_of(name).name)
        archive = (
            pack(top_level(functions), self.declared.sql)
            if recorded is None
            else _read_archive(self.services, recorded)
        )
        code = stored_code(self.scratch, self.run.dataflow.name, archive, functions)
        stage = topology.dataflow.stage(name)
        trimming = Trimming(
            flow=topology.dataflow,
            stage=stage,
            layouts={each: topology.layouts_of(each) for each in (name, *(state.name for state in stage.states))},
            # A run has digests of one version.
            digest_version=OF_STORED_ROWS if self.pinned.chosen is None else OF_RESULT,
            expectations=self.declared.expectations,
            scratch=self.scratch,
            code=code,
        )
        jobs = tuple(trimming.trimmed(self._job(region, probed.manifests)) for region in self.regions)
        return Trial(
            request=TrialRequest(name, jobs, (), shown),
            dataflow=self.run.dataflow.name,
            run=self.run.id,
            code=f"{short(code.version)}, {'newest' if recorded is None else 'as it was'}",
            interval=jobs[0].interval,
            recorded=self._recorded(name),
            notes=tuple(self.notes),
        )

    def _job(self, region: RegionId, manifests: Mapping[PartitionId, Manifest]) -> RegionJob:
        attempt = Attempt(
            id=new_attempt(),
            run=self.run.id,
            region=region,
            try_number=1,
            lineage=self.run.lineage,
            session_id="",
            session_url="",
            code=CodeToRun(version="", archive="", path=""),
        )
        registered = Registered(attempt, self.run, self.run.topology, Origin.FIRST, ())
        self.notes |= dict.fromkeys(check_states(registered, self.state, manifests))
        states = assigned_states(self.services, registered, self.state, manifests)
        return region_job(self.services, registered, self.state, manifests, states, self._splits)

    def _splits(self, services: Services, run: Run, stage: Stage, _attempt: str) -> list[Any]:
        """Return the splits that the run has recorded, else those of now, which are recorded nowhere."""
        if stage.name not in self.splits:
            with services.ledger.transaction() as session:
                known = splits_of(session, run.id, stage.name)
            if known is not None and len(known) != stage.parallelism:
                known = None
            if known is None:
                self.notes[f"the splits of {stage.name} are resolved now: the run has recorded none that fit"] = None
                context = with_previous(services, run, stage, resolve_context(run, stage, services))
                known = resolve(stage, context)
            self.splits[stage.name] = known
        return self.splits[stage.name]

    def _recorded(self, stage: str) -> dict[int, str]:
        """Return the digests of the stage's current results, by subtask: equal in all layouts."""
        return {
            each.subtask: result.digest
            for each, result in self.state.results.items()
            if each.is_of_own_run and each.stage == stage
        }
