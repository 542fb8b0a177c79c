"""The receivers of notifications that have not got all of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from weir.ledger.database.columns import taken
from weir.ledger.names import require_dataflow
from weir.ledger.outbox import receiving_dataflows, waiting_receivers


@dataclass(frozen=True, slots=True)
class WaitingReceiver:
    """A receiver with the number of notifications that wait for it, the oldest of them, and why it has not got them."""

    dataflow: str
    receiver: str
    waiting: int
    oldest_at: datetime
    last_told_at: datetime | None
    problem_since: datetime | None
    retry_at: datetime | None
    problem: str | None


def receivers_waiting(session: Session, dataflow: str | None, now: datetime) -> list[WaitingReceiver]:
    """Return the receivers of a dataflow, or of all, that notifications wait for; `now` is the clock of this machine.

    Raises Misconfigured for a dataflow that the ledger does not know.
    """
    if dataflow is not None:
        require_dataflow(session, dataflow)
    return [
        taken(
            WaitingReceiver,
            each,
            dataflow=name,
            receiver=each.receiver.name,
            waiting=each.count,
            oldest_at=each.oldest,
            last_told_at=each.told_at,
        )
        for name in (receiving_dataflows(session) if dataflow is None else [dataflow])
        for each in waiting_receivers(session, name, now)
    ]
