"""Has the tables of a dataflow's states follow its retained checkpoints.

Invariant: what a table needs besides is imported only where a state has one.
"""

from __future__ import annotations

from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.dataflow.state_rules import tables_of
from weir.extras import needed_for
from weir.ledger.runs import newest_pinned, topology_of


def follow_checkpoints(services: Services, dataflow: str, settled: Settled) -> None:
    """Bring the tables of a dataflow's states up to date, as the newest run that has begun declares them.

    What fails for one is in `settled`, and keeps no other.
    """
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
    for state, table in () if pinned is None else tables_of(topology_of(pinned).dataflow.stages):
        where = f"{dataflow}.{state.name}, its table"
        with settled.trying(where), needed_for(f"the table of {state}"):
            from weir.state_tables.followed import follow  # noqa: PLC0415  imports psycopg2

            if said := follow(services, dataflow, state, table):
                settled.done[where] = said
