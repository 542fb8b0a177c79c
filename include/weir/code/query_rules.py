"""The text of a query for a database. Invariant: it is one statement, of which nothing follows that is none of it.

A semicolon at the end and comments around it are left out, as psql does: the query becomes a part of a larger one.
"""

from __future__ import annotations

import re
from typing import Final

from weir.errors import Misconfigured

_BLANK: Final = re.compile(r"\s+|--[^\n]*")
_BLANK_OF_MYSQL: Final = re.compile(r"\s+|--[^\n]*|#[^\n]*")
_REST: Final = (
    r'"(?:[^"]|"")*"',
    r"`[^`]*`",
    r"\$(?P<tag>[^\W\d]\w*)?\$.*?\$(?(tag)(?P=tag))\$",
    r"[\w$]+",
    r".",
)
_ESCAPED: Final = r"'(?:[^'\\]|\\.|'')*'"
_TOKEN: Final = re.compile("|".join([rf"[eE]{_ESCAPED}", r"'(?:[^']|'')*'", *_REST]), re.DOTALL)
_TOKEN_OF_MYSQL: Final = re.compile("|".join([_ESCAPED, *_REST]), re.DOTALL)


def single_query(where: str, query: str, *, is_any_dialect: bool = False) -> str:
    """Return a query without comments and semicolons at its ends. Raises Misconfigured for several statements or none.

    Texts, quoted names, comments and dollar quotes are PostgreSQL's; `is_any_dialect` takes those of MySQL, too.
    """
    found = _first_statement(query, _BLANK, _TOKEN)
    if found is None and is_any_dialect:
        found = _first_statement(query, _BLANK_OF_MYSQL, _TOKEN_OF_MYSQL)
    if found is None:
        raise Misconfigured.of("dataflow.several_statements", where=where)
    if not found:
        raise Misconfigured.of("dataflow.no_statement", where=where)
    return found


def _first_statement(query: str, blank: re.Pattern[str], token: re.Pattern[str]) -> str | None:
    """Return the statement, "" where there is none; None where another one follows."""
    at, start, end, is_over = 0, 0, 0, False
    while at < len(query):
        skipped = blank.match(query, at)
        if skipped:
            at = skipped.end()
        elif query.startswith("/*", at):
            at = _after_comment(query, at)
        elif query[at] == ";":
            at, is_over = at + 1, end > 0
        elif is_over:
            return None
        else:
            found = token.match(query, at)
            start = start if end else at
            at = end = found.end() if found else at + 1
    return query[start:end]


def _after_comment(query: str, at: int) -> int:
    """Return where a comment ends, in which others may be."""
    depth = 0
    for mark in re.finditer(r"/\*|\*/", query[at:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return at + mark.end()
    return len(query)
