"""Problems of DAG files, as lines for people and as JSON for programs, and the process that looks for them.

Invariants: a problem is one line, which begins with its place. Whatever a DAG file does when it is imported, this
process goes on: `python -m weir_airflow.doctor.dag_files` imports it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weir.code.hints import hint_of
from weir.errors import WeirError
from weir.typed_json import AsJson


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(AsJson):
    """What is wrong, and what to write instead; `line` is 0, and a name empty, where it concerns none."""

    file: str
    line: int = 0
    dataflow: str = ""
    stage: str = ""
    text: str

    def __str__(self) -> str:
        """Return one line: place, dataflow and stage, text."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        named = [f"{what} {name!r}" for what, name in (("dataflow", self.dataflow), ("stage", self.stage)) if name]
        return ": ".join(part for part in (place, ", ".join(named), " ".join(self.text.split())) if part)


def texts_of(error: BaseException) -> list[str]:
    """Return what an error says: a list of problems one by one, and the type of an error that is none of Weir's."""
    if not isinstance(error, WeirError):
        text, hint = f"{type(error).__name__}: {error}", hint_of(error)
        return [f"{text.rstrip('.')}{hint}" if hint else text]
    first, *listed = str(error).split("\n- ")
    return [f"{first.partition(' has ')[0]}: {each}" for each in listed] or [first]


_MODULE: Final = "weir_airflow.doctor.dag_files"
_HOME: Final = "AIRFLOW_HOME"
_SHOWN_LINES: Final = 3


def answers_about(arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what the process writes, and `ended` with the end of its errors if it did not end by itself."""
    with tempfile.TemporaryDirectory(prefix="weir-check-") as home, tempfile.TemporaryFile("w+") as errors:
        # Airflow writes a configuration into the home that it does not find.
        own = {} if environ.get(_HOME) or Path("~/airflow/airflow.cfg").expanduser().exists() else {_HOME: home}
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *arguments],
            env={**environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            for line in process.stdout or ():
                yield json.loads(line)
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors.read()[-4000:].splitlines() if line.strip()]
            said = " | ".join(lines[-_SHOWN_LINES:]) or "without a message"
            yield {"ended": f"with status {process.returncode}: {said}"}
