"""Plans what would run again in other dataflows if an epoch of a data set changed.

Invariant: planning changes nothing. Each run is decided as `weir plan` decides it: the tasks that have read the epoch
run again, and what they publish changes or not; so what was made of that runs again if it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.stage import dataset_of
from weir.errors import Misconfigured
from weir.execution.run_state import RunState
from weir.ledger.names import as_epoch
from weir.ledger.publications import last_publication
from weir.ledger.reads import readers_of
from weir.ledger.runs import Run, dataflow_of, epoch_of_run, named_run, run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.datasets import computed
from weir.recovery.planning import plan_by_looking
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import SHOWN, WITH_CODE, Plan, Step, StepKind
from weir.recovery.rules.staleness import clears_consumers, clears_later_epochs
from weir.topology.ids import OWN_RUN, RunId, RunRef
from weir.topology.regions import RegionId
from weir.wording import first_few


@dataclass(frozen=True, slots=True)
class DatasetPlans:
    """The plans of the runs that have read an epoch of a data set, that of `run`, or what was made of it.

    What each publishes comes before what was made of that.
    """

    dataset: str
    run: RunId
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """An epoch of a data set that changes, if one of the `producers` does; it is assumed where there are none."""

    run: RunId
    sink: str
    producers: tuple[RegionId, ...] = ()

    @property
    def dataset(self) -> str:
        return f"{dataflow_of(self.run)}.{self.sink}"

    def __str__(self) -> str:
        return f"{self.dataset} of {epoch_of_run(self.run)}"


def plans_if_changed(services: Services, dataset: str, epoch: str) -> DatasetPlans:
    """Plan what would run again in other dataflows if a version of `epoch` of `dataset` had other content.

    Raises Misconfigured for what was not published, and as planning does.
    """
    dataflow, sink = dataset_of(dataset)
    with services.ledger.transaction() as session:
        run = named_run(session, as_epoch(f"{dataflow}@{epoch}")).id
        if last_publication(session, run, sink) is None:
            raise Misconfigured.of("recovery.dataset_not_published", name=dataset, run=run)
    return DatasetPlans(dataset, run, _plans_if(services, [_Change(run, sink)]))


@dataclass(frozen=True, slots=True)
class Downstream:
    """The data sets that clears may change and that others have read, with the plans of what reads them, as above."""

    datasets: tuple[str, ...]
    plans: tuple[Plan, ...]


def plans_downstream(services: Services, plans: Iterable[Plan]) -> Downstream:
    """Plan what would run again in other dataflows if what these plans publish changes. Raises as planning does."""
    with services.ledger.transaction() as session:
        changes = {each: None for plan in plans for run in _runs_of(session, plan) for each in _may_change(run, plan)}
        read = [each for each in changes if readers_of(session, each.run, each.dataset)]
    return Downstream(tuple(sorted({each.dataset for each in read})), _plans_if(services, read))


def _plans_if(services: Services, first: Sequence[_Change]) -> tuple[Plan, ...]:
    """Plan each run that has read what changes, or what was made of that, in the order in which it would run."""
    changes, causes, plans = list(first), dict[RunId, list[_Change]](), dict[RunId, Plan]()
    for change in changes:
        with services.ledger.transaction() as session:
            readers = readers_of(session, change.run, change.dataset)
        for reader in readers:
            causes.setdefault(reader, []).append(change)
            found = _planned(services, reader, causes[reader])
            if found is not None:
                plans[reader] = found[0]
                known = {(each.run, each.sink) for each in changes}
                changes += [each for each in found[1] if (each.run, each.sink) not in known]
    return tuple(plans.values())


def _runs_of(session: Session, plan: Plan) -> Iterator[Run]:
    """Yield the runs of which tasks run again, or may: that of the plan, and others of its dataflow."""
    for each in sorted({step.region.run_id(plan.run) for step in plan.steps if step.kind in WITH_CODE}):
        yield run_by_id(session, each)


def _planned(services: Services, name: RunId, causes: Sequence[_Change]) -> tuple[Plan, list[_Change]] | None:
    """Plan a run that has read what changes, and return what may change of that which it has published.

    Returns None where nothing of it runs again.
    """
    with services.ledger.transaction() as session:
        run = computed(session, name)
        why = {} if run is None else _made_of(run_state(session, run), causes)
    if run is None or not why:
        return None
    failure = Failure(
        failed=None,
        losses={},
        occasion=Occasion.FAILURE,  # nothing is missing: no other loss of the run is asked for
        cause=f"{first_few(causes, SHOWN)} changes",
        cleared=frozenset(why),
    )
    plan, _ = plan_by_looking(services, run, failure, looks=False)
    is_certain = any(not each.producers for each in causes)
    steps = tuple(_step(each, why.get(each.region, ()), is_certain=is_certain) for each in plan.steps)
    plan = replace(plan, steps=steps, held_back=plan.held_back or _why_marked(run))
    return plan, list(_may_change(run, plan))


def _made_of(state: RunState, causes: Iterable[_Change]) -> dict[RegionId, list[_Change]]:
    """Return the regions whose current results were made of what changes; not those that run again or have failed."""
    by_place = {(RunRef(each.run), each.sink): each for each in causes}
    found: dict[RegionId, list[_Change]] = {}
    for result in state.results.values():
        for reads in result.reads if result.partition.is_of_own_run else ():
            of = next((each.partition for each in reads.members), None)
            change = None if of is None else by_place.get((of.run, of.stage))
            known = state.region(state.producer(result.partition))
            if change is None or known.is_running or known.has_failed:
                continue
            if change not in found.setdefault(known.region, []):
                found[known.region].append(change)
    return found


def _step(step: Step, why: Sequence[_Change], *, is_certain: bool) -> Step:
    """Say why a region runs again, and whether that depends on what another dataflow publishes."""
    certain = [each for each in why if not each.producers]
    if certain:
        return replace(step, reason=f"it was made of {certain[0]}, which changes")
    if step.kind is not StepKind.RERUN or (is_certain and not why):
        return step
    if not why:
        return replace(step, kind=StepKind.IF_CHANGED)
    producers = tuple(each.in_run(RunRef(of.run)) for of in why for each in of.producers)
    reason = f"if the digest of {' or '.join(map(str, why))} changes"
    return replace(step, kind=StepKind.IF_CHANGED, reason=reason, depends_on=producers[:SHOWN])


def _why_marked(run: Run) -> str:
    """Return why Weir clears nothing of a run whose inputs from another dataflow have changed; empty where it does."""
    if not clears_consumers(run.topology):
        return "failover is individual: Weir clears nothing by itself"
    return "" if clears_later_epochs(run.topology) else "on_reprocess is mark: what is stale waits until it is needed"


def _may_change(run: Run, plan: Plan) -> Iterator[_Change]:
    steps = [step for step in plan.steps if step.kind in WITH_CODE and step.region.run_id(plan.run) == run.id]
    again = {step.region.in_run(OWN_RUN) for step in steps}
    for sink in run.topology.sinks:
        name = run.topology.logical_region_of(sink).name
        producers = tuple(sorted(each for each in again if each.name == name))
        if producers:
            yield _Change(run.id, sink, producers)
