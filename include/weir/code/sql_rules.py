"""The SQL file of a stage: one query, whose inputs are tables and whose values in {{ ... }} are bound.

Invariant: no value becomes part of the text. A value stands where SQL has an expression, as a named parameter of Spark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.code.sql_relation_rules import QUERIES, Token, UnclosedError, pieces, tokens, unknown_relations
from weir.errors import Message, Misconfigured, at, said_by
from weir.wording import closest, did_you_mean

SUFFIX: Final = ".sql"

_PATH: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_CLOSED_BY: Final = {"(": ")", "[": "]", "{": "}"}
_IN_QUOTES: Final = re.compile(r"\{\{\s*[A-Za-z_].*?\}\}", re.DOTALL)
_OF_SERVER: Final = re.compile(r"\$\{(?:\w+:)?[^\s{}]+\}")
_LONGEST_OF_SERVER: Final = 20
"""The tokens of ${...} that are looked at."""
_VALUE: Final = re.compile(
    r"ctx\.(epoch|subtask|parallelism|interval\[[01]\]|local_interval\[[01]\]\.date|parameters\.(?P<parameter>\w+))"
)

_VALUES: Final = (
    "{{ ctx.epoch }}, {{ ctx.interval[0] }} (its start), {{ ctx.interval[1] }} (its end), "
    "{{ ctx.local_interval[0].date }} (the day that it begins in where the schedule is), {{ ctx.subtask }}, "
    "{{ ctx.parallelism }} and {{ ctx.parameters.NAME }}"
)
OF_AIRFLOW: Final = {
    "ds": "to_date({{ ctx.interval[0] }})",
    "ts": "{{ ctx.interval[0] }}",
    "data_interval_start": "{{ ctx.interval[0] }}",
    "logical_date": "{{ ctx.interval[0] }}",
    "data_interval_end": "{{ ctx.interval[1] }}",
}
"""What stands here for a variable of Airflow's templates."""


def advice_on(written: str, known: re.Pattern[str], of_airflow: Mapping[str, str], all_known: str) -> str:
    """Return what to write in place of an unknown value in {{ ... }}: the one that is meant, else all there are."""
    name = re.sub(r"^(params|ctx\.params|parameters)\.", "ctx.parameters.", written)
    right = of_airflow.get(written) or (f"{{{{ {name} }}}}" if known.fullmatch(name) else "")
    return f"write {right}" if right else f"there are {all_known}"


def is_sql(reference: object) -> bool:
    """Report whether what computes a stage is a SQL file, and not a function ("module:function")."""
    return isinstance(reference, str) and reference.endswith(SUFFIX)


def path_problems(reference: str) -> Iterator[str]:
    """Yield a problem unless a SQL file is named as it can be found."""
    if not _PATH.fullmatch(reference):
        yield Message("code.sql_path_malformed", reference=reference)


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with named parameters in the place of {{ ... }}; `values` maps each parameter to what was written."""

    text: str
    values: Mapping[str, str]

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to bind; `values` are those of `ctx`, as in "ctx.epoch"."""
        return {name: values[written] for name, written in self.values.items()}


def text_of(content: bytes, owner: str) -> str:
    """Return the text of a SQL file. Raises Misconfigured, with the line, for bytes that are no UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Misconfigured.of(
            "code.bytes_not_utf8", owner=owner, line=line, content=content[error.start : error.start + 1]
        ) from error


def version_of(text: str) -> str:
    """Return a digest of a SQL file in which comments and white space between words do not count."""
    try:
        content = "\0".join(token.text for token in tokens(text))
    except UnclosedError:
        content = text
    return hashlib.sha256(content.encode()).hexdigest()


def statement_of(text: str) -> Statement:
    """Return the query of a SQL file that has no problems, without a semicolon at its end."""
    values: dict[str, str] = {}
    parts = []
    for piece in pieces(text.removeprefix("\ufeff")):
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
        found = list(tokens(text))
    except UnclosedError as error:
        return [str(error)]
    return [
        *dict.fromkeys(_query_problems(found)),
        *_problems_of_server(found),
        *(problem for token in found for problem in _value_problems(token, parameters)),
        *_input_problems(found, inputs),
    ]


def require_bindable(name: str, value: object) -> None:
    """Require a value that Spark can bind. Raises Misconfigured."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(each, dict | list) for each in values):
        raise Misconfigured.of("code.value_not_bindable", name=name)


