"""`weir airflow`: Airflow's own command line, so that a command in an advice is the same wherever `weir` is typed.

Invariant: nothing of what is typed is read here: this process becomes Airflow's.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def airflow(context: typer.Context) -> None:
    """Run Airflow's command line; in the project of a local stack, with its Airflow."""
    become_airflow(context.args, os.environ)


def become_airflow(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this process by Airflow's command line, of this Python or on the PATH. Raises Misconfigured."""
    beside = Path(sys.executable).parent
    program = shutil.which("airflow", path=f"{beside}{os.pathsep}{environ.get('PATH', os.defpath)}")
    if program is None:
        raise Misconfigured.of("cli.airflow_not_installed", words=words)
    sys.stdout.flush()
    os.execve(program, [program, *words], dict(environ))  # noqa: S606  no shell is wanted
