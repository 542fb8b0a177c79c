"""Pages about checks: render them, write them to the store, and list the pages of a dataflow.

Invariant: a page only shows a check; one that cannot be rendered fails nothing, keeps no other from being made, and is
tried again. A page is in the store before the ledger names it; of an expired run the ledger forgets it first. The list
is plain HTML, and all values in it are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from html import escape
from itertools import islice

from weir.coordination.services import Services
from weir.formats.codec import expectation_results_from_plain
from weir.formats.paths import PAGES, index_path, page_path
from weir.formats.quality_page import CheckToDocument
from weir.ledger.database.tables import QualityCheckRow
from weir.ledger.housekeeping import has_failed_at, note_failed
from weir.quality.check_queries import checks_with_page, checks_without_page, record_page

Render = Callable[[Sequence[CheckToDocument]], Iterator[tuple[int, bytes | str]]]
"""Renders pages; yields the number of each check with its page, or the error text."""

BATCH = 200
"""How many pages are rendered at once; a page takes less than 0.1 s, the start of the program 8 s."""

LISTED = 1000
"""The largest number of pages in the list of a dataflow."""

STYLE = (
    "body{font-family:system-ui,sans-serif;margin:2rem;color:#212529}table{border-collapse:collapse}"
    "th,td{text-align:left;padding:.3rem .8rem;border-bottom:1px solid #dee2e6;vertical-align:top}"
    ".failed{color:#b02a37;font-weight:bold}.warned{color:#997404;font-weight:bold}.passed{color:#146c43}"
)


SKIPPED = 5
"""How many batches in which no page could be rendered upkeep passes over, to make older pages."""

_JOB = "pages"

_AGAIN_AFTER = timedelta(days=1)
"""When upkeep tries again to render pages of which it could render none, unless there is a newer check."""

_SHOWN = 5
"""How many errors a line for the log shows."""


@dataclass(frozen=True, slots=True)
class PagesReport:
    """The number of pages that were made, the path of the newest, and the errors of others.

    `before` is the lowest number of the checks that were tried, None where there is none that is older.
    """

    pages: int = 0
    newest: str = ""
    problems: tuple[str, ...] = ()
    before: int | None = None

    def __str__(self) -> str:
        """One line."""
        more = "" if self.before is None else ", and there are more to make"
        hidden = len(self.problems) - _SHOWN
        problems = [*self.problems[:_SHOWN], *([f"and {hidden} more that cannot be rendered"] if hidden > 0 else [])]
        return f"{self.pages} page(s) about checks made{more}" + "".join(f"; {each}" for each in problems)

    def and_then(self, later: PagesReport) -> PagesReport:
        """Return the report of this batch and of the next, older one."""
        newest = self.newest or later.newest
        return PagesReport(self.pages + later.pages, newest, (*self.problems, *later.problems), later.before)


def make_pages_everywhere(services: Services, render: Render, most: int = BATCH) -> str:
    """Make the next batch of pages about checks of all dataflows; return a line for the log. Raises Retryable.

    Nothing is rendered while no check has come since none of the missing pages could be rendered, for a day.
    """
    with services.ledger.transaction() as session:
        newest = next(iter(checks_without_page(session, 1)), None)
        if newest is not None and has_failed_at(session, _JOB, str(newest.id), _AGAIN_AFTER, services.now()):
            return (
                f"the pages about check {newest.id} and older ones cannot be rendered: they are tried with the next "
                "check, or after a day. `weir quality docs` tries them now, and says why"
            )
    made = PagesReport()
    for each in islice(_batches(services, render, None, most), 1 + SKIPPED):
        made = made.and_then(each)
        if made.pages:
            break
    if newest is not None and made.problems and not made.pages:
        with services.ledger.transaction(newest.dataflow) as session:
            note_failed(session, _JOB, str(newest.id), services.now())
    return str(made) if made.pages or made.problems else "every check has its page"


def make_all_pages(
    services: Services, render: Render, runs: Collection[str] | None = None, most: int = BATCH
) -> PagesReport:
    """Try once to make each missing page, of some runs or of all, `most` in a batch. Raises Retryable."""
    return reduce(PagesReport.and_then, _batches(services, render, runs, most))


def _batches(services: Services, render: Render, runs: Collection[str] | None, most: int) -> Iterator[PagesReport]:
    """Make pages batch by batch, those about the newest checks first."""
    made = make_pages(services, render, runs=runs, most=most)
    yield made
    while made.before is not None:
        made = make_pages(services, render, runs=runs, before=made.before, most=most)
        yield made


def make_pages(
    services: Services,
    render: Render,
    *,
    runs: Collection[str] | None = None,
    by_attempt: str | None = None,
    before: int | None = None,
    most: int = BATCH,
) -> PagesReport:
    """Make pages about the newest checks that have none: of some runs, of all, or those that failed in an attempt.

    `before` limits them to those with lower numbers. Raises Retryable, and the errors of `render`.
    """
    with services.ledger.transaction() as session:
        found = checks_without_page(session, most, before=before, runs=runs, by_attempt=by_attempt)
        rows = {row.id: row for row in found}
    if not rows:
        return PagesReport()
    problems, made = [], []
    for number, page in render([to_document(row) for row in rows.values()]):
        if isinstance(page, str):
            problems.append(f"check {number}: {page}")
        elif _stored(services, rows[number], page):
            made.append(number)
    for dataflow in sorted({rows[number].dataflow for number in made}):
        list_pages(services, dataflow)
    newest = _path(rows[max(made)]) if made else ""
    return PagesReport(len(made), newest, tuple(problems), before=min(rows) if len(rows) == most else None)


def _stored(services: Services, row: QualityCheckRow, page: bytes) -> bool:
    """Write a page to the store and record it; delete it again if the run has expired meanwhile."""
    services.store_id()
    path = _path(row)
    services.store.replace(path, page)
    with services.ledger.transaction(row.dataflow) as session:
        is_known = record_page(session, row.id, path)
    if not is_known:
        services.store.delete(path)
    return is_known


def _path(row: QualityCheckRow) -> str:
    return page_path(row.dataflow, row.epoch, row.stage, row.subtask, row.attempt, row.suite, row.id, row.checked_at)


def to_document(row: QualityCheckRow) -> CheckToDocument:
    """Return the content of the page about a check."""
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
        "suspected": ", ".join(f"{each['stage']}[{each['subtask']}] of {each['attempt']}" for each in row.blamed),
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


def list_pages(services: Services, dataflow: str) -> None:
    """Write the list of a dataflow's pages to the store. Raises Retryable."""
    with services.ledger.transaction() as session:
        rows = checks_with_page(session, dataflow, LISTED)
    services.store.replace(index_path(dataflow), index_page(dataflow, rows))


