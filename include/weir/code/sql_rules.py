"""The SQL file of a stage: one query, whose inputs are tables and whose values in {{ ... }} are bound.

Invariant: no value becomes part of the text. A value stands where SQL has an expression, as a named parameter of Spark.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.errors import Misconfigured

SUFFIX: Final = ".sql"

_PATH: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_KINDS: Final = re.compile(
    r"""
    (?P<space>\s+|--(?:\\\n|[^\n])*)
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
_COMMENT_ENDS: Final = re.compile(r"/\*|\*/")
_IN_QUOTES: Final = re.compile(r"\{\{\s*[A-Za-z_].*?\}\}", re.DOTALL)
_VALUE: Final = re.compile(r"ctx\.(epoch|subtask|parallelism|interval\[[01]\]|parameters\.(?P<parameter>\w+))")

_VALUES: Final = "{{ ctx.epoch }}, {{ ctx.interval[0] }} (its start), {{ ctx.interval[1] }} (its end)"
_OF_AIRFLOW: Final = {
    "ds": "to_date({{ ctx.interval[0] }})",
    "ts": "{{ ctx.interval[0] }}",
    "data_interval_start": "{{ ctx.interval[0] }}",
    "logical_date": "{{ ctx.interval[0] }}",
    "data_interval_end": "{{ ctx.interval[1] }}",
}
"""What stands here for a variable of Airflow's templates."""

_QUERIES: Final = frozenset({"select", "with", "from", "values", "table"})
_NO_TABLES: Final = frozenset({"lateral", "table", "values", "identifier", "select"})
"""Words after FROM or JOIN that name no table."""


def is_sql(reference: object) -> bool:
    """Report whether what computes a stage is a SQL file, and not a function ("module:function")."""
    return isinstance(reference, str) and reference.endswith(SUFFIX)


