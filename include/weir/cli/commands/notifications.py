"""`weir notifications`: lists the receivers that have not got all notifications. Invariant: it tells none of them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.tables import cell, key, number, print_rows, text, value
from weir.environment import opened_services

if TYPE_CHECKING:
    from weir.ledger.outbox import Waiting

VERSION = 1

_COLUMNS = (
    *(key("dataflow"), key("receiver"), number("waiting"), value("oldest"), value("last told"), value("since")),
    *(value("next try"), text("problem")),
)


def notifications(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """List the receivers of notifications that have not got all of them: how many wait, since when, and why.

    Closing tasks and upkeep deliver notifications; this command delivers none.
    """
    from weir.ledger.names import require_dataflow  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.ledger.outbox import receiving_dataflows, waiting_receivers  # noqa: PLC0415  likewise

    with opened_services() as services, services.ledger.transaction() as session:
        if dataflow is not None:
            require_dataflow(session, dataflow)
        names = receiving_dataflows(session) if dataflow is None else [dataflow]
        found = [_described(name, each) for name in names for each in waiting_receivers(session, name, services.now())]
    if as_json:
        print(json.dumps({"version": VERSION, "receivers": found}, default=datetime.isoformat))
        return
    if not found:
        Console().print("No notification waits: all receivers have got what they are told.")
        return
    print_rows(_COLUMNS, (tuple(map(cell, each.values())) for each in found))


def _described(dataflow: str, waiting: Waiting) -> dict[str, Any]:
    return {
        "dataflow": dataflow,
        "receiver": waiting.receiver.name,
        "waiting": waiting.count,
        "oldest_at": waiting.oldest,
        "last_told_at": waiting.told_at,
        "problem_since": waiting.problem_since,
        "retry_at": waiting.retry_at,
        "problem": waiting.problem,
    }
