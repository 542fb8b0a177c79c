"""Computes the digests of stored results again from their files.

Invariant: exactly the files of a manifest are read, as an input or a state is; a digest that is not as expected is
computed twice, and reported only if both are the same.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from weir.errors import WeirError
from weir.formats.manifest import digest_version
from weir.formats.programs import ContentAnswer, ResultToCheck
from weir.formats.region_job import StateToRead
from weir.typed_json import message_from_json
from weir_spark.program import answer_request, in_one_line
from weir_spark.results.digest import VERSIONS, digest_of
from weir_spark.results.reader import read_files, schema_of, with_key_groups
from weir_spark.session import SPARK_ERRORS, active
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import state_digest

_AT_ONCE = 4
"""Results at a time: a small result does not use all of a cluster."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the request that the command line names; return the exit code."""
    return answer_request(
        "weir verify",
        arguments,
        partial(message_from_json, tuple[ResultToCheck, ...]),
        _answer_all,
        description="Compute the digests of stored results again.",
        settings={},
    )


def content_of(session: SparkSession, result: ResultToCheck) -> ContentAnswer:
    """Return the digest of the rows in a result's files; of keyed state that of its visible rows."""
    version = digest_version(result.expected)
    if version not in VERSIONS:
        why = f"its digest is of version {version}, this Weir computes {VERSIONS[-1]}: they cannot be compared"
        return ContentAnswer(result.number, error=why)
    try:
        found = _digest(session, result)
        if found != result.expected and found != _digest(session, result):
            return ContentAnswer(result.number, error="its digest is another one each time that it is computed")
    except (*SPARK_ERRORS, WeirError) as error:
        return ContentAnswer(result.number, error=in_one_line(error))
    return ContentAnswer(result.number, found)


def _digest(session: SparkSession, result: ResultToCheck) -> str:
    if result.state is None:
        schema = schema_of(result.spark_schema)
        rows = read_files(session, result.files, with_key_groups(schema) if result.is_keyed else schema)
        return str(digest_of(rows, result.rule, digest_version(result.expected)))
    return str(state_digest(StoredState(session, as_written(result.state, result.spark_schema))))


def as_written(state: StateToRead, spark_schema: str) -> StateToRead:
    """Return the state with the columns that it had when it was written, whatever is declared by now."""
    columns = schema_of(spark_schema).toDDL()
    return replace(state, state=replace(state.state, schema=columns))


def _answer_all(session: SparkSession, results: Sequence[ResultToCheck], _: object) -> None:
    lock = threading.Lock()

    def answer(result: ResultToCheck) -> None:
        with active(session):
            answered = content_of(session, result).to_json()
        with lock:
            print(answered, flush=True)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(answer, results))


if __name__ == "__main__":
    sys.exit(main())
