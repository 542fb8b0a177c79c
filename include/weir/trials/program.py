"""Runs the program that computes a trial: `python -m weir_spark.region.trial`.

Invariant: each trial has a process of its own, on a local Spark: Python workers of another one would keep the modules
that they have imported, and the settings of a session of the user stay as they are.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import pyarrow as pa

from weir.errors import EngineLost, Message
from weir.formats.programs import TrialAnswer, TrialRequest
from weir.java import spark_environment
from weir.secrecy import without_secrets
from weir.typed_json import message_from_json, message_to_json

_STANDARD_ERROR: Final = 2


def computed(request: TrialRequest, folder: Path, environ: Mapping[str, str]) -> tuple[TrialAnswer, pa.Table | None]:
    """Try a stage on a local Spark; return the answer and the rows to show (None after an error of the stage).

    `folder` is that of the trial. What the stage's code prints goes to the standard error. Raises EngineLost if
    the program fails.
    """
    asked, answer, rows, log = (folder / name for name in ("request.json", "answer.json", "rows.arrow", "log"))
    asked.write_text(message_to_json(request))
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "weir_spark.region.trial", str(asked), str(answer), str(rows)],
            env=spark_environment(environ, folder, None),
            stdin=subprocess.DEVNULL,
            stdout=_STANDARD_ERROR,
            stderr=errors,
            check=False,
        )
    if done.returncode:
        said = without_secrets(" ".join(log.read_text(errors="replace").split()))[-500:] or "without a message"
        raise EngineLost(Message("trials.spark_ended", returncode=done.returncode, said=said))
    found = message_from_json(TrialAnswer, answer.read_text())
    if found.error:
        return found, None
    with pa.OSFile(str(rows)) as file, pa.ipc.open_stream(file) as stream:
        return found, cast("pa.Table", stream.read_all())
