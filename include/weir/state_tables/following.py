"""Has the tables of a dataflow's states follow its retained checkpoints, and compares their rows with these.

Invariant: what a table needs besides is imported only where a state has one.
"""

from __future__ import annotations

from collections.abc import Collection

from weir.coordination.evidence import require_known_checkpoints
from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.dataflow.state import State
from weir.dataflow.state_rules import tables_of
from weir.dataflow.targets import Target
from weir.extras import needed_for
from weir.ledger.runs import newest_pinned, topology_of
from weir.state_tables.versions import At
from weir.topology.ids import Epoch


def follow_checkpoints(services: Services, dataflow: str, settled: Settled) -> None:
    """Bring the tables of a dataflow's states up to date, as the newest run that has begun declares them.

    What fails for one is in `settled`, and keeps no other. Raises LedgerBehind: a ledger that has lost checkpoints
    would take them out of the tables.
    """
    wanted = tables(services, dataflow)
    if wanted:
        require_known_checkpoints(services, dataflow)
    for state, table in wanted:
        where = f"{dataflow}.{state.name}, its table"
        with settled.trying(where), needed_for(f"the table of {state}"):
            from weir.state_tables.followed import follow  # noqa: PLC0415  imports psycopg2

            if said := follow(services, dataflow, state, table):
                settled.done[where] = said


def tables(services: Services, dataflow: str) -> list[tuple[State, Target]]:
    """Return the states of a dataflow that have tables, as the newest run that has begun declares them."""
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
    return [] if pinned is None else tables_of(topology_of(pinned).dataflow.stages)


def compare_table(
    services: Services, dataflow: str, state: State, table: Target, epochs: Collection[Epoch]
) -> tuple[dict[At, int], bool]:
    """Compare a table with the checkpoints of some epochs, as `followed.verify`. Raises Misconfigured and Retryable."""
    with needed_for(f"the table of {state}"):
        from weir.state_tables.followed import verify  # noqa: PLC0415  imports psycopg2

        return verify(services, dataflow, state, table, epochs)
