"""Finds the modules that an archive's import, and that no archive and no version of a distribution tells of.

They lie in other folders of Python's path (Airflow's `plugins`), or are installed from a folder in which they are
edited: they may differ while code, packages and settings are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from weir.code.archive import folders_of, found_module, pack
from weir.code.syntax import top_level_imports, top_level_of

_COMPARED: Final = frozenset({"weir", "weir_spark", "weir_airflow", "pyspark", "py4j"})
"""Weir's own modules, which take no results of another format, and Spark's, whose version is compared."""


def modules_elsewhere(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of the modules that those of an archive import from elsewhere, themselves or by others.

    Raises Misconfigured for one that cannot be read, and Retryable.
    """
    found, new = dict[str, bytes](), files
    known = {*map(top_level_of, files)} | _COMPARED | sys.stdlib_module_names
    while names := top_level_imports(new) - known:
        known |= names
        new = {}
        for name in sorted(names):
            if any(name not in _installed_in(folder) for folder in folders_of(found_module(name))):
                packed = pack([name]).files
                new |= {path: content for path, content in packed.items() if path not in files}
        found |= new
    return found


def _installed_in(folder: Path) -> Iterator[str]:
    """Yield the top-level names that distributions have installed into a folder."""
    for each in distributions(path=[str(folder)]):
        # A project's own folder may have an egg-info, which lists its files, too, and says nothing of their content.
        for line in (each.read_text("RECORD") or "").splitlines():
            yield top_level_of(line.partition(",")[0])
