"""Has the tables of a dataflow's states follow its retained checkpoints.

Invariant: what a table needs besides is imported only where a state has one.
"""

from __future__ import annotations

from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.dataflow.state import State, StateKind
from weir.dataflow.targets import Target
from weir.extras import needed_for
from weir.ledger.runs import newest_pinned, topology_of


def follow_checkpoints(services: Services, dataflow: str, settled: Settled) -> None:
    """Bring the tables of a dataflow's states up to date. What fails for one is in `settled`, and keeps no other."""
    for state, table in _declared(services, dataflow):
        where = f"{dataflow}.{state.name}, its table"
        with settled.trying(where), needed_for(f"the table of {state}"):
            from weir.state_tables.followed import follow  # noqa: PLC0415  imports psycopg2

            if said := follow(services, dataflow, state, table):
                settled.done[where] = said


def _declared(services: Services, dataflow: str) -> list[tuple[State, Target]]:
    """Return the states that have tables, as the newest run that has begun declares them."""
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
    stages = () if pinned is None else topology_of(pinned).dataflow.stages
    keyed = [state for stage in stages for state in stage.states if state.kind is StateKind.KEYED]
    return [(state, state.table) for state in keyed if state.table is not None]
