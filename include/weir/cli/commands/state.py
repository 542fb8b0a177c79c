"""`weir state`: queries keyed state at the end of an epoch. Invariant: only committed state is read."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.documents import AsJson, Listing, print_data, print_document, shown
from weir.cli.tables import key as key_column
from weir.cli.tables import print_line, text, value
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.extras import needed_for
from weir.views.states import keyed_state_views, row_fields, where_of

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.reading.opened_state import OpenedState


state_app = typer.Typer(help="Query the keyed state of dataflows, at the end of any retained epoch.")

SHOWN = 20
"""The default number of rows on a terminal."""

_STALE = " (stale: true, newer state is being computed)"
"""What a headline says of the newest epoch that is whole while the newest of all cannot be read."""

DataflowName = Annotated[str, typer.Argument(metavar="DATAFLOW", help="A dataflow.", show_default=False)]
StateName = Annotated[str, typer.Argument(metavar="STATE", help="The name of one of its states.", show_default=False)]
Epoch = Annotated[
    str | None,
    typer.Option(
        help="The run at whose end to read: DATAFLOW@EPOCH, Airflow's run id, an epoch, a day. Default: newest."
    ),
]

Snapshot = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Read this retained checkpoint or savepoint: its number, a savepoint's name or folder.",
    ),
]

Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Fail if the newest epoch cannot be read now, instead of reading an older state."),
]

Limit = Annotated[
    int | None, typer.Option(help=f"The maximum number of rows; 0 for all.  [default: {SHOWN}, all with --json]")
]


@state_app.command(name="list")
def list_(dataflow: DataflowName, as_json: AsJson = False) -> None:
    """List the keyed states that the newest run of a dataflow declares, with their stages, keys and schemas."""
    with opened_services() as services, services.ledger.transaction() as session:
        found = keyed_state_views(session, dataflow)
    _STATES.show(found, as_json=as_json)


_STATES = Listing(
    "states",
    (
        key_column("name"),
        value("stage"),
        value("key", lambda row: ", ".join(row.keys)),
        value("queryable", lambda row: "yes" if row.is_queryable else ""),
        value("table", lambda row: row.table or ""),
        text("schema"),
    ),
    "No stage of it keeps a keyed state.",
)


@state_app.command()
def get(
    dataflow: DataflowName,
    state: StateName,
    key: Annotated[list[str], typer.Argument(help="The key's columns, in order.", show_default=False)],
    epoch: Epoch = None,
    checkpoint: Snapshot = None,
    fresh: Fresh = False,
    null: Annotated[str | None, typer.Option(help="The text that means null in a key, like NULL.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the row of a key; exit code 1 if there is none."""
    with ExitStack() as closing:
        opened = _opened(closing, dataflow, state, Wanted(epoch, checkpoint, fresh))
        row = opened.get(*[None if text == null else text for text in key])
        if as_json:
            print_document(**row_fields(opened, row, datetime.now(UTC)))
        elif row is None:
            print_line(f"{_place(opened)} has no row of {', '.join(key)}")
        else:
            print_line(_headline(opened))
            for name, value in row.items():
                print_line(f"  {name}: {shown(value)}")
    if row is None:
        sys.exit(1)


