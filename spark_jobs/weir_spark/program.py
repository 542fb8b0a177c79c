"""Programs that use Spark for a command: each reads a request and answers it in a session that ends with it.

Invariant: a failure is one message on standard error and an exit code, for the command to tell.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from weir.errors import WeirError, first_line
from weir.settings import SPARK_VARIABLE
from weir_spark.session import SPARK_ERRORS, active, configure

T = TypeVar("T")

QUIET: Mapping[str, str] = {"spark.ui.enabled": "false"}


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def answer_request(
    name: str,
    arguments: Sequence[str] | None,
    read: Callable[[bytes], T],
    answer: Callable[[SparkSession, T, argparse.Namespace], None],
    *,
    description: str,
    options: Mapping[str, str] | None = None,
    settings: Mapping[str, str] = QUIET,
    told: Callable[[BaseException], str] = in_one_line,
) -> int:
    """Answer the request at the path that the command line names; return the exit code. The session is the active one.

    `options` are further arguments of the program, with their help. The command that starts it names its server by the
    environment.
    """
    parser = argparse.ArgumentParser(description=description)
    for argument, purpose in {"request": "path of the request", **(options or {})}.items():
        parser.add_argument(argument, help=purpose)
    parser.add_argument(
        "--remote",
        default=os.environ.get(SPARK_VARIABLE),
        help=f"a Spark Connect server, sc://host:port; default: {SPARK_VARIABLE}, else a session of its own",
    )
    given = parser.parse_args(arguments)
    try:
        request = read(Path(given.request).read_bytes())
        with session_for(name, given.remote, settings) as session, active(session):
            configure(session, {})
            answer(session, request, given)
    except (WeirError, OSError, *SPARK_ERRORS) as error:
        print(told(error), file=sys.stderr)
        return 1
    return 0


@contextmanager
def session_for(name: str, remote: str | None, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Provide the session of a program, and stop it."""
    session = session_of_program(name, remote, settings)
    try:
        yield session
    finally:
        session.stop()


def session_of_program(name: str, remote: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Create the session of a program: on a server, or else one of its own, started with these settings."""
    if remote:
        url = remote.rstrip(";/") + (";" if ";" in remote else "/;")
        return SparkSession.builder.remote(f"{url}session_id={uuid.uuid4()}").create()
    builder = SparkSession.builder.appName(name).config("spark.log.level", "ERROR")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def write_rows(table: pa.Table, path: str) -> None:
    """Write rows as a stream of Arrow's."""
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
