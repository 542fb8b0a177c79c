"""An environment of Python, packed for containers of a cluster: what drivers and executors of Weir import.

Invariant: the name of a packed environment changes with what is in it, so that one is never in the place of another.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PACKED = Path(__file__).parents[3] / ".weir" / "tests" / "environments"
_WANTED = ("fsspec", "pyarrow", "pandas", "httpx", "msgspec", "confluent-kafka")
_LEFT_OUT = ("/tests/", "/include/", "/__pycache__/", ".pyx", ".pxd")
"""Parts of paths that no driver needs."""


def packed_environment() -> Path:
    """Return an archive with `bin/python` and the packages of this process's environment; made once."""
    found = {each.name: each for name in _WANTED for each in _with_needed(name, "")}
    told = "\n".join([sys.version, *sorted(f"{each.name} {each.version}" for each in found.values())])
    packed = PACKED / f"weir-{hashlib.sha256(told.encode()).hexdigest()[:12]}.tar"
    if packed.exists():
        return packed
    PACKED.mkdir(parents=True, exist_ok=True)
    made = PACKED / uuid.uuid4().hex
    try:
        _pack(made, found.values())
        made.with_suffix(".tar").rename(packed)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return packed


def _pack(folder: Path, distributions: Iterable[Distribution]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    for each in distributions:
        for file in each.files or ():
            path = Path(str(each.locate_file(file)))
            if ".." not in file.parts and path.is_file() and not any(part in f"/{file}" for part in _LEFT_OUT):
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    with tarfile.open(folder.with_suffix(".tar"), "w") as archive:
        archive.add(folder, ".")


def _with_needed(name: str, extra: str) -> Iterator[Distribution]:
    """Yield a distribution, and those that it requires here."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    yield found
    for text in found.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield from _with_needed(needed.name, "")
