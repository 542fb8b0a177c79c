"""The program with Spark that computes digests again. Invariant: this process needs no Spark of its own, nor a Java."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.airflow_environment import SPARK
from weir.cli.java import find_java
from weir.cli.ports import LOOPBACK
from weir.cli.project import project_root, state_folder
from weir.cli.stack_state import Phase, read_state
from weir.errors import EngineLost
from weir.results.content_check import answer_from_json, request_to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weir.results.content_check import ContentAnswer, ResultToCheck


def recomputed(
    asked: Sequence[ResultToCheck], remote: str | None, environ: Mapping[str, str]
) -> Iterator[ContentAnswer]:
    """Have the digests of results computed again, in any order, as they come.

    `remote` is a Spark Connect server; without one it is that of the local stack while it is up, or a Spark in the
    program itself. Raises EngineLost if the program does not come to its end.
    """
    for line in lines_of("compare_content.py", request_to_json(asked), remote, environ):
        answer = answer_from_json(line)
        if answer is not None:
            yield answer


def lines_of(program: str, request: str, remote: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    """The lines that a program in `spark_jobs` prints; for `remote` see `recomputed`. Raises EngineLost."""
    url = remote or own_server(environ)
    with tempfile.TemporaryDirectory(prefix="weir-verify-") as folder:
        asked, log = Path(folder) / "request.json", Path(folder) / "log"
        asked.write_text(request)
        command = [sys.executable, str(project_root() / "spark_jobs" / program), str(asked)]
        with log.open("wb") as errors:
            running = subprocess.Popen(
                [*command, *(["--remote", url] if url else [])],
                env=spark_environment(environ),
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            with running:
                yield from _lines(running)
        if running.returncode:
            raise EngineLost(
                f"not all contents could be compared: {_end(log)}. Nothing is called wrong because of that; try again, "
                "or name another Spark Connect server: --remote sc://host:port"
            )


def _lines(program: subprocess.Popen[str]) -> Iterator[str]:
    try:
        yield from program.stdout or ()
    finally:
        if program.poll() is None and sys.exc_info()[0] is not None:
            program.terminate()


def own_server(environ: Mapping[str, str]) -> str | None:
    """The local stack's Spark, if what is asked about is the local stack's."""
    if {"WEIR_STORE", "WEIR_LEDGER"} & environ.keys():
        return None
    state = read_state(state_folder())
    return f"sc://{LOOPBACK}:{state.ports[SPARK]}" if state.phase is Phase.UP and SPARK in state.ports else None


def spark_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """With a Java, and without what would make a client of a Spark that is its own."""
    java = find_java(state_folder() / "java", environ).environment(environ)
    kept = {key: value for key, value in environ.items() if key not in {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}}
    return {**kept, **java, "PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON", sys.executable)}


def _end(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-500:] or "it said nothing"
