"""Imports the pipeline's modules from a job's archive, here and where the session's workers run.

Invariant: what runs is what the job names: all modules of the archive's packages lie in the folder that this archive
was unpacked into. A package that this process has imported from elsewhere, for a source's resolver for example, is
imported anew.

A Connect server lives longer than a module's text. Spark gives every session its own Python workers once it has
artifacts, and puts these before everything installed there, so that an edited function runs in its new form.
"""

from __future__ import annotations

import atexit
import importlib
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from weir.code.archive import Archive, archive_of
from weir.errors import Internal, Misconfigured
from weir.formats.region_job import CodeToRun
from weir.store.errors import NotFound
from weir.store.store import Store
from weir_spark.session import is_remote


@dataclass(frozen=True, slots=True)
class Imported:
    """The archive that this process imports from, in the folder that it was unpacked into."""

    archive: Archive
    folder: Path

    def require_all(self) -> None:
        """Check that every module of the archive's packages lies in its folder. Raises Internal."""
        for name, module in _modules_of(self.archive).items():
            found = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", ()))
            if not all(Path(str(each)).is_relative_to(self.folder) for each in found):
                raise Internal(
                    f"the module {name} was imported from {found}, not from archive {self.archive.fingerprint[:16]} "
                    f"in {self.folder}: does the pipeline change sys.path? Nothing was committed"
                )


_imported: list[Imported] = []
"""The one of this process, if any."""


def read_archive(code: CodeToRun, store: Store) -> Archive:
    """Read a job's archive from the store. Raises Misconfigured if it is gone or damaged, and Retryable."""
    try:
        return archive_of(store.read(code.path), code.archive)
    except (NotFound, ValueError) as error:
        raise Misconfigured(
            f"the code of this attempt (version {code.version[:20]}) is lost: {code.path}: {error}. Clear a subtask of "
            "this stage in Airflow, which runs the whole stage with the code that is deployed"
        ) from error


def import_from(archive: Archive) -> Imported:
    """Have this process import the archive's modules from it, and no others of their names."""
    if _imported and _imported[0].archive.fingerprint == archive.fingerprint:
        return _imported[0]
    _forget_imported()
    folder = Path(tempfile.mkdtemp(prefix="weir-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in archive.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in _modules_of(archive):
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    found = Imported(archive, folder)
    _imported.append(found)
    return found


def _forget_imported() -> None:
    """Forget the archive before: one process may run several jobs, as tests do."""
    while _imported:
        before = _imported.pop()
        for name in _modules_of(before.archive):
            del sys.modules[name]
        sys.path[:] = [entry for entry in sys.path if entry != str(before.folder)]
        shutil.rmtree(before.folder, ignore_errors=True)


def _modules_of(archive: Archive) -> dict[str, ModuleType]:
    """Return the imported modules that have a name of the archive's packages."""
    names = archive.top_level
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}


def ship(session: SparkSession, archive: Archive) -> None:
    """Add the archive's modules to a session."""
    if not archive.files:
        return
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
