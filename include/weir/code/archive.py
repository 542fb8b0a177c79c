"""Packs the modules of a pipeline, and reads packed ones back.

Invariant: the fingerprint of an archive is that of its files' names and contents, whatever the time and the machine, so
that what is imported from an archive with this fingerprint is what was packed. Each folder of modules in it has an
`__init__.py`: of a package without one, Python also finds modules elsewhere, and none at all in a zip. What is no part
of a package (`_is_left_out`) is never looked at; all else in it is in the archive, or an error that names it. So are
the files beside modules that these read by their place (`data_beside`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from weir.code.application_rules import is_stored_application, name_in_archive
from weir.code.data_beside import DataBeside, data_beside
from weir.code.syntax import top_level_imports, top_level_of
from weir.errors import Misconfigured, Retryable
from weir.units import format_size

_OWN = frozenset({"weir", "weir_spark", "weir_airflow"})
_EPOCH = (1980, 1, 1, 0, 0, 0)

_LOOKS: Final = 3
"""How often the files of a module are looked for: a deployment replaces them while a task begins."""

MOST_COPIED: Final = 256 * 2**20
"""The bytes that linked folders, and files beside modules, may bring into an archive: one may lead to a lake."""


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
    def modules(self) -> Archive:
        """The archive without applications, which are no modules."""
        return Archive({name: content for name, content in self.files.items() if not is_stored_application(name)})

    @property
    def name(self) -> str:
        """The name of the zip where it travels to Spark."""
        return f"weir-modules-{self.fingerprint[:16]}.zip"

    @property
    def top_level(self) -> frozenset[str]:
        """The names of its packages, and of its modules that are in none."""
        return frozenset(top_level_of(name) for name in self.files if name.endswith(".py"))


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
    modules = (function.partition(":")[0] for function in functions if function and not name_in_archive(function))
    return tuple(sorted({name.partition(".")[0] for name in modules} - _OWN))


def archived(functions: Iterable[str]) -> tuple[str, ...]:
    """Return those of the functions and files of stages that are in the archive: Weir's own functions are in none."""
    return tuple(each for each in functions if name_in_archive(each) or top_level([each]))


def pack(
    modules: Sequence[str],
    sql: Mapping[str, str] = MappingProxyType({}),
    applications: Mapping[str, bytes] = MappingProxyType({}),
) -> Archive:
    """Read the source files of top-level modules, without importing them, from folders or from zips on the path.

    `sql` has the texts of stages' SQL files, which are put beside the modules by the paths that the stages name,
    and `applications` the bytes of their applications.

    Modules beside them that they import are packed, too, unless all are installed: what lies in one folder is deployed
    together. So are files beside them that they read. Weir's own modules use none beside them.

    Raises Misconfigured if one of `modules` is not found, if a file of a module cannot be in an archive, or if a SQL
    file has the name of one; Retryable if files vanish meanwhile.
    """
    importlib.invalidate_caches()  # a process that was forked remembers where there was nothing
    files: dict[str, bytes] = {}
    sources: dict[str, bytes] = {}
    waiting, known, lying_in = list(modules), set(modules) | _OWN | sys.stdlib_module_names, set[Path]()
    while waiting:
        module = waiting.pop(0)
        spec = _spec(module)
        own = _own(spec)
        files = {**own, **files}
        if module in _OWN:
            continue
        lying_in |= folders_of(spec)
        sources |= own
        imported = top_level_imports(own) - known
        beside = {name for name in imported if folders_of(found_module(name)) & lying_in}
        waiting += sorted(beside)
        known |= beside
    data = _data(lying_in, data_beside(sources), {PurePosixPath(name).parts[0] for name in files})
    folders = {folder for name in files if name.endswith(".py") for folder in PurePosixPath(name).parents}
    packages = {f"{folder}/__init__.py": b"" for folder in folders - {PurePosixPath()}}
    texts = {name: text.encode() for name, text in sql.items()}
    twice = next((name for name, text in texts.items() if files.get(name, text) != text), None)
    if twice is not None:
        raise Misconfigured.of("code.sql_file_twice", twice=twice)
    stored = {name_in_archive(path): content for path, content in applications.items()}
    return Archive({**packages, **data, **files, **texts, **stored})


def folders_of(spec: ModuleSpec | None) -> set[Path]:
    """Return the folders of the path in which a top-level module lies, without those of installed packages."""
    if spec is None:
        return set()
    found = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    return {Path(each).parent for each in found} - {
        Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages")
    }


def _data(folders: Iterable[Path], beside: DataBeside, packed: Set[str]) -> dict[str, bytes]:
    """Return the files beside modules that these read, from folders of the path; `packed` are not looked for again."""
    if beside == DataBeside():
        return {}

    def is_wanted(name: str) -> bool:
        return name not in packed and not name.endswith(".py") and beside.has(name)

    def files() -> Iterator[tuple[str, bytes]]:
        for folder in sorted(folders):
            if folder.is_dir():  # and no zip, in which nothing can be read by its place
                yield from _Walk(folder).contents(is_wanted)

    found = _packed("the folder of the pipeline's modules", files)
    return {name: content for name, content in found.items() if not name.endswith(".py")}  # those are imported


