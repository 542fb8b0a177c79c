"""Keyed states as they are declared, and the row of a key at the end of an epoch: what `weir state` prints.

Invariant: to look up a key writes nothing, neither into the ledger nor into the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.state import StateKind
from weir.errors import Misconfigured
from weir.ledger.database.tables import RunRow
from weir.ledger.names import require_dataflow
from weir.ledger.runs import topology_of

if TYPE_CHECKING:
    from weir.reading.opened_state import OpenedState


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStateView:
    """A keyed state as the newest run that has begun declares it: its stage, its key columns, its schema in DDL.

    Whoever may read the DAG may look up rows of one that `is_queryable` over HTTP. `table` is the view of its rows in
    PostgreSQL, if it has one.
    """

    name: str
    stage: str
    keys: tuple[str, ...]
    schema: str
    is_queryable: bool
    table: str | None


def keyed_state_views(session: Session, dataflow: str) -> list[KeyedStateView]:
    """Return the keyed states of a dataflow, by name. Raises Misconfigured for one that is not known."""
    require_dataflow(session, dataflow)
    newest = select(RunRow.pinned).where(RunRow.dataflow == dataflow, RunRow.pinned.is_not(None))
    pinned = session.scalar(newest.order_by(RunRow.epoch.desc()).limit(1))
    if pinned is None:
        return []
    found = [
        KeyedStateView(
            name=state.name,
            stage=stage.name,
            keys=state.keys,
            schema=state.schema,
            is_queryable=state.queryable,
            table=None if state.table is None else str(state.table.options["table"]),
        )
        for stage in topology_of(pinned).dataflow.stages
        for state in stage.states
        if state.kind is StateKind.KEYED
    ]
    return sorted(found, key=lambda each: each.name)


def require_queryable(services: Services, dataflow: str, state: str) -> None:
    """Raise Misconfigured for a state that the newest run that has begun does not declare as queryable."""
    with services.ledger.transaction() as session:
        found = keyed_state_views(session, dataflow)
    if not any(each.is_queryable for each in found if each.name == state):
        raise Misconfigured.of("views.state_not_queryable", dataflow=dataflow, state=state)


def row_of_key(
    services: Services, dataflow: str, state: str, key: Sequence[str | None], run: str | None, checkpoint: str | None
) -> dict[str, Any]:
    """Return the fields of the document of a key's row, which is null if there is none.

    `key` are the texts of its columns, in order; the row is that at the end of a run, or in a snapshot, or the newest.
    Raises Misconfigured for what is not known or a key that cannot be one, Unreadable, and Retryable.
    """
    from weir.reading.state_opening import StateReader, WantedState, open_wanted_state  # noqa: PLC0415  pyarrow is slow

    wanted = WantedState(dataflow=dataflow, name=state, run=run, checkpoint=checkpoint)
    with ExitStack() as closing, open_wanted_state(StateReader(services, is_leasing=False), wanted, closing) as opened:
        return row_fields(opened, opened.get(*key), services.now())


def row_fields(opened: OpenedState, row: Mapping[str, Any] | None, looked_at: datetime) -> dict[str, Any]:
    """Return the fields of the document of a key's row; `looked_at` is when it was looked for in the store."""
    return {**where_of(opened), "looked_at": looked_at, "row": row}


def where_of(opened: OpenedState) -> dict[str, Any]:
    """Return the fields of a document that say which state it is about."""
    return {
        "state": opened.name,
        "run": opened.run,
        "epoch": opened.epoch,
        "checkpoint": opened.checkpoint,
        "stale": opened.stale,
    }
