"""`weir sinks`, `weir notifications`: what has got to targets and receivers of that which is published, and what not.

Invariant: only `weir sinks rollback` changes anything, and that only in the target.
"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli.default_command import with_default
from weir.cli.documents import AsJson, Listing, OnlyDataflow
from weir.cli.tables import key, number, print_line, size, text, value
from weir.environment import opened_services
from weir.ledger.deliveries import dataflow_of_sink
from weir.views.notifications import receivers_waiting
from weir.views.sinks import sink_versions

_VERSIONS = "versions"

sinks_app = typer.Typer(cls=with_default(_VERSIONS), help="Show what sinks have published into targets.")


@sinks_app.command(_VERSIONS)
def versions(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """List the versions of sinks with a target, the default: what is committed there, what is not yet, and why.

    A version that is pending is published by its pointer already; the closing task or upkeep commits it. One that is
    unpublished is to come: its run is not closed.
    """
    with opened_services() as services, services.ledger.transaction() as session:
        found = sink_versions(session, dataflow)
    _SINKS.show(found, as_json=as_json)


_SINKS = Listing(
    "sinks",
    (
        *(key("epoch"), key("dataflow"), key("sink"), number("version", form=""), key("target"), number("rows")),
        *(size("copied", "copied_bytes"), value("state"), value("delivered", "delivered_at")),
        *(value("since", "problem_since"), text("problem")),
    ),
    "No version has been published for a target, which a sink has by sink(..., to=...).",
)


@sinks_app.command()
def rollback(
    sink: Annotated[str, typer.Argument(help="A sink.", show_default=False)],
    epoch: Annotated[str, typer.Option(help="An epoch or its day, or a run's id.", show_default=False)],
    dataflow: Annotated[str | None, typer.Option(help="The sink's dataflow, if several have such a sink.")] = None,
) -> None:
    """Take the rows of an epoch out of the targets of a sink; its pointer stays.

    A new version gets in again when the run is closed again: clear what was wrong, or weir_close.
    """
    from weir.reading.choosing import run_named  # noqa: PLC0415  pyarrow is slow to import
    from weir.sinks.delivery import rollback as take_out  # noqa: PLC0415  likewise

    with opened_services() as services:
        with services.ledger.transaction() as session:
            name = dataflow_of_sink(session, sink, dataflow)
            chosen = run_named(session, name, epoch).epoch
        taken = take_out(services, name, sink, chosen)
    for each in taken:
        print_line(f"{each.version}: its {each.version.rows} row(s) are no longer in {each.target}")


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
