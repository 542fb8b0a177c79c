"""The program with Spark that answers queries about states. Invariant: this process needs no Spark, nor a Java."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from weir.cli.content_program import own_server, spark_environment
from weir.cli.project import project_root
from weir.errors import Misconfigured
from weir.results.state_query import PROBLEM, query_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir.results.state_query import StateQuery

_SHOWN = 2000


def answered(query: StateQuery, remote: str | None, environ: Mapping[str, str]) -> pa.Table:
    """Have a query answered.

    `remote` is a Spark Connect server; without one it is that of the local stack while it is up, or a Spark in the
    program itself. Raises Misconfigured with what Spark says of the query.
    """
    url = remote or own_server(environ)
    with tempfile.TemporaryDirectory(prefix="weir-state-") as folder:
        request, rows = Path(folder) / "query.json", Path(folder) / "answer.arrow"
        request.write_text(query_to_json(query))
        program = project_root() / "spark_jobs" / "query_state.py"
        done = subprocess.run(
            [sys.executable, str(program), str(request), str(rows), *(["--remote", url] if url else [])],
            env=spark_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Misconfigured(f"the query was not answered: {_problem(done.stderr)}")
        with pa.OSFile(str(rows)) as file, pa.ipc.open_stream(file) as stream:
            return cast("pa.Table", stream.read_all())


def _problem(said: str) -> str:
    """The program's own error, without the plans and stack traces that Spark puts behind it."""
    found = said.rpartition(PROBLEM)[2].strip() or "it said nothing"
    return re.split(r";?\n\s*(?:'|\+-|JVM stacktrace|at )", found, maxsplit=1)[0][:_SHOWN]
