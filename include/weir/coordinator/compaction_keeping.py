"""What is known of compactions, which goes when nobody can need it any more.

Invariant: a compaction is known as long as the result that was compacted counts, and as long as a file that was written
for it is in use: by what is known, its bytes are counted (`weir.ledger.sizes`).
"""

from __future__ import annotations

from collections.abc import Container

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.services import Services
from weir.coordinator.state_files import COUNTING, live_state_files, paths_of
from weir.ledger.models import ResultRow
from weir.ledger.state_models import CompactionRow


def forget_compactions(services: Services, dataflow: str) -> int:
    """Forget what nobody can need any more of the compactions of a dataflow; answers how many. Raises Retryable."""
    with services.ledger.transaction() as session:
        if not _of_released(session, dataflow):
            return 0
    in_use = live_state_files(services, dataflow)
    with services.ledger.transaction(dataflow) as session:
        return forget_unused(session, dataflow, in_use)


def forget_unused(session: Session, dataflow: str, in_use: Container[str]) -> int:
    """The same, of files that were `in_use` a moment ago: what was not by then never will be."""
    gone = [row for row in _of_released(session, dataflow) if not any(path in in_use for path in _written(row))]
    for row in gone:
        session.delete(row)
    return len(gone)


def _of_released(session: Session, dataflow: str) -> list[CompactionRow]:
    """Compactions of results that do not count any more: nobody begins to read them, and none of these counts again."""
    result = (
        (ResultRow.attempt == CompactionRow.of_attempt)
        & (ResultRow.stage == CompactionRow.state)
        & (ResultRow.subtask == CompactionRow.subtask)
        & ResultRow.state.in_(COUNTING)
    )
    query = select(CompactionRow).where(
        CompactionRow.dataflow == dataflow, ~select(ResultRow.id).where(result).exists()
    )
    return list(session.scalars(query))


def _written(row: CompactionRow) -> list[str]:
    """Those of its files that were written for it."""
    return [path for path in paths_of(row) if f"/{row.attempt}/" in path]