def index_page(dataflow: str, rows: Sequence[QualityCheckRow]) -> bytes:
    """Return the list of checks with a page, in the given order."""
    folder = f"{PAGES}/{dataflow}/"
    links = {row.id: (row.page or "").removeprefix(folder) for row in rows}
    return html_page(f"Data quality of {dataflow}", checks_table(rows, links))


def checks_table(rows: Iterable[QualityCheckRow], links: dict[int, str]) -> str:
    """Return checks as an HTML table; `links` are the addresses of their pages."""
    head = "".join(
        f"<th>{each}</th>" for each in ("epoch", "partition", "suite", "outcome", "why", "attempt", "checked at")
    )
    return f"<table><tr>{head}</tr>{''.join(_line(row, links.get(row.id)) for row in rows)}</table>"


def html_page(title: str, body: str) -> bytes:
    """Return a whole page; `body` is HTML."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!DOCTYPE html><html><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>\n".encode()


def _line(row: QualityCheckRow, link: str | None) -> str:
    suite = escape(row.suite) if not link else f'<a href="{escape(link, quote=True)}">{escape(row.suite)}</a>'
    cells = (
        escape(row.epoch),
        escape(f"{row.stage}[{row.subtask}]"),
        suite,
        f'<span class="{escape(row.outcome, quote=True)}">{escape(row.outcome)}</span>',
        escape(row.why),
        escape(row.attempt),
        f"{row.checked_at:%Y-%m-%d %H:%M:%S} UTC",
    )
    return "<tr>" + "".join(f"<td>{each}</td>" for each in cells) + "</tr>"
