"""Where the project is that this command works on, and where it keeps its state.

Invariant: nothing depends on the working directory. A project is a checkout of Weir, or what `weir init` has made,
whose launcher names its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from weir.errors import Misconfigured
from weir.local_stack import PROJECT_VARIABLE, STATE_FOLDER


def checkout() -> Path:
    """The root of the checkout of Weir: the folder of `pyproject.toml`, `dags` and `plugins`.

    Raises Misconfigured if the package was installed without its checkout.
    """
    root = Path(__file__).resolve().parents[2]
    missing = [name for name in ("pyproject.toml", "dags", "plugins") if not (root / name).exists()]
    if missing:
        raise Misconfigured.of("dev.no_checkout", root=root, missing=missing)
    return root


def project_root() -> Path:
    """The folder of the project: its DAGs are in `dags`. Raises Misconfigured."""
    named = os.environ.get(PROJECT_VARIABLE)
    if named is None:
        return checkout()
    root = Path(named)
    if not (root / "dags").is_dir():
        raise Misconfigured.of("dev.no_project", project_variable=PROJECT_VARIABLE, named=named)
    return root


def state_folder() -> Path:
    """The folder of everything that `weir up` keeps: `.weir` in the project."""
    return project_root() / STATE_FOLDER
