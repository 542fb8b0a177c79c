"""Packs the modules of a pipeline, and reads packed ones back.

Invariant: the fingerprint of an archive is that of its files' names and contents, whatever the time and the machine, so
that what is imported from an archive with this fingerprint is what was packed. Each folder of modules in it has an
`__init__.py`: of a package without one, Python also finds modules elsewhere, and none at all in a zip.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath

from weir.errors import Misconfigured

_LEFT_OUT = ("__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_OWN = frozenset({"weir", "weir_spark", "weir_airflow"})
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Archive:
    """The files of a pipeline's modules by their names there, such as "pipelines/trips.py"."""

    files: Mapping[str, bytes]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over the names and contents of the files."""
        found = hashlib.sha256()
        for name in sorted(self.files):
            content = self.files[name]
            found.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
        return found.hexdigest()

    @cached_property
    def data(self) -> bytes:
        """The bytes of a zip of the files."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(self.files):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), self.files[name], zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    @property
    def name(self) -> str:
        """The name of the zip where it travels to Spark."""
        return f"weir-modules-{self.fingerprint[:16]}.zip"

    @property
    def top_level(self) -> frozenset[str]:
        """The names of its packages, and of its modules that are in none."""
        return frozenset(name.partition("/")[0].removesuffix(".py") for name in self.files)


def archive_of(data: bytes, fingerprint: str) -> Archive:
    """Read the bytes of an archive. Raises ValueError if they are not those of an archive with this fingerprint."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            archive = Archive({name: zipped.read(name) for name in zipped.namelist()})
    except Exception as error:  # of zipfile and of any decompressor that damaged bytes may name
        raise ValueError(f"it cannot be read as a zip: {error}") from error
    if archive.fingerprint != fingerprint:
        raise ValueError(f"its fingerprint is {archive.fingerprint}, expected {fingerprint}")
    return archive


def top_level(functions: Iterable[str]) -> tuple[str, ...]:
    """Return the top-level packages and modules of functions ("module:function"), without Weir's own."""
    modules = (function.partition(":")[0] for function in functions if function)
    return tuple(sorted({name.partition(".")[0] for name in modules} - _OWN))


def pack(modules: Sequence[str]) -> Archive:
    """Read the source files of top-level modules, without importing them, from folders or from zips on the path.

    Raises Misconfigured if one is not found.
    """
    importlib.invalidate_caches()  # a process that was forked remembers where there was nothing
    files: dict[str, bytes] = {}
    for name, content in (each for module in modules for each in _files(module)):
        files.setdefault(name, content)  # of two locations of a package, Python takes the first one
    folders = {folder for name in files if name.endswith(".py") for folder in PurePosixPath(name).parents}
    packages = {f"{folder}/__init__.py": b"" for folder in folders - {PurePosixPath()}}
    return Archive({**packages, **files})


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
