"""`weir sinks`: lists the versions that sinks have published into targets, and takes one out again.

Invariant: only `rollback` changes anything, and that only in the target.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.default_command import with_default
from weir.cli.tables import cell, key, number, print_line, print_rows, text, value
from weir.environment import opened_services
from weir.units import format_size

if TYPE_CHECKING:
    from weir.sinks.unpublished import Unpublished

VERSION = 1
_VERSIONS = "versions"

_COLUMNS = (
    *(key("epoch"), key("dataflow"), key("sink"), number("version"), key("target"), number("rows"), number("copied")),
    *(value("state"), value("delivered"), value("since"), text("problem")),
)


sinks_app = typer.Typer(cls=with_default(_VERSIONS), help="Show what sinks have published into targets.")


@sinks_app.command(_VERSIONS)
def versions(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """List the versions of sinks with a target, the default: what is committed there, what is not yet, and why.

    A version that is pending is published by its pointer already; the closing task or upkeep commits it. One that is
    unpublished is to come: its run is not closed.
    """
    from weir.ledger.deliveries import every_delivery  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.sinks.unpublished import unpublished  # noqa: PLC0415

    with opened_services() as services, services.ledger.transaction() as session:
        found = [_described(row) for row in every_delivery(session, dataflow)]
        found += [_to_come(each) for each in unpublished(session, dataflow)]
    found.sort(key=lambda each: (each["dataflow"], each["epoch"], each["sink"]))  # stable: what is to come is last
    if as_json:
        print(json.dumps({"version": VERSION, "sinks": found}, default=datetime.isoformat))
        return
    if not found:
        Console().print("No version has been published for a target, which a sink has by sink(..., to=...).")
        return
    print_rows(_COLUMNS, (tuple(_cell(name, value) for name, value in each.items()) for each in found))


def _cell(name: str, value: Any) -> str:
    return format_size(value) if name == "copied_bytes" and value is not None else cell(value)


@sinks_app.command()
def rollback(
    sink: Annotated[str, typer.Argument(help="A sink.", show_default=False)],
    epoch: Annotated[str, typer.Option(help="An epoch or its day, or a run's id.", show_default=False)],
    dataflow: Annotated[str | None, typer.Option(help="The sink's dataflow, if several have such a sink.")] = None,
) -> None:
    """Take the rows of an epoch out of the targets of a sink; its pointer stays.

    A new version gets in again when the run is closed again: clear what was wrong, or weir_close.
    """
    from weir.ledger.deliveries import dataflow_of_sink  # noqa: PLC0415
    from weir.reading.choosing import run_named  # noqa: PLC0415
    from weir.sinks.delivery import rollback as take_out  # noqa: PLC0415

    with opened_services() as services:
        with services.ledger.transaction() as session:
            name = dataflow_of_sink(session, sink, dataflow)
            chosen = run_named(session, name, epoch).epoch
        taken = take_out(services, name, sink, chosen)
    for each in taken:
        print_line(f"{each.version}: its {each.version.rows} row(s) are no longer in {each.target}")


def _described(row: Any) -> dict[str, Any]:
    from weir.sinks.protocol import Delivery  # noqa: PLC0415

    delivery = Delivery.from_json(row.delivery)
    return {
        "epoch": delivery.version.epoch,
        "dataflow": delivery.version.dataflow,
        "sink": row.sink,
        "version": row.version,
        "target": str(delivery.target),
        "rows": delivery.version.rows,
        "copied_bytes": row.copied_bytes,
        "state": row.outcome or "pending",
        "delivered_at": row.delivered_at,
        "problem_since": row.problem_since,
        "problem": row.problem,
    }


def _to_come(found: Unpublished) -> dict[str, Any]:
    return {
        "epoch": found.epoch,
        "dataflow": found.dataflow,
        "sink": found.sink,
        "version": None,
        "target": str(found.target),
        "rows": None,
        "copied_bytes": None,
        "state": "unpublished",
        "delivered_at": None,
        "problem_since": found.since,
        "problem": found.reason,
    }
