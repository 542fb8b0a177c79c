"""What a query reads, as far as its text tells: names after FROM and JOIN, after TABLE, and after commas between them.

Invariants: a name that stands where Spark expects a relation is an input of the stage or a query of a WITH that holds
there; any other is told. What runs is decided by Spark's own plan, before a row is read (weir_spark/region/sql.py). The
text is divided into tokens as Spark's own lexer does it, and nothing of it is lost: the pieces of a text, one after the
other, are the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
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


QUERIES: Final = frozenset({"select", "with", "from", "values", "table"})
"""The words that a query begins with."""

_SETS: Final = frozenset({"union", "intersect", "except", "minus"})
_ENDS_OF_FROM: Final = _SETS | frozenset(
    {"select", "where", "group", "having", "order", "sort", "cluster", "distribute", "window", "qualify", "limit"}
)
_END: Final = Token("symbol", "", 0)


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that is neither an input nor a query of the same text; its name is empty if the text has none."""

    token: Token
    name: str


@dataclass(slots=True)
class _Level:
    """What is between parentheses, or all of the text; `queries` are the names of its WITH that hold from here on."""

    is_query: bool
    expects: bool = False
    """Whether a relation is expected next."""
    in_from: bool = False
    """Whether a comma is followed by a relation."""
    in_values: bool = False
    in_with: bool = False
    recursive: bool = False
    defined: str = ""
    """The name of the WITH whose query follows."""
    queries: set[str] = field(default_factory=set)


def unknown_relations(tokens: Sequence[Token], inputs: Collection[str]) -> list[Relation]:
    """Return the relations of a query that are neither inputs nor queries of its WITH, in their order."""
    return list(_Scan(tokens, {name.lower() for name in inputs}).relations())


@dataclass(slots=True)
class _Scan:
    tokens: Sequence[Token]
    inputs: Collection[str]
    at: int = 0
    levels: list[_Level] = field(default_factory=lambda: [_Level(is_query=True)])

    def relations(self) -> Iterator[Relation]:
        """Yield the relations that are not known."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.text == "(":
                self._open()
            elif token.text == ")":
                self._close()
            elif self.level.expects:
                yield from self._relation(token)
            elif self.level.in_with:
                self._name_of_with(token)
            else:
                self._word(token)
            self.at += 1

    @property
    def level(self) -> _Level:
        return self.levels[-1]

    def _token(self, offset: int) -> Token:
        place = self.at + offset
        return self.tokens[place] if 0 <= place < len(self.tokens) else _END

    def _open(self) -> None:
        level = self.level
        first = next((each for each in self.tokens[self.at + 1 :] if each.text != "("), _END)
        is_query = first.lower in QUERIES
        inner = _Level(is_query=is_query, expects=level.expects and not is_query)
        if level.in_with and level.recursive and is_query:
            inner.queries.add(level.defined)
        level.expects = False
        self.levels.append(inner)

    def _close(self) -> None:
        ended = self.levels.pop() if len(self.levels) > 1 else self.level
        level = self.level
        if level.in_with and level.defined and ended.is_query:
            level.queries.add(level.defined)
            level.defined = ""
            level.in_with = self._token(1).text == ","

    def _name_of_with(self, token: Token) -> None:
        """Read a token between the queries of a WITH: WITH [RECURSIVE] name [(columns)] [AS] (query), ..."""
        if token.is_name and not self.level.defined:
            if token.lower == "recursive" and self._token(1).is_name and self._token(1).lower != "as":
                self.level.recursive = True
            else:
                self.level.defined = token.lower

    def _relation(self, token: Token) -> Iterator[Relation]:
        """Read what stands where a relation is expected."""
        level, after = self.level, self._token(1)
        if token.kind == "hint" or token.lower == "lateral" or (token.lower == "table" and after.text == "("):
            return
        level.expects = False
        if token.kind == "word" and token.lower in QUERIES:
            level.in_values = token.lower == "values"
            self._word(token)
        elif token.lower == "identifier" and after.text == "(":
            yield from self._identifier(token)
        elif token.kind == "template":
            yield Relation(token, "")
        elif token.is_name:
            name = self._whole_name()
            if self._token(1).text != "(" and not self._is_known(name):
                yield Relation(token, name)

    def _identifier(self, token: Token) -> Iterator[Relation]:
        """Read IDENTIFIER('name'); any other argument is known to Spark only."""
        text, end = self._token(2), self._token(3)
        name = text.text[1:-1].replace("`", "") if text.kind == "text" and end.text == ")" else ""
        if not self._is_known(name):
            yield Relation(token, name)

    def _whole_name(self) -> str:
        """Return a name with its parts after dots, and go to the last one."""
        parts = [self._token(0).bare]
        while self._token(1).text == "." and self._token(2).is_name:
            self.at += 2
            parts.append(self._token(0).bare)
        return ".".join(parts)

    def _is_known(self, name: str) -> bool:
        lower = name.lower()
        return lower in self.inputs or any(lower in level.queries for level in self.levels)

    def _word(self, token: Token) -> None:
        """Read a token that may be a keyword of a query."""
        level, before = self.level, self._token(-1)
        if level.in_values and (token.lower == "as" or (token.is_name and before.text == ")")):
            level.in_values = False
        if token.text == ",":
            level.expects = level.in_from and not level.in_values
        elif token.text == ">" and before.text == "|":
            level.in_from = False
        elif token.kind == "word" and before.text != "." and before.lower != "as":
            self._keyword(token.lower, before.lower)

    def _keyword(self, word: str, before: str) -> None:
        level, after = self.level, self._token(1)
        if word == "from" and level.is_query and before != "distinct":
            level.in_from = level.expects = True
        elif word == "join" and (after.is_name or after.text == "(" or after.kind == "template"):
            level.expects = True
        elif word == "with" and before in ("", "("):
            level.in_with = True
        elif word == "table" and self._is_read(before, after):
            level.expects = True
        elif word in _ENDS_OF_FROM or (word == "lateral" and after.lower == "view"):
            level.in_from = level.in_values = False

    def _is_read(self, before: str, after: Token) -> bool:
        """Report whether TABLE is followed by a relation, as a query or as the argument of a function."""
        is_argument = before == "(" or (before == "," and not self.level.is_query) or self._is_arrow()
        if after.text == "(":
            return is_argument
        follows_with = before == ")" and bool(self.level.queries)
        return after.is_name and (is_argument or follows_with or before in ("", "all", "distinct", *_SETS))

    def _is_arrow(self) -> bool:
        """Report whether => or |> is before a token."""
        return self._token(-1).text == ">" and self._token(-2).text in ("=", "|")
