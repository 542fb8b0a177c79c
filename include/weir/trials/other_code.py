"""The dataflows of another checkout, or of a revision in git, beside those of a DAG file here.

Invariant: no module of one checkout is taken for one of the other: while the other one is read, Python's path has its
folders in place of those here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

from weir.coordination.values import DeclaredCode
from weir.trials.declared import code_below

_PATH: Final = "PYTHONPATH"
_OWN: Final = ("weir", "weir_airflow", "weir_spark")


def code_elsewhere(path: Path, here: Path, environ: Mapping[str, str] = os.environ) -> tuple[DeclaredCode, ...]:
    """Return the dataflows of another DAG file, or folder of them, with the modules of its own checkout.

    The checkouts are what is left of both paths without their common end. `path` may be the other checkout itself,
    where `here` is relative. Raises as `code_below`.
    """
    other = path / here if path.is_dir() and not here.is_absolute() and (path / here).exists() else path
    root, its = _roots(here.resolve(), other.resolve())
    before = list(sys.path)
    sys.path[:] = list(_moved(before, root, its))
    try:
        return code_below(other, environ=_environment(environ, root, its))
    finally:
        sys.path[:] = before


def _roots(here: Path, there: Path) -> tuple[Path, Path]:
    """Return what is left of two paths without their common end; their folders where they have none."""
    pairs = zip(reversed(here.parts[1:]), reversed(there.parts[1:]), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if not common:
        return (here if here.is_dir() else here.parent), (there if there.is_dir() else there.parent)
    return here.parents[common - 1], there.parents[common - 1]


def _moved(path: list[str], root: Path, its: Path) -> Iterator[str]:
    """Yield the folders of Python's path, with those of one checkout as they are in the other one."""
    for each in path:
        folder = Path(each or ".").resolve()
        is_installed = "site-packages" in folder.parts or not folder.is_relative_to(root)
        yield each if is_installed else str(its / folder.relative_to(root))


def _environment(environ: Mapping[str, str], root: Path, its: Path) -> dict[str, str]:
    """Return the environment of the process that imports the DAG file; Weir's own packages are those of here."""
    given = [each for each in environ.get(_PATH, "").split(os.pathsep) if each]
    own = [each for each in given if any((Path(each) / name).is_dir() for name in _OWN)]
    folders = [*own, *_moved(["", *given], root, its)]
    return {**environ, _PATH: os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


@contextmanager
def checked_out(revision: str, here: Path) -> Iterator[Path | None]:
    """Yield where a DAG file, or folder of them, is as it was at a revision in git; None: git knows no such revision.

    There may be no such file. It is deleted afterwards.
    """
    folder = here if here.is_dir() else here.parent
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    top, inside = (_git(folder, "rev-parse", f"--show-{what}") for what in ("toplevel", "prefix"))
    if not commit or not top:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="weir-code-") as at:
        archived = subprocess.Popen(["git", "-C", top, "archive", "--format=tar", commit], stdout=subprocess.PIPE)
        with archived as process, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            archive.extractall(at, filter="tar")
        yield Path(at) / str(inside) / ("" if here.is_dir() else here.name)


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None
