"""Pages about checks: who makes them is handed in; here they get into the store, and out of it again.

Invariant: a check is what counts, its page is only told of it. A page that cannot be made hinders nothing, and is tried
again. It is in the store before the ledger names it; of an expired run the ledger forgets it first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from weir.coordinator.quality_index import index_page
from weir.coordinator.services import Services
from weir.errors import Retryable
from weir.ledger.quality_history import note_page, with_page, without_page
from weir.ledger.quality_models import QualityCheckRow
from weir.quality.page import CheckToDocument, index_path, page_path
from weir.results.codec import expectation_results_from_plain

Render = Callable[[Sequence[CheckToDocument]], Iterator[tuple[int, bytes | str]]]
"""Makes pages: of each check its number, and the page, or why there is none."""

BATCH = 200
"""How many pages are made at once; a page takes less than a tenth of a second, the program before the first one 8 s."""

LISTED = 1000
"""How many pages of a dataflow its list names."""


@dataclass(frozen=True, slots=True)
class Made:
    """How many pages were made, where the newest is, and what hindered others."""

    pages: int = 0
    newest: str = ""
    problems: tuple[str, ...] = ()
    is_all: bool = True

    def __str__(self) -> str:
        """One line."""
        more = "" if self.is_all else ", and there are more to make"
        return f"{self.pages} page(s) about checks made{more}" + "".join(f"; {each}" for each in self.problems)


def make_pages(
    services: Services,
    render: Render,
    *,
    runs: Collection[str] | None = None,
    by_attempt: str | None = None,
    most: int = BATCH,
) -> Made:
    """Make pages about the oldest checks that have none: of some runs or of all, or of what an attempt has found bad.

    Raises Retryable, and what `render` raises.
    """
    with services.ledger.transaction() as session:
        rows = {row.id: row for row in without_page(session, most, runs=runs, by_attempt=by_attempt)}
    if not rows:
        return Made()
    problems, made = [], []
    for number, page in render([to_document(row) for row in rows.values()]):
        if isinstance(page, str):
            problems.append(f"check {number}: {page}")
        elif _keep(services, rows[number], page):
            made.append(number)
    for dataflow in sorted({rows[number].dataflow for number in made}):
        list_pages(services, dataflow)
    newest = _path(rows[max(made)]) if made else ""
    return Made(len(made), newest, tuple(problems), is_all=len(rows) < most)


def _keep(services: Services, row: QualityCheckRow, page: bytes) -> bool:
    """Put a page into the store and note it. The run may have expired meanwhile: then it goes again."""
    services.store_id()
    path = _path(row)
    services.store.replace(path, page)
    with services.ledger.transaction(row.dataflow) as session:
        is_known = note_page(session, row.id, path)
    if not is_known:
        services.store.delete(path)
    return is_known


def list_pages(services: Services, dataflow: str) -> None:
    """Write the list of a dataflow's pages. Raises Retryable."""
    with services.ledger.transaction() as session:
        rows = with_page(session, dataflow, LISTED)
    services.store.replace(index_path(dataflow), index_page(dataflow, rows))


def to_document(row: QualityCheckRow) -> CheckToDocument:
    """What a page says of a check."""
    facts = {
        "dataflow": row.dataflow,
        "epoch": row.epoch,
        "partition": f"{row.stage}[{row.subtask}]",
        "attempt": row.attempt,
        "checked by": row.by_attempt if row.by_attempt != row.attempt else "",
        "why": row.why,
        "policy": row.policy,
        "rows": f"{row.rows:,}",
        "digest": row.digest,
        "seconds": f"{row.seconds:.1f}",
        "distrusted": ", ".join(f"{each['stage']}[{each['subtask']}] of {each['attempt']}" for each in row.blamed),
    }
    return CheckToDocument(
        check=row.id,
        suite=row.suite,
        outcome=row.outcome,
        rows=row.rows,
        checked_at=row.checked_at.isoformat(),
        facts=tuple((name, value) for name, value in facts.items() if value),
        results=expectation_results_from_plain(row.results),
    )


def _path(row: QualityCheckRow) -> str:
    return page_path(row.dataflow, row.epoch, row.stage, row.subtask, row.attempt, row.suite, row.id, row.checked_at)


def make_pages_everywhere(services: Services, render: Render) -> str:
    """Make the next batch of pages about checks of all dataflows. Raises Retryable if none could be made."""
    made = make_pages(services, render)
    if made.problems and not made.pages:
        raise Retryable(str(made))
    return str(made) if made.pages else "every check has its page"