def _written(template: str) -> str:
    return template[2:-2].strip()


# Problems


def _query_problems(query: Sequence[Token]) -> Iterator[str]:
    found = list(query)
    while found and found[-1].text == ";":
        found.pop()
    if not found:
        yield Message("code.no_query")
        return
    end = next((token for token in found if token.text == ";"), None)
    if end is not None:
        yield Message("code.second_statement", line=end.line)
    first = next((token for token in found if token.text != "("), found[0])
    if first.lower not in QUERIES:
        yield Message("code.not_a_query", line=first.line, text=first.text)
    yield from _bracket_problems(found)


def _bracket_problems(found: Sequence[Token]) -> Iterator[str]:
    opened: list[Token] = []
    for token in found:
        if token.text in _CLOSED_BY:
            opened.append(token)
        elif token.text in _CLOSED_BY.values():
            if not opened or _CLOSED_BY[opened[-1].text] != token.text:
                before = f", where the {opened[-1].text} of line {opened[-1].line} is open" if opened else ""
                yield Message("code.bracket_closes_nothing", line=token.line, text=token.text, before=before)
                return
            opened.pop()
    for token in opened:
        yield Message("code.bracket_not_closed", line=token.line, text=token.text)


def _problems_of_server(found: Sequence[Token]) -> Iterator[str]:
    """Yield where Spark would put a setting, or what its server has, into the text, also within quotes.

    For a name that it does not know it puts nothing there.
    """
    for place, token in enumerate(found):
        if token.kind in ("text", "name"):
            written = _OF_SERVER.search(token.text)
        elif token.text == "$":
            written = _OF_SERVER.match("".join(each.text for each in found[place : place + _LONGEST_OF_SERVER]))
        else:
            continue
        if written:
            yield Message("code.value_of_server", line=token.line, written=written[0])


def _value_problems(token: Token, parameters: Mapping[str, Any]) -> Iterator[str]:
    if token.kind in ("text", "name"):
        quoted = _IN_QUOTES.search(token.text)
        if quoted:
            yield Message("code.value_in_quotes", line=token.line, quoted=quoted[0])
    elif token.kind == "block":
        block = token.text[:40]
        yield Message("code.value_with_block", line=token.line, block=block)
    elif token.kind == "template":
        yield from _template_problems(token, parameters)


def _template_problems(token: Token, parameters: Mapping[str, Any]) -> Iterator[str]:
    written = _written(token.text)
    match = _VALUE.fullmatch(written)
    if match is None:
        advice = advice_on(written, _VALUE, OF_AIRFLOW, _VALUES)
        yield Message("code.sql_value_unknown", line=token.line, text=token.text, advice=advice)
    elif match["parameter"] is not None and match["parameter"] not in parameters:
        write = f'write Dataflow(..., parameters={{"{match["parameter"]}": ...}})'
        hint = did_you_mean(match["parameter"], parameters, write)
        yield Message("code.sql_parameter_unknown", line=token.line, quote=match["parameter"], hint=hint)
    elif match["parameter"] is not None:
        try:
            require_bindable(written, parameters[match["parameter"]])
        except Misconfigured as error:
            yield at(f"line {token.line}", said_by(error))


def _input_problems(found: Sequence[Token], inputs: Collection[str]) -> Iterator[str]:
    meant: set[str] = set()
    for relation in unknown_relations(found, inputs):
        name = relation.name or relation.token.text
        meant.update(closest(name, inputs))
        yield at(f"line {relation.token.line}", no_input(name, inputs))
    named = {token.lower for token in found if token.is_name} | {
        token.text[1:-1].lower()
        for token in found
        if token.kind == "text"  # of IDENTIFIER
    }
    for name in inputs:
        if name.lower() not in named and name not in meant:
            yield Message("code.input_not_read", name=name)


def no_input(name: str, inputs: Collection[str] = ()) -> str:
    """Say that a relation is no input of the stage, and which of the inputs may be meant."""
    last = name.rpartition(".")[2]
    write = f'inputs=[blocking("{last if last.isidentifier() else "prices"}")]'
    hint = did_you_mean(name, inputs, f"give the stage or source with these rows, as in {write}")
    return Message("code.relation_is_no_input", name=name, hint=hint)


def line_of(text: str, name: str) -> int | None:
    """Return the line of a SQL file in which a name, such as the last part of a table's, stands first."""
    return next((token.line for token in tokens(text) if token.is_name and token.lower == name.lower()), None)
