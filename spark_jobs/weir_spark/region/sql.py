"""Computes a stage by the query of its SQL file.

Invariants: the query finds its inputs under the names of the stage, also where another stage of the session has inputs
of these names: they are part of its plan, and no views of the session, which Spark Connect would look up again later.
It reads nothing else, which Spark's own plan of it over inputs without rows shows: whatever then reads anything but
these is neither an input nor a value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from weir.code.sql_rules import line_of, no_input, require_bindable, sql_problems, statement_of
from weir.errors import Internal, Misconfigured, first_line
from weir_spark.region.context import StageContext
from weir_spark.session import Log, is_remote

READ_FAILED: Final = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
"""What Spark says of files that it cannot read: the store decides whether an input is lost."""

_PLACE: Final = re.compile(r"\s*(?:;\s*line (\d+) pos \d+;?|\(line (\d+), pos \d+\))\s*$")

_WITHOUT_TABLES: Final = frozenset(
    {"CTERelationRef", "LocalRelation", "LogicalRDD", "OneRowRelation", "Range", "ResolvedInlineTable", "UnionLoopRef"}
)
"""The plans without others below that read no table: queries of WITH, values, and what functions make of nothing.

Inputs without rows are one of them, by the engine a LocalRelation or a LogicalRDD. All of a session's own are views.
"""

_ANALYSED: Final = re.compile(r"^== Analyzed Logical Plan ==\n[^\n]*\n(.*?)^== Optimized Logical Plan ==$", re.M | re.S)
_NODE: Final = re.compile(r"(?P<indent>(?:[: ]  )*(?::- |\+- )|)(?P<kind>\w+)(?P<rest>.*)")
_OF_INPUT: Final = re.compile(r" \(`_pyspark_\w*[0-9a-f]{32}`,.*")
"""The view by which Spark is given a DataFrame."""
_VARIABLE: Final = re.compile(r"\bvariablereference\(([\w.`]+)")
_OF_CATALOG: Final = re.compile(r"(?<![\w.`])(?!system\.)(\w+\.\w+\.\w+)\(")
_LENGTH_OF_PLANS: Final = "spark.sql.maxPlanStringLength"


def check_query(owner: str, path: str, text: str, inputs: tuple[str, ...], parameters: Mapping[str, Any]) -> None:
    """Find the problems of a SQL file that can be found without Spark. Raises Misconfigured."""
    problems = sql_problems(text, inputs, parameters)
    if problems:
        raise Misconfigured.of("region.query_refused", owner=owner, path=path, problems=problems)


_LOOKED_AT: Final = {"ctx.epoch": ("epoch",), "ctx.interval": ("interval",), "ctx.local_interval": ("interval", "zone")}


def rows_of_query(
    owner: str,
    path: str,
    text: str,
    context: StageContext,
    inputs: Mapping[str, DataFrame],
    log: Log = print,
    looked_at: set[str] | None = None,
) -> DataFrame:
    """Return the rows of the query of a SQL file. Raises Misconfigured, with file and line, for one that Spark refuses.

    So it does for one that reads anything but its inputs. A division by zero, for example, is found when the rows are
    computed, and is an error of Spark. To `looked_at` are added the fields of the context that the query binds and that
    differ between epochs, and "catalog" where it calls a function of the catalog.
    """
    statement = statement_of(text)
    looked_at = set() if looked_at is None else looked_at
    bound = (each.partition("[")[0] for each in statement.values.values())
    looked_at |= {name for each in bound for name in _LOOKED_AT.get(each, ())}
    values = statement.bound(_values_of(context, set(statement.values.values())))
    for name, written in statement.values.items():
        require_bindable(written, values[name])
    tables = {f"input_{place}": rows for place, rows in enumerate(inputs.values())}
    query = _with_inputs(statement.text, dict(zip(inputs, tables, strict=True)))
    empty = {name: context.spark.createDataFrame([], rows.schema) for name, rows in tables.items()}
    try:
        plan = _analysed(context.spark, context.spark.sql(query, values or None, **empty))
    except AnalysisException as error:
        raise Misconfigured.of("region.query_fails", owner=owner, explained=_explained(path, text, error)) from error
    for name in _reads(plan):
        line = line_of(text, name.rpartition(".")[2])
        raise Misconfigured.of(
            "region.query_reads_no_input",
            owner=owner,
            path=path,
            of_line=f", line {line}" if line else "",
            no_input=no_input(name),
        )
    for function in dict.fromkeys(_OF_CATALOG.findall(plan)):
        looked_at.add("catalog")
        log(f"{owner}: {path} calls {function}, a function of the catalog, which a repair would run as it is then")
    try:
        rows = context.spark.sql(query, values or None, **tables)
        _ = rows.schema  # Spark Connect would refuse it later
    except AnalysisException as error:
        if error.getCondition() in READ_FAILED:
            raise
        raise Misconfigured.of("region.query_fails", owner=owner, explained=_explained(path, text, error)) from error
    return rows


def _analysed(session: SparkSession, rows: DataFrame) -> str:
    """Return the analysed plan of rows, whole and as text: Spark Connect gives no other form of it."""
    if not is_remote(session):  # only analysed: optimising wide rows takes a deep stack
        with _whole_plans(session):
            return str(rows._jdf.queryExecution().analyzed().toString())  # noqa: SLF001  `explain` prints it
    found = _ANALYSED.search(rows._explain_string(extended=True))  # noqa: SLF001  `explain` prints it
    if found is None:
        with _whole_plans(session):
            found = _ANALYSED.search(rows._explain_string(extended=True))  # noqa: SLF001
    if found is None:
        raise Internal.of("region.plan_not_shown")
    return found[1]


@contextmanager
def _whole_plans(session: SparkSession) -> Iterator[None]:
    before = str(session.conf.get(_LENGTH_OF_PLANS))
    session.conf.set(_LENGTH_OF_PLANS, str(2**31 - 16))
    try:
        yield
    finally:
        session.conf.set(_LENGTH_OF_PLANS, before)


@dataclass(frozen=True, slots=True)
class _Node:
    depth: int
    kind: str
    rest: str

    @property
    def is_view(self) -> bool:
        """Report whether it is a view of the session or the catalog, and no input."""
        return self.kind == "View" and not _OF_INPUT.fullmatch(self.rest)


def _reads(plan: str) -> Iterator[str]:
    """Yield the names of what an analysed plan reads beside its inputs: tables, files, views and session variables.

    A table that a function of the catalog reads is in the plan as well.
    """
    # A text with line breaks continues its node.
    matches = [each for place, line in enumerate(plan.splitlines()) if (each := _node(line, is_first=place == 0))]
    above: list[_Node] = []
    for place, node in enumerate(matches):
        above = [*(each for each in above if each.depth < node.depth), node]
        following = matches[place + 1] if place + 1 < len(matches) else None
        is_leaf = following is None or following.depth <= node.depth
        if node.is_view or (is_leaf and node.kind not in _WITHOUT_TABLES):
            yield _name_of(above)
        yield from _VARIABLE.findall(node.rest)


def _node(line: str, *, is_first: bool) -> _Node | None:
    found = _NODE.fullmatch(line)
    if found is None or (not found["indent"] and not is_first):
        return None
    return _Node(len(found["indent"]), found["kind"], found["rest"])


def _name_of(above: list[_Node]) -> str:
    """Return the name of the last of the nodes, which are each below the one before."""
    *_, node = above
    before = above[-2] if len(above) > 1 else node
    if before.kind == "SubqueryAlias":
        return before.rest.strip()
    return f"files as {node.rest.rpartition(']')[2].strip()}" if node.kind == "Relation" else f"{node.kind}{node.rest}"


def _with_inputs(query: str, tables: Mapping[str, str]) -> str:
    """Put the tables that Spark is given before a query, by the names of the inputs.

    They stay in the first line, so that Spark counts its lines as they are in the file. A comment at its end goes on in
    the next line after a backslash.
    """
    named = ", ".join(f"`{name}` AS (TABLE {{{table}}})" for name, table in tables.items())
    escaped = query.replace("{", "{{").replace("}", "}}")
    return f"WITH {named} SELECT * FROM ({escaped}\n\n)"  # noqa: S608  it is the user's own


def _values_of(context: StageContext, wanted: Collection[str]) -> dict[str, Any]:
    """Return the values of `ctx`; of the bounds of the interval only those wanted, since a run may have no end."""
    bounds: dict[str, Any] = {}
    for place in (0, 1):
        if (name := f"ctx.interval[{place}]") in wanted:
            bounds[name] = context.interval[place]
        if (name := f"ctx.local_interval[{place}].date") in wanted:
            bounds[name] = context.local_interval[place].date()
    return {
        "ctx.epoch": context.epoch,
        **bounds,
        "ctx.subtask": context.subtask,
        "ctx.parallelism": context.parallelism,
        **{f"ctx.parameters.{name}": value for name, value in context.parameters.items()},
    }


def _explained(path: str, text: str, error: AnalysisException) -> str:
    """Return what Spark says of a query, with the line of the file, and without the plan."""
    said = first_line(error)
    place = _PLACE.search(said)
    if place is None:
        return f"{path}: {said}"
    line = int(place[1] or place[2])
    lines = text.splitlines()
    shown = f": {lines[line - 1].strip()}" if line <= len(lines) else ""
    return f"{path}, line {line}{shown}\n{said[: place.start()]}"
