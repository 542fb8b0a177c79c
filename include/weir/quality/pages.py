"""Pages about checks: who makes them is handed in; here they get into the store, and out of it again.

Invariant: a check is what counts, its page is only told of it. A page that cannot be made hinders nothing, and is tried
again. It is in the store before the ledger names it; of an expired run the ledger forgets it first.

The list of a dataflow's pages about checks. Invariant: it is plain HTML, and whatever it names is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from weir.coordination.services import Services
from weir.errors import Retryable
from weir.formats.codec import expectation_results_from_plain
from weir.formats.paths import PAGES, index_path, page_path
from weir.formats.quality_page import CheckToDocument
from weir.ledger.database.tables import QualityCheckRow
from weir.quality.check_queries import checks_with_page, checks_without_page, record_page

Render = Callable[[Sequence[CheckToDocument]], Iterator[tuple[int, bytes | str]]]
"""Makes pages: of each check its number, and the page, or why there is none."""

BATCH = 200
"""How many pages are made at once; a page takes less than a tenth of a second, the program before the first one 8 s."""

LISTED = 1000
"""How many pages of a dataflow its list names."""


@dataclass(frozen=True, slots=True)
class PagesReport:
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
) -> PagesReport:
    """Make pages about the oldest checks that have none: of some runs or of all, or of what an attempt has found bad.

    Raises Retryable, and what `render` raises.
    """
    with services.ledger.transaction() as session:
        rows = {row.id: row for row in checks_without_page(session, most, runs=runs, by_attempt=by_attempt)}
    if not rows:
        return PagesReport()
    problems, made = [], []
    for number, page in render([to_document(row) for row in rows.values()]):
        if isinstance(page, str):
            problems.append(f"check {number}: {page}")
        elif _keep(services, rows[number], page):
            made.append(number)
    for dataflow in sorted({rows[number].dataflow for number in made}):
        list_pages(services, dataflow)
    newest = _path(rows[max(made)]) if made else ""
    return PagesReport(len(made), newest, tuple(problems), is_all=len(rows) < most)


def _keep(services: Services, row: QualityCheckRow, page: bytes) -> bool:
    """Put a page into the store and note it. The run may have expired meanwhile: then it goes again."""
    services.store_id()
    path = _path(row)
    services.store.replace(path, page)
    with services.ledger.transaction(row.dataflow) as session:
        is_known = record_page(session, row.id, path)
    if not is_known:
        services.store.delete(path)
    return is_known


def list_pages(services: Services, dataflow: str) -> None:
    """Write the list of a dataflow's pages. Raises Retryable."""
    with services.ledger.transaction() as session:
        rows = checks_with_page(session, dataflow, LISTED)
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


STYLE = (
    "body{font-family:system-ui,sans-serif;margin:2rem;color:#212529}table{border-collapse:collapse}"
    "th,td{text-align:left;padding:.3rem .8rem;border-bottom:1px solid #dee2e6;vertical-align:top}"
    ".failed{color:#b02a37;font-weight:bold}.warned{color:#997404;font-weight:bold}.passed{color:#146c43}"
)


def index_page(dataflow: str, rows: Sequence[QualityCheckRow]) -> bytes:
    """A table of checks that have a page, in the order in which they come."""
    folder = f"{PAGES}/{dataflow}/"
    links = {row.id: (row.page or "").removeprefix(folder) for row in rows}
    return html_page(f"Data quality of {dataflow}", checks_table(rows, links))


def checks_table(rows: Iterable[QualityCheckRow], links: dict[int, str]) -> str:
    """Checks as a table; `links` are the addresses of those that have a page."""
    head = "".join(
        f"<th>{each}</th>" for each in ("epoch", "partition", "suite", "outcome", "why", "attempt", "checked at")
    )
    return f"<table><tr>{head}</tr>{''.join(_line(row, links.get(row.id)) for row in rows)}</table>"


def html_page(title: str, body: str) -> bytes:
    """A whole page; `body` is HTML."""
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
