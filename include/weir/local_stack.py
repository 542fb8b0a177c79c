"""What a local stack tells the commands and notebooks of its project: a file that the stack writes, and they read.

Invariant: nothing here starts a stack or asks whether it runs. Where Weir was installed from a wheel there is none.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weir.errors import Misconfigured

PROJECT_VARIABLE: Final = "WEIR_PROJECT"
"""The environment variable by which the launcher of a project names its folder; without one it is this checkout."""
STATE_FOLDER: Final = ".weir"
"""The folder in a project that has all that its stack keeps."""
FILE_NAME: Final = "environment.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LocalStack:
    """How a stack is reached.

    `environment` has the variables that name its ledger and store and, while it is up, its Airflow and Spark.
    `ledger_problem` says why the ledger cannot be reached, and the command to type; it is empty if it can.
    """

    environment: dict[str, str]
    ledger_problem: str = ""

    def to_json(self) -> str:
        """Return the text of the file."""
        values = {"version": VERSION, "environment": self.environment, "ledger_problem": self.ledger_problem}
        return json.dumps(values, indent=1) + "\n"


def local_stack() -> LocalStack | None:
    """Return the stack of the project; None if there is no project, or none was ever started. Raises Misconfigured."""
    project = os.environ.get(PROJECT_VARIABLE)
    root = Path(project) if project else Path(__file__).resolve().parents[2]
    path = root / STATE_FOLDER / FILE_NAME
    try:
        values = json.loads(path.read_text())
        if values["version"] != VERSION:
            raise _unreadable(path, f"its version is {values['version']}, not {VERSION}")
        return LocalStack(dict(values["environment"]), str(values["ledger_problem"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, repr(error)) from error


def _unreadable(path: Path, why: str) -> Misconfigured:
    return Misconfigured.of("local_stack.unreadable", path=path, why=why)
