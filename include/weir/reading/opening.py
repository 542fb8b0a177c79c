"""`weir.open`: the results of any run, and the states of any retained epoch, for a notebook or a program.

Invariant 4: a reader gets a lease in the transaction that finds the results.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import overload

from weir.coordination.evidence import require_own_ledger
from weir.coordination.read_leases import ReadLease, claimed, reader
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.reading.availability import manifests_of
from weir.reading.choosing import When, choose
from weir.reading.opened import OpenedResults
from weir.reading.opened_state import OpenedState
from weir.reading.state_opening import StateReader, WantedState, open_wanted_state


@overload
def open_results(
    dataflow: str,
    run: When = None,
    stage: str | None = None,
    *,
    attempt: str | None = None,
    provisional: bool = False,
    services: Services | None = None,
) -> OpenedResults: ...


@overload
def open_results(
    dataflow: str,
    run: When = None,
    *,
    state: str,
    checkpoint: int | str | None = None,
    fresh: bool = False,
    attempt: str | None = None,
    services: Services | None = None,
) -> OpenedState: ...


def open_results(
    dataflow: str,
    run: When = None,
    stage: str | None = None,
    *,
    state: str | None = None,
    checkpoint: int | str | None = None,
    fresh: bool = False,
    attempt: str | None = None,
    provisional: bool = False,
    services: Services | None = None,
) -> OpenedResults | OpenedState:
    """Open the rows of a stage of a run, or a keyed state, for reading, and keep them as long as they are open.

    `run` is DATAFLOW@EPOCH, Airflow's run id, an epoch, a date or a time (UTC) of the run's data interval; None is the
    newest run in which the stage has been made. `stage` is a sink (its newest published version) or any stage that is
    written; None is the dataflow's only sink. `state` names a keyed state instead: that which the run has left, or that
    of a checkpoint or savepoint, given by `checkpoint`: its number, a savepoint's name, or its folder. If none is named
    and the newest epoch's state cannot be read, as while a correction of an earlier epoch cascades, that of the newest
    epoch that is whole is opened, and is `stale`; with `fresh` that is refused. `attempt` opens what one attempt has
    written, also in quarantine: that of its own subtask. With `provisional` the rows are those that a sink with
    delivery="at_least_once" shows before its run is closed, where it shows any: `lacks` says so. Ledger and store are
    those of the environment, or of the local stack, unless `services` are given.

    Raises Misconfigured for what is not known, Unreadable for what was released, lost, or is not valid (it says what
    brings it back), and Retryable where ledger or store do not answer.
    """
    _require_one(run, stage, state, checkpoint, attempt)
    with ExitStack() as closing:
        services = services or closing.enter_context(opened_services())
        if state is not None:
            wanted = WantedState(
                dataflow=dataflow,
                name=state,
                run=run,
                checkpoint=None if checkpoint is None else str(checkpoint),
                attempt=attempt,
                is_fresh=fresh,
            )
            return open_wanted_state(StateReader(services), wanted, closing)
        return open_stage(services, WantedStage(dataflow, run, stage, attempt, provisional=provisional), closing)
    raise AssertionError  # for mypy: an ExitStack may suppress errors, this one does not


@dataclass(frozen=True, slots=True)
class WantedStage:
    """What is to be opened; `version` is that of a sink (None: the newest). The lease names the reader `by`."""

    dataflow: str
    run: When = None
    stage: str | None = None
    attempt: str | None = None
    version: int | None = None
    by: str = "weir.open"
    provisional: bool = False


def open_stage(services: Services, wanted: WantedStage, closing: ExitStack) -> OpenedResults:
    """Open the rows of a stage, which close what `closing` has. Raises Misconfigured, Unreadable, Retryable."""
    dataflow = wanted.dataflow
    require_own_ledger(services, dataflow)
    with services.ledger.transaction(dataflow) as session:
        chosen = choose(
            session, dataflow, wanted.run, wanted.stage, wanted.attempt, wanted.version, provisional=wanted.provisional
        )
        numbers = [row.id for row in chosen.rows]
        claim = claimed(session, services, dataflow, numbers, reader(wanted.by), chosen.states)
    lease = ReadLease(claim)
    closing.callback(lease.close)
    manifests = manifests_of(services, chosen)
    if any(each.state is not None for each in manifests):
        raise Misconfigured.of("reading.stage_is_a_state", stage=chosen.stage)
    return OpenedResults(services.store, chosen, manifests, lease, closing.pop_all())


def _require_one(
    run: When, stage: str | None, state: str | None, checkpoint: int | str | None, attempt: str | None
) -> None:
    if stage is not None and state is not None:
        raise Misconfigured.of("reading.stage_and_state", stage=stage, state=state)
    if checkpoint is not None and (state is None or run is not None):
        raise Misconfigured.of("reading.checkpoint_without_state")
    if checkpoint is not None and attempt is not None:
        raise Misconfigured.of("reading.checkpoint_and_attempt")
