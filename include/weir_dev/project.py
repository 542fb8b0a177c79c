"""Where the checkout is that this command belongs to, and where it keeps its state.

Invariant: nothing depends on the working directory.
"""

from __future__ import annotations

from pathlib import Path

from weir.errors import Misconfigured


def project_root() -> Path:
    """The checkout's root: the folder of `pyproject.toml`, `dags` and `plugins`.

    Raises Misconfigured if the package was installed without its checkout.
    """
    root = Path(__file__).resolve().parents[2]
    missing = [name for name in ("pyproject.toml", "dags", "plugins") if not (root / name).exists()]
    if missing:
        raise Misconfigured(
            f"the local stack runs from a checkout of Weir, but {root} has no {', '.join(missing)}: "
            "clone the repository and type ./weir there"
        )
    return root


def state_folder() -> Path:
    """The folder of everything that `weir up` keeps: `.weir` in the checkout."""
    return project_root() / ".weir"
