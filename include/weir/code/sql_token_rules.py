"""SQL as a row of tokens, as Spark's own lexer divides it.

Invariant: nothing of the text is lost: the pieces of a text, one after the other, are the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from weir.errors import Message

_KINDS: Final = re.compile(
    r"""
    (?P<space>\A\ufeff|\s+|--(?:\\\n|[^\r\n])*)
    |(?P<hint>/\*\+.*?\*/)
    |(?P<comment>/\*)
    |(?P<template>\{\{.*?\}\})
    |(?P<block>\{[%\#].*?[%\#]\})
    |(?P<text>[rR](?:'[^']*'|"[^"]*")|'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*")
    |(?P<name>`(?:``|[^`])*`)
    |(?P<word>\w+)
    |(?P<symbol>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTES: Final = "'\"`"
_COMMENT_ENDS: Final = re.compile(r"/\*(?!\+)|\*/")
"""Within a comment, too, /*+ begins a hint, and no comment."""


class UnclosedError(Exception):
    """A quote or comment that has no end."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL, with the line that it begins in; hints are none of the comments."""

    kind: str
    text: str
    line: int

    @property
    def bare(self) -> str:
        """The text without backticks."""
        return self.text[1:-1].replace("``", "`") if self.kind == "name" else self.text

    @property
    def lower(self) -> str:
        """The text as SQL compares it: without backticks, in lower case."""
        return self.bare.lower()

    @property
    def is_name(self) -> bool:
        """Report whether it may name a table."""
        return self.kind == "name" or (self.kind == "word" and not self.text.isdigit())


def pieces(text: str) -> Iterator[Token]:
    """Yield all of a text, piece by piece. Raises UnclosedError."""
    line, at = 1, 0
    while match := _KINDS.match(text, at):
        if match.lastgroup == "symbol" and match[0] in _QUOTES:
            raise UnclosedError(Message("code.quote_not_closed", line=line, quote=match[0]))
        end = _end_of_comment(text, at, line) if match.lastgroup == "comment" else match.end()
        yield Token(str(match.lastgroup), text[at:end], line)
        line += text.count("\n", at, end)
        at = end


def tokens(text: str) -> Iterator[Token]:
    """Yield the pieces of a text that are neither comments nor white space. Raises UnclosedError."""
    return (piece for piece in pieces(text) if piece.kind not in ("space", "comment"))


def _end_of_comment(text: str, at: int, line: int) -> int:
    depth = 0
    for mark in _COMMENT_ENDS.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise UnclosedError(Message("code.comment_not_closed", line=line))
