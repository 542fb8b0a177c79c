"""Imports the pipeline's modules from a job's archive, here and where the session's workers run.

Invariant: what runs is what the job names: all modules of the archive's packages lie in the folder that this archive
was unpacked into. A package that this process has imported from elsewhere, for a source's resolver for example, is
imported anew.

A Connect server lives longer than a module's text. Spark gives every session its own Python workers once it has
artifacts, and puts these before everything installed there, so that an edited function runs in its new form.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import re
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pyspark.errors import PySparkException, QueryContextType
from pyspark.sql import SparkSession

from weir.code.archive import Archive
from weir.errors import Misconfigured

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in ', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Imported:
    """An archive that this process imports from: its zip, and the folder that it was unpacked into."""

    archive: Archive
    zip: Path
    modules: Path

    def ship(self, session: SparkSession) -> None:
        """Add the modules to a session, for its workers."""
        if self.archive.files:
            session.addArtifacts(str(self.zip), pyfile=True)

    def keep_lines(self) -> None:
        """Have tracebacks show lines of the modules, also once their folder is deleted."""
        for name, content in self.archive.files.items():
            if name.endswith(".py"):
                path, lines = str(self.modules / name), content.decode(errors="replace").splitlines(keepends=True)
                linecache.cache[path] = (len(content), None, lines, path)

    def place_of(self, error: BaseException) -> str:
        """Return the file, the line and its text from which an error comes; empty where no module is known to have it.

        Spark names the line of a DataFrame's plan, or has the traceback of a worker; else it is the last one of the
        error's own traceback.
        """
        site = self.site_of(error)
        if site is None:
            return ""
        name, line = site
        return f"{name}, line {line}: {linecache.getline(str(self.modules / name), line).strip()}"

    def site_of(self, error: BaseException) -> tuple[str, int] | None:
        """Return the file of a module, and the line in it, from which an error comes."""
        frames = traceback.extract_tb(error.__traceback__)
        for site in (*_call_sites(error), *(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))):
            path, _, line = site.rpartition(":")
            name = self._name_of(path)
            if line.isdigit() and name in self.archive.files:
                return name, int(line)
        return None

    def _name_of(self, path: str) -> str:
        """Return a module's file as the archive has it; workers import it from the archive's zip."""
        if Path(path).is_relative_to(self.modules):
            return Path(path).relative_to(self.modules).as_posix()
        return path.partition(f"{self.zip.name}/")[2]

    def has(self, site: tuple[str, int], reference: str) -> bool:
        """Report whether a line is one of a function ("module:function")."""
        module, _, function = reference.partition(":")
        name, line = site
        if name not in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
            return False
        parsed = ast.parse(self.archive.files[name])
        found = (each for each in parsed.body if isinstance(each, ast.FunctionDef) and each.name == function)
        return any(each.lineno <= line <= (each.end_lineno or each.lineno) for each in found)

    def require_all(self) -> None:
        """Check that every imported module of the archive's packages lies in its folder. Raises Misconfigured."""
        for name, module in _modules_of(self.archive).items():
            file = getattr(module, "__file__", None)
            found = [file] if file else list(getattr(module, "__path__", ()))
            if not all(Path(each).is_relative_to(self.modules) for each in found):
                raise Misconfigured.of(
                    "region.module_from_elsewhere",
                    name=name,
                    found=found,
                    fingerprint=self.archive.fingerprint[:16],
                )


@contextmanager
def imported_from(archive: Archive) -> Iterator[Imported]:
    """Have this process import the archive's modules from it, and no others of their names, until the end."""
    archive = archive.modules
    before = _modules_of(archive)
    with tempfile.TemporaryDirectory(prefix="weir-code-", ignore_cleanup_errors=True) as folder:
        found = Imported(archive, Path(folder, archive.name), Path(folder, "modules"))
        found.zip.write_bytes(archive.data)
        with zipfile.ZipFile(found.zip) as zipped:
            zipped.extractall(found.modules)
        found.keep_lines()
        _forget(before)
        sys.path.insert(0, str(found.modules))
        importlib.invalidate_caches()
        try:
            yield found
        finally:
            sys.path[:] = [entry for entry in sys.path if not str(entry).startswith(folder)]
            _forget(_modules_of(archive))
            sys.modules.update(before)


def _call_sites(error: BaseException) -> list[str]:
    """Return "file:line" of the calls that have made a plan, and of the frames of a worker, the last one first."""
    if not isinstance(error, PySparkException):
        return []
    contexts = [each for each in error.getQueryContext() if each.contextType() is QueryContextType.DataFrame]
    frames = [f"{path}:{line}" for path, line in _FRAME.findall(str(error))]
    return [*(each.callSite() for each in contexts), *reversed(frames)]


def _forget(modules: Iterable[str]) -> None:
    for name in modules:
        sys.modules.pop(name, None)


def _modules_of(archive: Archive) -> dict[str, ModuleType]:
    """Return the imported modules that have a name of the archive's packages."""
    names = archive.top_level
    return {name: module for name, module in tuple(sys.modules.items()) if name.partition(".")[0] in names}
