"""Answers a SQL query about keyed states. Invariant: a state has the rows that a stage would read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.errors import WeirError
from weir.formats.programs import PROBLEM, StateQuery
from weir.typed_json import message_from_json
from weir_spark.results.digest import quoted
from weir_spark.session import active, add_remote, configure, session_of_program
from weir_spark.state.reader import StoredState


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the query that the command line names; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        query = message_from_json(StateQuery, Path(given.query).read_text())
        session = session_of_program("weir state", given.remote, {"spark.ui.enabled": "false"})
        try:
            configure(session, {})
            with active(session):
                _write(answer(session, query).toArrow(), Path(given.answer))
        finally:
            session.stop()
    except (WeirError, OSError, PySparkException) as error:
        print(f"{PROBLEM}{type(error).__name__}: {str(error).strip()}", file=sys.stderr)
        return 1
    return 0


def answer(session: SparkSession, query: StateQuery) -> DataFrame:
    """Return the rows of a query; the states become temporary views of the session."""
    for name, read in query.states.items():
        stored = StoredState(session, read)
        columns = stored.schema.fieldNames()
        stored.rows().select(*map(quoted, columns)).createOrReplaceTempView(quoted(name))
    rows = session.sql(query.query)
    return rows if query.limit is None else rows.limit(query.limit)


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Answer a query about keyed states.")
    parser.add_argument("query", help="path of the query")
    parser.add_argument("answer", help="path to write the rows to")
    add_remote(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
