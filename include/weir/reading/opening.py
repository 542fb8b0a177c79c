"""`weir.open`: the results of any run, for a notebook or a program.

Invariant 4: what is given to a reader is claimed in the transaction that answers that it is there.
"""

from __future__ import annotations

from contextlib import ExitStack

from weir.cli.services import opened_services
from weir.coordinator.reading import ReadLease, claimed, reader
from weir.coordinator.services import Services
from weir.errors import Loss
from weir.ledger.models import ResultRow
from weir.reading.availability import Chosen, Unreadable, advice
from weir.reading.choosing import When, choose
from weir.reading.opened import OpenedResults
from weir.results.manifest import Manifest
from weir.store.probe import PartitionRef, probe


def open_results(
    dataflow: str, run: When = None, stage: str | None = None, *, services: Services | None = None
) -> OpenedResults:
    """Open the rows of a stage of a run for reading, and keep them as long as they are open.

    `run` is DATAFLOW@EPOCH, Airflow's run id, an epoch, a date or a time (UTC) of the run's data interval; None is the
    newest run in which the stage has been made. `stage` is a sink (its newest published version) or any stage that is
    written; None is the dataflow's only sink. Ledger and store are those of the environment, or of the local stack,
    unless `services` are given.

    Raises Misconfigured for what is not known, Unreadable for what was released, lost, or is not valid (it says what
    brings it back), and Retryable where ledger or store do not answer.
    """
    with ExitStack() as closing:
        services = services or closing.enter_context(opened_services())
        with services.ledger.transaction(dataflow) as session:
            chosen = choose(session, dataflow, run, stage)
            claim = claimed(session, services, dataflow, [row.id for row in chosen.rows], reader("weir.open"))
        lease = ReadLease(claim)
        closing.callback(lease.close)
        manifests = _manifests(services, chosen)
        return OpenedResults(services.store, chosen, manifests, lease, closing.pop_all())
    raise AssertionError  # for mypy: an ExitStack may suppress errors, this one does not


def _manifests(services: Services, chosen: Chosen) -> list[Manifest]:
    """Look whether all is there, with its sizes, indexes and footers."""
    references = [_reference(row) for row in chosen.rows]
    answers = probe(services.store, services.store_id(), references)
    losses = [found for found in answers.values() if isinstance(found, Loss)]
    if losses:
        raise Unreadable(losses, advice(chosen.run, chosen.rows))
    return [found for ref in references if isinstance(found := answers[ref], Manifest)]


def _reference(row: ResultRow) -> PartitionRef:
    return PartitionRef(row.run, row.stage, row.subtask, row.layout, row.attempt, row.folder, row.manifest_sha256)
