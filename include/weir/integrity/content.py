"""Compare the rows of stored results with the digests that were committed.

Invariant: a result is quarantined only if it was present, and under lease, while its digest was computed. Results that
were computed from it are not valid from that transaction on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.formats.manifest import Manifest, is_chain
from weir.formats.programs import ContentAnswer, ResultToCheck
from weir.integrity.verify import VerifiedResult, VerifyOutcome
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.results import transition
from weir.ledger.runs import Run, dataflow_of, run_by_id
from weir.state.assigned import state_as_of
from weir.state.checkpoint_content import keyed_states
from weir.store.probe import read_manifest
from weir.store.worker_threads import in_parallel


def contents_to_check(services: Services, found: Sequence[VerifiedResult]) -> tuple[ResultToCheck, ...]:
    """Return the digests to compute for results whose bytes are intact, by number in the ledger. Raises Retryable.

    Results of stages that the run's dataflow no longer declares are left out: their digest rule is not known.
    """
    whole = [each for each in found if each.outcome in (VerifyOutcome.WHOLE, VerifyOutcome.BACK)]
    with services.ledger.transaction() as session:
        pinned = {run: session.get_one(RunRow, run).pinned for run in {each.run for each in whole}}
        runs = {run: run_by_id(session, run) for run, pin in pinned.items() if pin is not None}
    known = [each for each in whole if each.run in runs]
    manifests = in_parallel(
        lambda each: read_manifest(services.store, each.folder),
        known,
        services.store.workers,
    )
    to_check = (
        _result_to_check(services, runs[each.run], each, manifest)
        for each, manifest in zip(known, manifests, strict=True)
    )
    return tuple(each for each in to_check if each is not None)


def _result_to_check(services: Services, run: Run, each: VerifiedResult, manifest: Manifest) -> ResultToCheck | None:
    name, store = f"{each.stage}[{each.subtask}] of {each.run}", services.store
    if manifest.state is not None:
        state, _ = keyed_states(run.topology).get(each.stage, (None, ""))
        if state is None or not each.is_current or is_chain(str(manifest.digest)):
            return None  # a chain is not the digest of any rows: only bytes are compared
        files = state_as_of(store, state, run.epoch, manifest.state.files)
        return ResultToCheck(
            number=each.result,
            name=name,
            files=(),
            spark_schema=manifest.spark_schema,
            is_keyed=True,
            expected=str(manifest.digest),
            state=files,
        )
    rules = {stage.name: stage.digest for stage in run.dataflow.stages}
    if each.stage not in rules:
        return None
    return ResultToCheck(
        number=each.result,
        name=name,
        files=tuple(store.spark_url(f"{each.folder}/{file.name}") for file in manifest.files),
        spark_schema=manifest.spark_schema,
        is_keyed=bool(manifest.keys),
        expected=str(manifest.digest),
        rule=rules[each.stage],
    )


def with_contents(
    services: Services,
    found: Sequence[VerifiedResult],
    asked: Iterable[ResultToCheck],
    answers: Iterable[ContentAnswer],
) -> tuple[VerifiedResult, ...]:
    """Quarantine the results whose digest differs from the committed one; return `found` with updated outcomes."""
    expected = {each.number: each.expected for each in asked}
    answered = {each.number: each for each in answers}
    by_dataflow: dict[str, list[VerifiedResult]] = {}
    for each in found:
        by_dataflow.setdefault(dataflow_of(each.run), []).append(each)
    verified = []
    for dataflow, results in by_dataflow.items():
        with services.ledger.transaction(dataflow) as session:
            for each in results:
                answer = answered.get(each.result)
                wanted = expected.get(each.result, "")
                verified.append(each if answer is None else _compared(session, services, each, wanted, answer))
    return tuple(verified)


def _compared(
    session: Session, services: Services, verified: VerifiedResult, expected: str, answer: ContentAnswer
) -> VerifiedResult:
    if answer.digest is None:
        return replace(verified, outcome=VerifyOutcome.UNREADABLE, detail=answer.error)
    if answer.digest == expected:
        return verified
    row = session.get(ResultRow, verified.result)
    if row is None or row.state != PartitionState.FINISHED.value:
        return replace(verified, outcome=VerifyOutcome.GONE)
    detail = f"its bytes are as committed, but the digest of its rows is {answer.digest}, expected {expected}"
    transition(session, row, PartitionState.QUARANTINED, detail, services.now())
    row.verified_at = None
    if row.is_current:
        # The run is open again: results that were computed from it have to be evaluated once more.
        session.get_one(RunRow, row.run).closed_at = None
    loss = Loss(row.run, row.stage, row.subtask, row.layout, row.attempt, Fault.STALE, f"it is quarantined: {detail}")
    return replace(verified, outcome=VerifyOutcome.QUARANTINED, detail=detail, loss=loss)
