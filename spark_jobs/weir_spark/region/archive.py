"""Packs the pipeline's modules and ships them to a session. Invariant: workers run the code that the attempt records.

A Connect server lives longer than a module's text. Spark gives every session its own Python workers once it has
artifacts, and puts these before everything installed there, so that an edited function runs in its new form.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from pyspark.sql import SparkSession

from weir.errors import Misconfigured
from weir.formats.region_job import RegionJob
from weir_spark.session import is_remote

_LEFT_OUT = ("__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip of modules, and its fingerprint: SHA-256 over names and contents, whatever the time and the machine."""

    modules: tuple[str, ...]
    fingerprint: str
    data: bytes

    @property
    def name(self) -> str:
        """The file's name on the server."""
        return f"weir-modules-{self.fingerprint[:16]}.zip"


def top_level(modules: Sequence[str], functions: Sequence[str]) -> tuple[str, ...]:
    """The top-level packages and modules to ship: those named, else those of the functions ("module:function")."""
    names = modules or [function.partition(":")[0] for function in functions if function]
    return tuple(sorted({name.partition(".")[0] for name in names}))


def modules_of(job: RegionJob) -> tuple[str, ...]:
    """Return the top-level modules that travel with a region's job."""
    return top_level(job.modules, [stage.function for stage in job.stages])


def pack(modules: Sequence[str]) -> Archive:
    """Read the source files of top-level modules, without importing them, from folders or from zips on the path.

    Raises Misconfigured if one is not found.
    """
    files = dict(each for module in modules for each in _files(module))
    fingerprint = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            content = files[name]
            fingerprint.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return Archive(tuple(modules), fingerprint.hexdigest(), buffer.getvalue())


def ship(session: SparkSession, archive: Archive) -> None:
    """Add the modules to a session."""
    folder = tempfile.mkdtemp(prefix="weir-modules-")
    path = Path(folder, archive.name)
    path.write_bytes(archive.data)
    try:
        session.addArtifacts(str(path), pyfile=True)
    finally:
        # pyspark puts the zip before this process's own modules.
        sys.path[:] = [entry for entry in sys.path if entry != str(path)]
        _delete(folder, session)


def _delete(folder: str, session: SparkSession) -> None:
    """A server has the zip now; the executors of a session of this process's own fetch it when they need it."""
    if is_remote(session):
        shutil.rmtree(folder)
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _files(module: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of a module's files, as an archive has them."""
    spec = _spec(module)
    if spec.submodule_search_locations is None:
        origin = Path(str(spec.origin))
        yield origin.name, _read(origin)
        return
    for location in spec.submodule_search_locations:
        for inside, content in _below(Path(location)):
            if not any(part in _LEFT_OUT for part in Path(inside).parts):
                yield f"{module}/{inside}", content


def _below(folder: Path) -> Iterator[tuple[str, bytes]]:
    zipped = _zip_of(folder)
    if zipped is None:
        yield from (
            (path.relative_to(folder).as_posix(), path.read_bytes()) for path in folder.rglob("*") if path.is_file()
        )
        return
    prefix = f"{folder.relative_to(zipped).as_posix()}/"
    with zipfile.ZipFile(zipped) as archive:
        for name in archive.namelist():
            if name.startswith(prefix) and not name.endswith("/"):
                yield name.removeprefix(prefix), archive.read(name)


def _read(path: Path) -> bytes:
    zipped = _zip_of(path)
    if zipped is None:
        return path.read_bytes()
    with zipfile.ZipFile(zipped) as archive:
        return archive.read(path.relative_to(zipped).as_posix())


def _zip_of(path: Path) -> Path | None:
    """Return the zip that a path of Python's import is in: the modules of a submitted job are in one."""
    if path.exists():
        return None
    return next((parent for parent in path.parents if parent.is_file()), None)


def _spec(module: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise Misconfigured(f"the module {module} of the pipeline cannot be found: {error}") from error
    if spec is None or (spec.submodule_search_locations is None and not _is_file(Path(str(spec.origin)))):
        raise Misconfigured(
            f"the pipeline's module {module!r} is not on this machine, so that it cannot travel to Spark: install its "
            "package where the task runs, or correct the function's name"
        )
    return spec


def _is_file(path: Path) -> bool:
    return path.is_file() or _zip_of(path) is not None
