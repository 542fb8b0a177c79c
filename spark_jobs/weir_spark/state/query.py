"""Answers a SQL query about keyed states. Invariant: a state has the rows that a stage would read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from weir.formats.programs import PROBLEM, StateQuery
from weir.typed_json import message_from_json
from weir_spark.program import answer_request, write_rows
from weir_spark.results.digest import quoted
from weir_spark.state.reader import StoredState


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the query that the command line names; return the exit code."""
    return answer_request(
        "weir state",
        arguments,
        partial(message_from_json, StateQuery),
        lambda session, query, given: write_rows(answer(session, query).toArrow(), given.answer),
        description="Answer a query about keyed states.",
        options={"answer": "path to write the rows to"},
        told=lambda error: f"{PROBLEM}{type(error).__name__}: {str(error).strip()}",
    )


def answer(session: SparkSession, query: StateQuery) -> DataFrame:
    """Return the rows of a query; the states become temporary views of the session."""
    for name, read in query.states.items():
        stored = StoredState(session, read)
        columns = stored.schema.fieldNames()
        stored.rows().select(*map(quoted, columns)).createOrReplaceTempView(quoted(name))
    rows = session.sql(query.query)
    return rows if query.limit is None else rows.limit(query.limit)


if __name__ == "__main__":
    sys.exit(main())
