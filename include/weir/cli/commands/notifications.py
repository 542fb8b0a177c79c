"""`weir notifications`: lists the receivers that have not got all notifications. Invariant: it tells none of them."""

from __future__ import annotations

from weir.cli.documents import AsJson, Listing, OnlyDataflow
from weir.cli.tables import key, number, text, value
from weir.environment import opened_services
from weir.views.notifications import receivers_waiting


def notifications(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """List the receivers of notifications that have not got all of them: how many wait, since when, and why.

    Closing tasks and upkeep deliver notifications; this command delivers none.
    """
    with opened_services() as services, services.ledger.transaction() as session:
        found = receivers_waiting(session, dataflow, services.now())
    _RECEIVERS.show(found, as_json=as_json)


_RECEIVERS = Listing(
    "receivers",
    (
        *(key("dataflow"), key("receiver"), number("waiting"), value("oldest", "oldest_at")),
        *(value("last told", "last_told_at"), value("since", "problem_since"), value("next try", "retry_at")),
        text("problem"),
    ),
    "No notification waits: all receivers have got what they are told.",
)