def path_problems(reference: str) -> Iterator[str]:
    """Yield a problem unless a SQL file is named as it can be found."""
    if not _PATH.fullmatch(reference):
        yield (
            f'sql={reference!r}: write the path of a file below the folder of the DAG file, such as "sql/by_zone.sql", '
            "with letters, digits, underscores, dots and hyphens, neither absolute nor with .."
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL, with the line that it begins in; hints are none of the comments."""

    kind: str
    text: str
    line: int

    @property
    def lower(self) -> str:
        """The text as SQL compares it: without backticks, in lower case."""
        return (self.text[1:-1].replace("``", "`") if self.kind == "name" else self.text).lower()

    @property
    def is_name(self) -> bool:
        """Report whether it may name a table."""
        return self.kind in ("word", "name")


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with named parameters in the place of {{ ... }}; `values` maps each parameter to what was written."""

    text: str
    values: Mapping[str, str]

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to bind; `values` are those of `ctx`, as in "ctx.epoch"."""
        return {name: values[written] for name, written in self.values.items()}


def version_of(text: str) -> str:
    """Return a digest of a SQL file in which comments and white space between words do not count."""
    try:
        content = "\0".join(token.text for token in _tokens(text))
    except _Unclosed:
        content = text
    return hashlib.sha256(content.encode()).hexdigest()


def statement_of(text: str) -> Statement:
    """Return the query of a SQL file that has no problems, without a semicolon at its end."""
    values: dict[str, str] = {}
    parts = []
    for piece in _pieces(text):
        if piece.text == ";":
            break  # spaces and comments follow
        parts.append(_parameter(piece, values) if piece.kind == "template" else piece.text)
    return Statement("".join(parts), values)


def _parameter(template: Token, values: dict[str, str]) -> str:
    written = _written(template.text)
    known = list(dict.fromkeys([*values.values(), written]))
    name = f"{re.sub(r'[^a-z0-9]+', '_', written.lower()).strip('_')}_{known.index(written) + 1}"
    values[name] = written
    return f":{name}"


def sql_problems(text: str, inputs: Collection[str], parameters: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the SQL file of a stage that has these inputs, in a dataflow with these parameters."""
    try:
        tokens = list(_tokens(text))
    except _Unclosed as error:
        return [str(error)]
    return [
        *_query_problems(tokens),
        *(problem for token in tokens for problem in _value_problems(token, parameters)),
        *_input_problems(tokens, inputs),
    ]


def require_bindable(name: str, value: object) -> None:
    """Require a value that Spark can bind. Raises Misconfigured."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(each, dict | list) for each in values):
        raise Misconfigured(
            f"{{{{ {name} }}}} holds others: only texts, numbers, truth values and lists of them can be bound"
        )


# Reading


class _Unclosed(Exception):
    """A quote or comment that has no end."""


def _pieces(text: str) -> Iterator[Token]:
    """Yield all of a text, piece by piece."""
    line, at = 1, 0
    while match := _KINDS.match(text, at):
        if match.lastgroup == "symbol" and match[0] in _QUOTES:
            raise _Unclosed(f"line {line}: a quote {match[0]} is opened and not closed")
        end = _end_of_comment(text, at, line) if match.lastgroup == "comment" else match.end()
        yield Token(str(match.lastgroup), text[at:end], line)
        line += text.count("\n", at, end)
        at = end


def _end_of_comment(text: str, at: int, line: int) -> int:
    depth = 0
    for mark in _COMMENT_ENDS.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise _Unclosed(f"line {line}: a comment /* is opened and not closed")


def _tokens(text: str) -> Iterator[Token]:
    return (piece for piece in _pieces(text) if piece.kind not in ("space", "comment"))


def _written(template: str) -> str:
    return template[2:-2].strip()


# Problems


def _query_problems(tokens: Sequence[Token]) -> Iterator[str]:
    found = list(tokens)
    while found and found[-1].text == ";":
        found.pop()
    if not found:
        yield "it has no query: write SELECT ..."
        return
    end = next((token for token in found if token.text == ";"), None)
    if end is not None:
        yield f"line {end.line}: a second statement follows: a stage is one query, write the others as stages"
    first = next((token for token in found if token.text != "("), found[0])
    if first.lower not in _QUERIES:
        yield f"line {first.line}: it begins with {first.text!r}, but a stage is one query: SELECT ..., or WITH ..."
    depth = 0
    for token in found:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            yield f"line {token.line}: this ) closes no ("
            return
    if depth:
        yield f"{depth} ( are opened and not closed" if depth > 1 else "a ( is opened and not closed"


def _value_problems(token: Token, parameters: Mapping[str, Any]) -> Iterator[str]:
    if token.kind in ("text", "name"):
        quoted = _IN_QUOTES.search(token.text)
        if quoted:
            yield (
                f"line {token.line}: {quoted[0]} stands in quotes: leave them out, since a value is bound and never "
                "becomes part of a text (|| joins texts)"
            )
    elif token.kind == "block":
        block = token.text[:40]
        yield f"line {token.line}: {block} is a block of Jinja, and only {{{{ ... }}}} is known: write a function"
    elif token.kind == "template":
        yield from _template_problems(token, parameters)


def _template_problems(token: Token, parameters: Mapping[str, Any]) -> Iterator[str]:
    written = _written(token.text)
    match = _VALUE.fullmatch(written)
    if match is None:
        name = re.sub(r"^(params|ctx\.params|parameters)\.", "ctx.parameters.", written)
        right = _OF_AIRFLOW.get(written) or (f"{{{{ {name} }}}}" if _VALUE.fullmatch(name) else "")
        known = (
            f"there are {_VALUES}, {{{{ ctx.subtask }}}}, {{{{ ctx.parallelism }}}} and {{{{ ctx.parameters.NAME }}}}"
        )
        yield f"line {token.line}: {token.text} is unknown: {f'write {right}' if right else known}"
    elif match["parameter"] is not None and match["parameter"] not in parameters:
        near = difflib.get_close_matches(match["parameter"], parameters, 1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f'write Dataflow(..., parameters={{"{match["parameter"]}": ...}})'
        )
        yield f"line {token.line}: the dataflow has no parameter {match['parameter']!r}: {hint}"
    elif match["parameter"] is not None:
        try:
            require_bindable(written, parameters[match["parameter"]])
        except Misconfigured as error:
            yield f"line {token.line}: {error}"


def _input_problems(tokens: Sequence[Token], inputs: Collection[str]) -> Iterator[str]:
    known = {name.lower() for name in inputs} | _names_of_queries(tokens)
    meant: set[str] = set()
    for token, name in _tables(tokens):
        if name.lower() not in known:
            near = difflib.get_close_matches(name, list(inputs), 1)
            meant.update(near)
            write = f'inputs=[blocking("{token.lower}")]'
            hint = f"did you mean {near[0]!r}?" if near else f"give the stage or source with these rows, as in {write}"
            yield f"line {token.line}: it reads {name!r}, which is no input of the stage: {hint}"
    named = {token.lower for token in tokens if token.is_name}
    for name in inputs:
        if name.lower() not in named and name not in meant:
            yield f"it does not read the input {name!r}: leave it out of inputs="


def _names_of_queries(tokens: Sequence[Token]) -> set[str]:
    """Return the names that WITH gives to queries: those before AS and a parenthesis."""
    found = set()
    for place, token in enumerate(tokens[:-1]):
        if token.lower == "as" and tokens[place + 1].text == "(":
            before = place - 1
            if before >= 0 and tokens[before].text == ")":  # WITH name (columns) AS (
                while before >= 0 and tokens[before].text != "(":
                    before -= 1
                before -= 1
            if before >= 0:
                found.add(tokens[before].lower)
    return found


def _tables(tokens: Sequence[Token]) -> Iterator[tuple[Token, str]]:
    """Yield the tables that follow FROM or JOIN, with their whole names.

    FROM stands in functions, too, such as extract(year FROM day): it counts only in the parentheses of a query.
    """
    in_query = [True]
    for place, token in enumerate(tokens):
        after = tokens[place + 1] if place + 1 < len(tokens) else Token("symbol", "", token.line)
        if token.text == "(":
            in_query.append(after.lower in _QUERIES)
        elif token.text == ")" and len(in_query) > 1:
            in_query.pop()
        is_clause = token.lower == "from" and in_query[-1] and tokens[max(place - 1, 0)].lower != "distinct"
        if token.kind == "word" and (is_clause or token.lower == "join") and after.is_name:
            name = _whole_name(tokens, place + 1)
            if name and after.lower not in _NO_TABLES:
                yield after, name


def _whole_name(tokens: Sequence[Token], place: int) -> str:
    """Return a name with its parts after dots; empty for a function."""
    parts = [tokens[place]]
    while place + 2 < len(tokens) and tokens[place + 1].text == "." and tokens[place + 2].is_name:
        place += 2
        parts.append(tokens[place])
    is_function = place + 1 < len(tokens) and tokens[place + 1].text == "("
    return "" if is_function else ".".join(part.text.strip("`") for part in parts)
