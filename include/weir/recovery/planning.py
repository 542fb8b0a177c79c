"""Plans in rounds: decides over the ledger, probes the results that the decision needs, decides again.

Invariant 5: a failure and `weir plan` decide by the same function over the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from weir.code.generation_rules import Generation
from weir.coordination.airflow import Clearer
from weir.coordination.services import Services
from weir.errors import Conflict, Fault, Loss
from weir.execution.airflow_words import FINAL, MISSING, NOT_IN_AIRFLOW, run_again
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, MissingContext, RegionState, RunState
from weir.ledger.checkpoints import restorable, what_is_kept
from weir.ledger.code import generations_of
from weir.ledger.database.tables import RunRow
from weir.ledger.restores import last_restore
from weir.ledger.results import not_deterministic_regions
from weir.ledger.runs import Run, epoch_of_run, has_later, run_by_id, runs_of
from weir.ledger.snapshot import LoadedRun, readers_in_other_runs, run_state
from weir.recovery.awaiting import states_in_airflow
from weir.recovery.failovers import costs_of
from weir.recovery.inputs import probe_partitions
from weir.recovery.rules.backtrack import Occasion, known_loss
from weir.recovery.rules.consumers import LaterReaders
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import WITH_CODE, ExpiredState, Plan, StepKind
from weir.recovery.rules.staleness import clears_later_epochs
from weir.topology.ids import OWN_RUN, RunRef
from weir.topology.regions import PartitionId, RegionId

_STAYS = "What it had is valid, and stays: to keep it, mark this task a success in Airflow, and clear weir_close"

ROUNDS = 20
"""How often a run may change during planning before it raises Conflict."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, the state of the run that it was taken over, and the losses that hold in it.

    `expired` are the regions that would have to run and that Weir does not clear, since their states are expired;
    `replayed` those of earlier runs that it clears, to compute what was released.
    """

    state: RunState
    failure: Failure
    answer: Plan | NeedsProbe
    expired: frozenset[RegionId] = frozenset()
    replayed: frozenset[RegionId] = frozenset()

    @property
    def unasked(self) -> frozenset[RegionId]:
        """Those about which Airflow was not asked."""
        return (self.expired - self.failure.runs_again.keys()) | (self.replayed - self.failure.exists.keys())


def decide_now(session: Session, run: Run, failure: Failure) -> Decided:
    """Decide over the present ledger, with as many earlier runs as the decision needs."""
    context: set[str] = set()
    known: dict[str, LoadedRun] = {}
    later = _later_readers(session, run)
    while True:
        state = _state(session, run, failure, context, known)
        losses = _still_true(state, failure.losses)
        present = replace(failure, losses=losses, later=later)
        try:
            answer = decide(state, present)
        except MissingContext as missing:
            if missing.run in context:
                raise
            context.add(missing.run)
            continue
        expired, replayed = frozenset[RegionId](), frozenset[RegionId]()
        if isinstance(answer, Plan):
            replayed = frozenset(_replayed(state, answer))
            expired = expired if answer.expired is None else answer.expired.producers
            runs = {run.id, *state.earlier}
            regions = {step.region for step in answer.steps} | ({answer.failed} if answer.failed else set())
            answer = answer.with_costs(costs_of(session, run, regions))
            answer = answer.with_findings(not_deterministic_regions(session, runs, run.id))
            answer = answer.with_code(_code_of(session, run, answer))
            by_person = failure.cleared if failure.occasion is Occasion.QUESTION else ()
            answer = _with_way_out(session, run, state, answer, by_person)
        return Decided(state, present, answer, expired, replayed)


def _replayed(state: RunState, plan: Plan) -> Iterator[RegionId]:
    """Yield the regions of earlier runs that a plan restarts, and of whose states one was released."""
    regions = (each.region for each in plan.of(StepKind.RERUN) if each.region.run in state.earlier)
    for region in (each for each in regions if each.name != CLOSE.name):
        states = state.topology_of(region.run).states
        results = (state.results.get(each) for each in state.outputs(region) if each.stage in states)
        if any(each is not None and each.state is PartitionState.RELEASED for each in results):
            yield region


def _code_of(session: Session, run: Run, plan: Plan) -> dict[RegionId, Generation]:
    """Return the current generation of the code of each region that a plan restarts, or may restart."""
    regions = [step.region for step in plan.steps if step.kind in WITH_CODE]
    found: dict[tuple[RunRef, str], Generation] = {}
    for of in {each.run for each in regions}:
        names = {each.name for each in regions if each.run == of}
        for each in generations_of(session, of or run.id, names):
            if each.is_current:
                found[of, each.region] = each.generation
    return {each: found[each.run, each.name] for each in regions if (each.run, each.name) in found}


def _with_way_out(session: Session, run: Run, state: RunState, plan: Plan, cleared: Collection[RegionId]) -> Plan:
    """Add to a plan that needs an expired state which snapshots there are, whether one helps, and what to do."""
    if plan.expired is None:
        return plan
    said = [plan.impossible]
    restarted = [each for each in (plan.failed, *cleared) if each not in (None, CLOSE)]
    if restarted and all(state.is_done(output) for each in restarted for output in state.outputs(each)):
        said.append(_STAYS)  # before what discards results
    said += [what_is_kept(session, run.dataflow.name), _way_out(session, run, plan.expired)]
    return replace(plan, impossible=". ".join(said), expired=None)


def _way_out(session: Session, run: Run, expired: ExpiredState) -> str:
    """Return what brings an expired state back: the newest snapshot from which it follows, or all epochs again.

    A savepoint of a later epoch has files of its own, and helps where only such a file has to be computed again.
    """
    if expired.is_gone:
        row = session.get_one(RunRow, expired.run)
        return f"{run_again(row.dag_id, row.interval_start)} computes {row.id} again. Then clear this task"
    dataflow, epoch, reader = run.dataflow.name, epoch_of_run(expired.run), epoch_of_run(expired.reader)
    restored = last_restore(session, dataflow, epoch) if expired.is_suspected else None
    failed = restored.number if restored is not None and restored.origin == dataflow else None
    helping = [
        row
        for row in restorable(session, dataflow)
        if (row.epoch <= epoch or (row.is_savepoint and reader <= row.epoch <= run.epoch)) and row.number != failed
    ]
    if helping:
        newest = max(helping, key=lambda row: (row.epoch, row.number))
        back = f"`weir restore {dataflow} {newest.number}` (epoch {newest.epoch}; --dry-run shows what changes)"
        between = [row for row in runs_of(session, dataflow) if newest.epoch < row.epoch <= run.epoch]
        if len(between) > 1:
            return f"{back} brings back what it follows from. Then {_again(between)}"
        return f"{back} brings it back. Then clear in run {run.id} what has failed"
    before = [row for row in runs_of(session, dataflow) if row.epoch <= run.epoch]
    none = f"None is of epoch {epoch} or before, so no restore helps"
    if not before[0].has_dag_run:
        return f"{none}, and {dataflow} itself has begun with a restore: start another fork (docs/savepoints.md)"
    return f"{none}: {_again(before)}, if what their sources read is still there"


def _again(runs: Sequence[RunRow]) -> str:
    first, last = runs[0], runs[-1]
    return (
        f"`weir replay {first.dataflow} --from {first.epoch} --to {last.epoch}` shows what it costs to discard the "
        "results of these runs and to compute them again, oldest first; with --apply it does so"
    )


def with_answers(
    services: Services, store_id: str, run: Run, decided: Decided, airflow: Callable[[], Clearer] | None
) -> Failure:
    """Return the failure with the answers that the decision needs: of the store about results, or of Airflow.

    Airflow, if it can be asked, tells whether a person has cleared producers of expired states, and whether it has
    those that compute released ones again. Raises Retryable where the store or Airflow does not answer, and
    Misconfigured where Airflow refuses to.
    """
    before = decided.failure
    if isinstance(decided.answer, NeedsProbe):
        probed = probe_partitions(services, store_id, decided.state, decided.answer.partitions)
        intact = before.intact | frozenset(probed.manifests)
        return replace(before, losses={**before.losses, **probed.losses}, intact=intact)
    states = {} if airflow is None else states_in_airflow(services, run, decided.unasked, airflow())
    expired, replayed = decided.expired & decided.unasked, decided.replayed & decided.unasked
    return replace(
        before,
        runs_again={**before.runs_again, **{each: states.get(each, MISSING) not in FINAL for each in expired}},
        exists={**before.exists, **{each: states.get(each) not in NOT_IN_AIRFLOW for each in replayed}},
    )


def plan_by_looking(
    services: Services, run: Run, failure: Failure, airflow: Callable[[], Clearer] | None = None, *, looks: bool = True
) -> tuple[Plan, Failure]:
    """Plan without a change, and return the plan with the failure that gives the same plan again.

    Without `looks` the store is not asked: what is finished by the ledger is taken to be there.

    Raises Retryable if the store, Airflow or the ledger does not answer, and Conflict if the run changes in each round.
    """
    store_id = services.store_id() if looks else ""
    for _ in range(ROUNDS):
        with services.ledger.transaction() as session:
            decided = decide_now(session, run, failure)
        if isinstance(decided.answer, Plan) and not decided.unasked:
            return decided.answer, decided.failure
        if isinstance(decided.answer, NeedsProbe) and not looks:
            failure = replace(decided.failure, intact=decided.failure.intact | set(decided.answer.partitions))
            continue
        failure = with_answers(services, store_id, run, decided, airflow)
    raise Conflict.of("recovery.run_keeps_changing", run_id=run.id, rounds=ROUNDS)


def _state(
    session: Session,
    run: Run,
    failure: Failure,
    context: Iterable[str],
    known: dict[str, LoadedRun],
) -> RunState:
    losses = failure.losses
    state = run_state(session, run, include=tuple(context), known=known)
    # An attempt that misses a result that was never computed, or had failed, found its producer finished in Airflow.
    loaded = {OWN_RUN, *state.earlier}
    producers = {partition: state.producer(partition) for partition in losses if partition.run in loaded}
    void = (
        region
        for partition, region in producers.items()
        if state.region(region).has_failed
        or (losses[partition].fault is Fault.NEVER_COMMITTED and not state.region(region).newest_try)
    )
    cleared = (region for region, runs_again in failure.runs_again.items() if runs_again)
    gone = (region for region, exists in failure.exists.items() if not exists)
    return replace(state, void=frozenset(void), cleared=frozenset(cleared), gone=frozenset(gone))


def _still_true(state: RunState, losses: Mapping[PartitionId, Loss]) -> dict[PartitionId, Loss]:
    """Leave out losses that were repaired meanwhile: a loss is that of one attempt."""
    return {
        partition: loss
        for partition, loss in losses.items()
        if known_loss(state, partition) is not None
        or (partition in state.results and state.results[partition].attempt == loss.attempt)
    }


def _later_readers(session: Session, run: Run) -> LaterReaders:
    """Return the regions of later runs whose newest commit has read this run."""
    found: dict[tuple[str, str], tuple[RegionState, ...]] = {}
    states: dict[str, RunState] = {}
    topology = run.topology
    # This run's topology does not have its later readers: a later run may be pinned to another dataflow.
    read_later = {
        (partition.stage, partition.layout)
        for region in (topology.region_ids() if has_later(session, run) else ())
        for partition in topology.outputs(region)
    }
    for stage, layout in read_later:
        readers = []
        later = {(each.run, each.region): None for each in readers_in_other_runs(session, run.id, stage, layout)}
        for of, region in later:
            if of not in states:
                states[of] = run_state(session, run_by_id(session, of, topology))
            if not clears_later_epochs(states[of].topology):
                continue  # it becomes stale, and is not cleared
            readers.append(replace(states[of].region(region), region=region.in_run(RunRef(of))))
        if readers:
            found[stage, layout] = tuple(readers)
    return found
