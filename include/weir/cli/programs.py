"""Runs programs that use Spark: digests and comparisons of rows, quality checks, queries of states.

Invariants: this process needs neither Spark nor Java; each program has a process of its own. The URL of a server, which
may have a token, reaches a program by its environment, never by its command line.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from weir.environment import command_environment
from weir.errors import EngineLost, Misconfigured
from weir.formats.codec import from_json, to_json
from weir.formats.programs import PROBLEM, ComparisonAnswer, answer_from_json
from weir.formats.region_job import RegionReport
from weir.java import spark_environment
from weir.secrecy import without_secrets
from weir.settings import SPARK_VARIABLE
from weir.typed_json import message_from_json, message_to_json
from weir.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weir.formats.programs import ComparisonToMake, ContentAnswer, ResultToCheck, StateQuery
    from weir.formats.region_job import CheckJob


def recomputed(
    asked: Sequence[ResultToCheck], remote: str | None, environ: Mapping[str, str]
) -> Iterator[ContentAnswer]:
    """Recompute the digests of results; yield them in any order, as they come.

    `remote` is a Spark Connect server; the default is that of the environment, else local Spark in the
    program. Raises EngineLost if the program fails.
    """
    for line in lines_of("weir_spark.checks.content", message_to_json(asked), remote, environ):
        answer = answer_from_json(line)
        if answer is not None:
            yield answer


def lines_of(program: str, request: str, remote: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines that a program prints, named by its module; for `remote` see `recomputed`. Raises EngineLost."""
    url = remote or own_server(environ)
    with tempfile.TemporaryDirectory(prefix="weir-verify-") as folder:
        asked, log = Path(folder) / "request.json", Path(folder) / "log"
        asked.write_text(request)
        with log.open("wb") as errors:
            running = subprocess.Popen(
                [sys.executable, "-m", program, str(asked)],
                env=spark_environment(environ, Path(folder), url),
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            with running:
                yield from _lines(running)
        if running.returncode:
            raise EngineLost.of("cli.contents_not_compared", end=_end(log))


def _lines(program: subprocess.Popen[str]) -> Iterator[str]:
    try:
        yield from program.stdout or ()
    finally:
        if program.poll() is None and sys.exc_info()[0] is not None:
            program.terminate()


def own_server(environ: Mapping[str, str]) -> str | None:
    """Return the Spark Connect server of the environment, or of the local stack where it is used."""
    return command_environment(environ).get(SPARK_VARIABLE)


def _end(log: Path) -> str:
    return without_secrets(" ".join(log.read_text(errors="replace").split()))[-500:] or "without a message"


def checked(
    job: CheckJob, remote: str | None, environ: Mapping[str, str], watch: Callable[[int], None] = lambda _done: None
) -> RegionReport:
    """Check the rows that a job names; `watch` receives the number of checked partitions.

    `remote` is a Spark Connect server; the default is that of the environment, else local Spark in the
    program. Raises EngineLost if the program fails.
    """
    report = RegionReport(attempt=job.attempt, outputs=(), code="", session={}, metrics={})
    done = 0
    for line in lines_of("weir_spark.checks.checking", to_json(job).decode(), remote, environ):
        try:
            found = from_json(RegionReport, line.encode())
        except Misconfigured:
            continue  # a library's output
        report = replace(report, checks=(*report.checks, *found.checks))
        done += 1
        watch(done)
    return report


def compared(
    asked: Sequence[ComparisonToMake], url: str | None, environ: Mapping[str, str]
) -> list[tuple[ComparisonAnswer, list[dict[str, Any]]]]:
    """Compare the rows of results; return what was found of each, and the first rows that differ.

    `url` is that of a Spark Connect server; None: local Spark in the program. Raises EngineLost if the program fails.
    """
    with tempfile.TemporaryDirectory(prefix="weir-compare-") as name:
        folder = Path(name)
        request, log = folder / "request.json", folder / "log"
        request.write_text(message_to_json(asked))
        with log.open("wb") as errors:
            done = subprocess.run(
                [sys.executable, "-m", "weir_spark.checks.comparison", str(request), str(folder)],
                env=spark_environment(environ, folder, url),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                check=False,
            )
        if done.returncode:
            raise EngineLost.of("cli.rows_not_compared", end=_end(log))
        answers = message_from_json(tuple[ComparisonAnswer, ...], (folder / "answers.json").read_bytes())
        return [
            (each, [] if each.error else _rows(folder / f"rows-{number}.arrow").to_pylist())
            for number, each in enumerate(answers)
        ]


def _rows(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return cast("pa.Table", stream.read_all())


_SHOWN = 2000


def answered(query: StateQuery, remote: str | None, environ: Mapping[str, str]) -> pa.Table:
    """Run a query of states and return its rows.

    `remote` is a Spark Connect server; the default is that of the environment, else local Spark in the
    program. Raises Misconfigured with Spark's error.
    """
    url = remote or own_server(environ)
    with tempfile.TemporaryDirectory(prefix="weir-state-") as folder:
        request, rows = Path(folder) / "query.json", Path(folder) / "answer.arrow"
        request.write_text(message_to_json(query))
        done = subprocess.run(
            [sys.executable, "-m", "weir_spark.state.query", str(request), str(rows)],
            env=spark_environment(environ, Path(folder), url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Misconfigured.of("cli.query_not_answered", problem=_problem(done.stderr))
        return _rows(rows)


def _problem(said: str) -> str:
    """Return the program's error without the plans and stack traces that Spark appends."""
    found = said.rpartition(PROBLEM)[2].strip() or "without a message"
    return shortened(without_secrets(re.split(r";?\n\s*(?:'|\+-|JVM stacktrace|at )", found, maxsplit=1)[0]), _SHOWN)
