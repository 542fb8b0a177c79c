"""The list of a dataflow's pages about checks. Invariant: it is plain HTML, and whatever it names is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from weir.ledger.quality_models import QualityCheckRow
from weir.quality.page import PAGES

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
