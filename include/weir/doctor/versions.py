"""The versions of installed packages. Invariant: none of them is imported, so that a broken one is reported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from weir.doctor.examination import Finding, ok, problem, warning

AREA: Final = "versions"
PYTHON: Final = "python"
PYSPARK_FILES: Final = "files of pyspark"
"""The version in the files of the folder `pyspark`, whichever distribution wrote them last."""

_AIRFLOW: Final = "apache-airflow-core"
_PROVIDER: Final = "apache-airflow-providers-apache-spark"
_INSTALLED: Final = (_AIRFLOW, _PROVIDER, "pyspark", "pyspark-client")
_REINSTALL_PYSPARK: Final = (
    "pip uninstall -y pyspark-client && pip install --force-reinstall --no-deps pyspark=={version}   "
    "(uv: override-dependencies = [\"pyspark-client; sys_platform == 'never'\"])"
)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, of what Weir works with, and of pyspark's files; without what is absent."""
    found = {name: version for name in _INSTALLED if (version := _version(name)) is not None}
    files = _version_in_pyspark_files()
    python = ".".join(map(str, sys.version_info[:3]))
    return {PYTHON: python, **found, **({} if files is None else {PYSPARK_FILES: files})}


def version_findings(found: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the result of `installed_versions`."""
    yield _at_least(found.get(PYTHON), (3, 11), "Python", "install Weir with a newer Python, everywhere alike")
    yield _airflow(found.get(_AIRFLOW))
    yield from _pyspark(found)
    mend = "pip install 'apache-airflow-providers-apache-spark>=6'; run `weir doctor` again: it brings pyspark-client"
    yield _at_least(found.get(_PROVIDER), (6, 0), "provider of Spark", mend)


def _at_least(version: str | None, oldest: tuple[int, int], name: str, mend: str) -> Finding:
    if version is not None and _numbers(version) >= oldest:
        return ok(AREA, name, version)
    expected = f"{oldest[0]}.{oldest[1]} or newer"
    return problem(AREA, name, version or "not installed in this environment", expected=expected, mend=mend)


def _airflow(version: str | None) -> Finding:
    mend = "pip install 'apache-airflow==3.3.2'"
    if version is None or _numbers(version) <= (3, 3):
        return _at_least(version, (3, 3), "Airflow", mend)
    return warning(AREA, "Airflow", version, expected="3.3, with which Weir is tested", mend=f"try it, or {mend}")


def _pyspark(found: Mapping[str, str]) -> Iterator[Finding]:
    """Judge pyspark; pyspark-client overwrites a hundred of its files, depending on the order of installation."""
    recorded, files, client = found.get("pyspark"), found.get(PYSPARK_FILES), found.get("pyspark-client")
    if recorded is None or files == recorded:
        yield _at_least(recorded, (4, 0), "pyspark", "pip install 'pyspark[connect]==4.3.0'")
    else:
        text = f"{recorded} is installed, but its files are of {files or 'no version'}"
        yield problem(AREA, "pyspark", text, expected="one version", mend=_REINSTALL_PYSPARK.format(version=recorded))
    if recorded is not None and client not in {None, recorded}:
        yield problem(
            AREA,
            "pyspark-client",
            f"{client} is installed over pyspark {recorded}",
            expected="none, or the same version: both write the same files",
            mend=_REINSTALL_PYSPARK.format(version=recorded),
        )


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_in_pyspark_files() -> str | None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "version.py"
    found = re.search(r"""__version__\s*(?::\s*str\s*)?=\s*["']([^"']+)""", file.read_text()) if file.exists() else None
    return found[1] if found else None