def _own(spec: ModuleSpec) -> dict[str, bytes]:
    """Return the files of a module. Raises Misconfigured for one that cannot be packed, and Retryable."""
    return _packed(f"the pipeline's module {spec.name!r}", lambda: _files(spec))


def _packed(owner: str, files: Callable[[], Iterator[tuple[str, bytes]]]) -> dict[str, bytes]:
    for _ in range(_LOOKS):
        try:
            return {_encodable(name): content for name, content in files()}
        except (FileNotFoundError, NotADirectoryError) as error:
            gone = error
        except OSError as error:
            raise Misconfigured.of("code.file_unreadable", owner=owner, error=error) from error
    missing = Path(str(gone.filename))
    if missing.is_symlink():
        raise Misconfigured.of(
            "code.link_leads_nowhere", owner=owner, missing=str(missing), target=str(missing.readlink())
        ) from gone
    raise Retryable.of("code.file_vanished", owner=owner, gone=gone) from gone


def _encodable(name: str) -> str:
    """Return a name that a zip can have. Raises Misconfigured."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise Misconfigured.of("code.file_name_not_utf8", name=name) from error
    return name


def _files(spec: ModuleSpec) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of a module's files, as an archive has them: those of the first location last."""
    if spec.submodule_search_locations is None:
        origin = Path(str(spec.origin))
        yield origin.name, _read(origin)
        return
    for location in reversed(list(spec.submodule_search_locations)):  # Python takes the first one
        for inside, content in _below(Path(location)):
            yield f"{spec.name}/{inside}", content


def _is_left_out(name: str) -> bool:
    """Report whether a file or folder is no part of a package: hidden ones, such as .env, and what editors leave."""
    return name in ("__pycache__", "lost+found") or name.startswith(".") or name.endswith(("~", ".pyc"))


def _below(folder: Path) -> Iterator[tuple[str, bytes]]:
    zipped = _zip_of(folder)
    if zipped is None:
        yield from _Walk(folder).contents()
        return
    prefix = f"{folder.relative_to(zipped).as_posix()}/"
    with zipfile.ZipFile(zipped) as archive:
        for name in archive.namelist():
            inside = name.removeprefix(prefix)
            if inside != name and not name.endswith("/") and not any(map(_is_left_out, inside.split("/"))):
                yield inside, archive.read(name)


@dataclass(slots=True)
class _Walk:
    """A walk through a folder, and what is linked in it; `copied` counts bytes that no package has itself."""

    folder: Path
    copied: int = 0

    def contents(self, beside: Callable[[str], bool] | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield the files by their names below the folder: all, or those of the names that are read beside modules.

        Raises Misconfigured, and OSError.
        """
        for path in self._paths(self.folder, frozenset(), None, beside):
            yield path.relative_to(self.folder).as_posix(), path.read_bytes()

    def _paths(
        self,
        folder: Path,
        above: frozenset[tuple[int, int]],
        source: Path | None,
        beside: Callable[[str], bool] | None = None,
    ) -> Iterator[Path]:
        """Yield the files of a folder; `source` is the linked folder, or that beside modules, to which it belongs."""
        found = folder.stat()
        identity = (found.st_dev, found.st_ino)
        if identity in above:
            raise Misconfigured.of("code.link_without_end", source=source)
        with os.scandir(folder) as entries:
            wanted = [each for each in entries if not _is_left_out(each.name) and (not beside or beside(each.name))]
        for entry in wanted:
            path = Path(entry.path)
            is_source = beside is not None or (entry.is_symlink() and entry.is_dir())
            place = path if is_source else source
            if entry.is_dir():
                yield from self._paths(path, above | {identity}, place)
            elif entry.is_file():
                if place is not None:
                    self._count(entry, place)
                yield path
            elif entry.is_symlink():
                path.stat()  # there is nothing, or what is neither file nor folder

    def _count(self, entry: os.DirEntry[str], source: Path) -> None:
        self.copied += entry.stat().st_size
        if self.copied > MOST_COPIED:
            raise Misconfigured.of("code.too_large", source=source, limit=format_size(MOST_COPIED), folder=self.folder)


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


def found_module(module: str) -> ModuleSpec | None:
    """Return where Python finds a top-level module; None where it does not."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _spec(module: str) -> ModuleSpec:
    spec = found_module(module)
    if spec is None or (spec.submodule_search_locations is None and not _is_file(Path(str(spec.origin)))):
        raise Misconfigured.of("code.module_not_here", module=module)
    return spec


def _is_file(path: Path) -> bool:
    return path.is_file() or _zip_of(path) is not None
