"""Computes a stage by the query of its SQL file.

Invariant: the query finds its inputs under the names of the stage, also where another stage of the session has inputs
of these names: they are part of its plan, and no views of the session, which Spark Connect would look up again later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from weir.code.sql_rules import require_bindable, sql_problems, statement_of
from weir.errors import Misconfigured
from weir_spark.region.context import StageContext

READ_FAILED: Final = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
"""What Spark says of files that it cannot read: the store decides whether an input is lost."""

_PLACE: Final = re.compile(r"\s*(?:;\s*line (\d+) pos \d+;?|\(line (\d+), pos \d+\))\s*$")


def check_query(owner: str, path: str, text: str, inputs: tuple[str, ...], parameters: Mapping[str, Any]) -> None:
    """Find the problems of a SQL file that can be found without Spark. Raises Misconfigured."""
    problems = sql_problems(text, inputs, parameters)
    if problems:
        raise Misconfigured(f"{owner}: {path}: {'; '.join(problems)}")


def rows_of_query(
    owner: str, path: str, text: str, context: StageContext, inputs: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the rows of the query of a SQL file. Raises Misconfigured, with file and line, for one that Spark refuses.

    A division by zero, for example, is found when the rows are computed, and is an error of Spark.
    """
    statement = statement_of(text)
    values = statement.bound(_values_of(context))
    for name, written in statement.values.items():
        require_bindable(written, values[name])
    tables = {f"input_{place}": rows for place, rows in enumerate(inputs.values())}
    query = _with_inputs(statement.text, dict(zip(inputs, tables, strict=True)))
    try:
        rows = context.spark.sql(query, values or None, **tables)
        _ = rows.schema  # Spark Connect would refuse it later
    except AnalysisException as error:
        if error.getCondition() in READ_FAILED:
            raise
        raise Misconfigured(f"{owner}: {_explained(path, text, error)}") from error
    return rows


def _with_inputs(query: str, tables: Mapping[str, str]) -> str:
    """Put the tables that Spark is given before a query, by the names of the inputs.

    It stays in the first line, so that Spark counts its lines as they are in the file.
    """
    named = ", ".join(f"`{name}` AS (TABLE {{{table}}})" for name, table in tables.items())
    escaped = query.replace("{", "{{").replace("}", "}}")
    return f"WITH {named} SELECT * FROM ({escaped}\n)"  # noqa: S608  it is the user's own


def _values_of(context: StageContext) -> dict[str, Any]:
    start, end = context.interval
    return {
        "ctx.epoch": context.epoch,
        "ctx.interval[0]": start,
        "ctx.interval[1]": end,
        "ctx.subtask": context.subtask,
        "ctx.parallelism": context.parallelism,
        **{f"ctx.parameters.{name}": value for name, value in context.parameters.items()},
    }


def _explained(path: str, text: str, error: AnalysisException) -> str:
    """Return what Spark says of a query, with the line of the file, and without the plan."""
    said = str(error).strip().splitlines()[0]
    place = _PLACE.search(said)
    if place is None:
        return f"{path}: {said}"
    line = int(place[1] or place[2])
    lines = text.splitlines()
    shown = f": {lines[line - 1].strip()}" if line <= len(lines) else ""
    return f"{path}, line {line}{shown}\n{said[: place.start()]}"
