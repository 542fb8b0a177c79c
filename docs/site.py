"""The names of a table's columns in each of its cells, for `site.css`: on a phone a row is a block."""

from __future__ import annotations

import re
from html import escape, unescape
from itertools import cycle
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Mark the cells of all tables of a page, when MkDocs has made it of Markdown."""
    return re.sub(r"(?s)<table>.*?</table>", lambda table: _marked(table[0]), html)


def _marked(table: str) -> str:
    names = [unescape(re.sub("<[^>]+>", "", name)) for name in re.findall(r"(?s)<th\b[^>]*>(.*?)</th>", table)]
    columns = cycle(f'<td data-column="{escape(name)}"' if name else "<td" for name in names)
    return re.sub(r"<td\b", lambda _: next(columns), table)