@state_app.command()
def scan(
    dataflow: DataflowName,
    state: StateName,
    epoch: Epoch = None,
    checkpoint: Snapshot = None,
    fresh: Fresh = False,
    columns: Annotated[str | None, typer.Option(help="Only these columns, like tailnum,flights.")] = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of a state, in no particular order."""
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    with ExitStack() as closing:
        opened = _opened(closing, dataflow, state, Wanted(epoch, checkpoint, fresh))
        most = _most(limit, as_json=as_json)
        rows: list[pa.Table] = []
        for table in opened.tables(wanted):
            left = None if most is None else most - sum(each.num_rows for each in rows)
            rows.append(table.slice(0, left))
            if left is not None and table.num_rows >= left:
                break
        total = opened.rows if opened.is_counted else None
        _print_report(rows, _headline(opened), where_of(opened), total, opened.keys, as_json=as_json)


@state_app.command()
def sql(
    dataflow: DataflowName,
    query: Annotated[str, typer.Argument(help="Spark SQL; each state is a view.", metavar="QUERY", show_default=False)],
    epoch: Epoch = None,
    checkpoint: Snapshot = None,
    fresh: Fresh = False,
    remote: Annotated[
        str | None,
        typer.Option(help="A Spark Connect server, sc://host:port; default: that of the local stack, or local Spark."),
    ] = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Query the states of a dataflow, all at the end of the same epoch."""
    from weir.cli.programs import answered  # noqa: PLC0415  pyarrow is slow to import
    from weir.formats.programs import StateQuery  # noqa: PLC0415

    with ExitStack() as closing:
        services = closing.enter_context(opened_services())
        opened, is_stale = _named_in(query, closing, services, dataflow, Wanted(epoch, checkpoint, fresh))
        most = _most(limit, as_json=as_json)
        states = {name: state.to_read() for name, state in opened.items()}
        table = answered(StateQuery(query, states, most), remote, os.environ)
        first = next(iter(opened.values()))
        where = {**where_of(first), "state": sorted(opened), "stale": is_stale}
        headline = f"{', '.join(sorted(opened))} at the end of {first.run}{_STALE if is_stale else ''}"
        _print_report([table], headline, where, None, as_json=as_json)


@state_app.command()
def serve(
    tokens: Annotated[Path, typer.Option(help="A file of tokens, one a line, that only its owner can read.")],
    served: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATAFLOW[.STATE]]...", help="What is served; default: what is queryable."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.")] = 8095,
    cache: Annotated[int, typer.Option(help="The most MiB of rows that are kept in memory.")] = 1024,
) -> None:
    """Answer look-ups of rows over HTTP, read only, until it is interrupted."""
    with needed_for("The service", "this command runs"):
        import uvicorn  # noqa: PLC0415  an extra

        from weir.cli.state_server import guarded, read_tokens, served_states  # noqa: PLC0415
        from weir.serving.state_service import StateService  # noqa: PLC0415
    from weir.reading.lookups import RowGroupCache  # noqa: PLC0415  pyarrow is slow to import
    from weir.reading.state_opening import StateReader  # noqa: PLC0415  likewise

    known = read_tokens(tokens)
    with opened_services() as services:
        is_served = served_states(services, served or ())
        with contextlib.closing(StateService(StateReader(services), is_served, RowGroupCache(cache << 20))) as service:
            app = guarded(service, known)
            uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="info", access_log=False)).run()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The epoch or snapshot whose state is asked for; None: the newest, and with `is_fresh` no stale one."""

    epoch: str | None
    checkpoint: str | None
    is_fresh: bool = False


def _opened(closing: ExitStack, dataflow: str, state: str, wanted: Wanted) -> OpenedState:
    return _open(closing.enter_context(opened_services()), closing, dataflow, state, wanted)


def _open(services: Services, closing: ExitStack, dataflow: str, state: str, wanted: Wanted) -> OpenedState:
    from weir.reading.opening import open_results  # noqa: PLC0415  pyarrow is slow to import

    opened = open_results(
        dataflow,
        wanted.epoch,
        state=state,
        checkpoint=wanted.checkpoint,
        fresh=wanted.is_fresh,
        services=services,
    )
    return closing.enter_context(opened)


def _named_in(
    query: str, closing: ExitStack, services: Services, dataflow: str, wanted: Wanted
) -> tuple[dict[str, OpenedState], bool]:
    """Open the states that a query names, at the end of the newest epoch that has all of them; and whether it is stale.

    All are read from the same checkpoint if one of them is.
    """
    known = _keyed_states(services, dataflow)
    words = {word.lower() for word in re.findall(r"\w+", query)}
    names = [name for name in known if name.lower() in words]
    if not names:
        raise Misconfigured.of("cli.query_names_no_state", dataflow=dataflow, known=", ".join(known) or "none")
    found = {name: _open(services, closing, dataflow, name, wanted) for name in names}
    oldest = min(found.values(), key=lambda state: (state.epoch, state.checkpoint is None))
    same = Wanted(None, str(oldest.checkpoint)) if oldest.checkpoint is not None else Wanted(oldest.epoch, None)
    opened = {
        name: state
        if (state.epoch, state.checkpoint) == (oldest.epoch, oldest.checkpoint)
        else _open(services, closing, dataflow, name, same)
        for name, state in found.items()
    }
    return opened, any(state.stale for state in found.values())


def _keyed_states(services: Services, dataflow: str) -> tuple[str, ...]:
    from weir.reading.state_opening import keyed_states  # noqa: PLC0415  pyarrow is slow to import

    with services.ledger.transaction() as session:
        return keyed_states(session, dataflow)


def _most(limit: int | None, *, as_json: bool) -> int | None:
    if limit is None:
        return None if as_json else SHOWN
    if limit < 0:
        raise Misconfigured.of("cli.limit_malformed", limit=limit)
    return limit or None


def _headline(opened: OpenedState) -> str:
    most = "" if opened.is_counted else "at most "
    return f"{_place(opened)}: {most}{opened.rows:,} rows"


def _place(opened: OpenedState) -> str:
    of = "" if opened.checkpoint is None else f", checkpoint {opened.checkpoint}"
    return f"{opened.name} at the end of {opened.run}{of}{_STALE if opened.stale else ''}"


def _print_report(
    tables: list[pa.Table],
    headline: str,
    where: dict[str, Any],
    rows: int | None,
    keys: Collection[str] = (),
    *,
    as_json: bool,
) -> None:
    found = [row for table in tables for row in table.to_pylist()]
    if as_json:
        print_document(**where, rows=found)
        return
    print_line(headline)
    print_data(found, keys)
    if rows is not None and rows > len(found):
        print_line(f"{rows - len(found):,} more; --limit 0 shows all")
