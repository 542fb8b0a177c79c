"""Compare the tables of states with the checkpoints that they have the rows of.

Invariant: a table is derived. Where its rows are others, it is written again from the checkpoints in the transaction in
which they were compared; readers see the one or the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from weir.coordination.services import Services
from weir.dataflow.state import State
from weir.dataflow.targets import Target
from weir.errors import WeirError
from weir.integrity.archives import due_this_hour
from weir.integrity.records import Inconsistency
from weir.ledger.runs import dataflow_of, epoch_of_run, unexpired_runs
from weir.state_tables.following import compare_table, tables
from weir.topology.ids import Epoch, RunId

_WRITTEN = "All of its checkpoints were written again"
_LATER = "It has rows of a checkpoint that is being corrected: verify again when that run is closed"
_UNKNOWN = "Nothing is known of its rows: verify again"


def table_inconsistencies(services: Services, runs: Collection[str]) -> tuple[Inconsistency, ...]:
    """Compare the tables of states with the checkpoints of some runs, and write those again that differ."""
    found: dict[str, dict[Epoch, RunId]] = {}
    for run in runs:
        found.setdefault(dataflow_of(run), {})[epoch_of_run(run)] = RunId(run)
    return tuple(
        each
        for dataflow, epochs in sorted(found.items())
        for each in _compared(services, dataflow, tables(services, dataflow), epochs)
    )


def scrubbed_tables(services: Services, dataflow: str, share: float, now: datetime) -> tuple[Inconsistency, ...]:
    """Compare this hour's share of the tables of a dataflow's states, as `table_inconsistencies` does."""
    due = due_this_hour(tables(services, dataflow), share, now)
    if not due:
        return ()
    with services.ledger.transaction() as session:
        epochs = {epoch_of_run(each): each for each in unexpired_runs(session, dataflow)}
    return tuple(_compared(services, dataflow, due, epochs))


def _compared(
    services: Services, dataflow: str, wanted: Iterable[tuple[State, Target]], epochs: Mapping[Epoch, RunId]
) -> Iterator[Inconsistency]:
    for state, table in wanted:
        name = f"table {table.options['table']} of state {state.name}"
        try:
            differing, is_written = compare_table(services, dataflow, state, table, epochs.keys())
        except WeirError as error:
            detail = f"its rows could not be compared: {type(error).__name__}: {error}"
            yield Inconsistency(max(epochs.values()), name, detail, _UNKNOWN)
            continue
        for at, number in differing.items():
            detail = f"{number} key(s) had other rows than checkpoint {at.checkpoint} of {at.epoch}"
            yield Inconsistency(epochs[at.epoch], name, detail, _WRITTEN if is_written else _LATER)
