"""The versions of installed packages. Invariant: none of them is imported, so that a broken one is reported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from weir.doctor import table
from weir.doctor.examination import Finding, Item

PYTHON: Final = "python"
PYSPARK_FILES: Final = "files of pyspark"
"""The version in the files of the folder `pyspark`, whichever distribution wrote them last."""

_AIRFLOW: Final = "apache-airflow-core"
_PROVIDER: Final = "apache-airflow-providers-apache-spark"
_EXTRAS: Final = {
    "connect": "pyspark-client",
    "local": "pyspark",
    "submit": _PROVIDER,
    "quality": "great-expectations",
    "postgres": "psycopg2-binary",
    "s3": "s3fs",
    "delta": "deltalake",
    "iceberg": "pyiceberg",
    "kafka": "confluent-kafka",
}
"""The distribution by which an extra is recognised."""

_INSTALLED: Final = (_AIRFLOW, *_EXTRAS.values())


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, of what Weir works with, and of pyspark's files; without what is absent."""
    found = {name: version for name in _INSTALLED if (version := version_of(name)) is not None}
    files = _version_in_pyspark_files()
    python = ".".join(map(str, sys.version_info[:3]))
    return {PYTHON: python, **found, **({} if files is None else {PYSPARK_FILES: files})}


def version_findings(found: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the result of `installed_versions`."""
    yield _at_least(table.PYTHON, found.get(PYTHON), (3, 11))
    yield _airflow(found.get(_AIRFLOW))
    yield from _pyspark(found)
    if _PROVIDER in found:
        yield _at_least(table.SPARK_PROVIDER, found[_PROVIDER], (6, 0))
    yield _extras(found)
    yield from range_findings()


def package_findings(store: str, ledger: str) -> Iterator[Finding]:
    """Report packages that the store or the ledger at a URL needs, and that are not installed."""
    needed = {
        "s3": ("s3fs", store.startswith(("s3:", "s3a:"))),
        "postgres": ("psycopg2", ledger.startswith("postgres")),
    }
    for extra, (module, is_needed) in needed.items():
        if is_needed and importlib.util.find_spec(module) is None:
            what = "the store is on S3" if extra == "s3" else "the ledger is in PostgreSQL"
            yield table.EXTRA.of(name=module).problem(f"not installed, and {what}", extra=extra)


def range_findings(distribution: str = "weir") -> Iterator[Finding]:
    """Report installed packages whose versions a distribution does not allow, also those of its extras."""
    found = map(Requirement, _requirements(distribution))
    for required in {(each.name, each.specifier): each for each in found}.values():  # several extras may bring one
        version = version_of(required.name)
        if required.name in {"apache-airflow", "pyspark", "pyspark-client"} or version is None:
            continue
        if not required.specifier.contains(version, prereleases=True):
            item = table.REQUIREMENT.of(name=required.name)
            yield item.problem(version, name=required.name, range=required.specifier)


def _requirements(distribution: str) -> list[str]:
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # the modules are on the path, and nothing is installed
        return []


def _extras(found: Mapping[str, str]) -> Finding:
    there = [extra for extra, package in _EXTRAS.items() if package in found]
    missing = [extra for extra in _EXTRAS if extra not in there]
    lacking = f"; not installed: {', '.join(missing)}" if missing else ""
    return table.EXTRAS.ok(f"{', '.join(there) or 'none'}{lacking}")


def _at_least(item: Item, version: str | None, oldest: tuple[int, int]) -> Finding:
    if version is not None and _numbers(version) >= oldest:
        return item.ok(version)
    return item.problem(version or "not installed in this environment", oldest=f"{oldest[0]}.{oldest[1]}")


def _airflow(version: str | None) -> Finding:
    if version is None or _numbers(version) <= (3, 3):
        return _at_least(table.AIRFLOW, version, (3, 3))
    return table.NEWER_AIRFLOW.warning(version)


def _pyspark(found: Mapping[str, str]) -> Iterator[Finding]:
    """Judge pyspark; pyspark-client overwrites a hundred of its files, depending on the order of installation."""
    recorded, files, client = found.get("pyspark"), found.get(PYSPARK_FILES), found.get("pyspark-client")
    if recorded is None and client is not None:
        yield _at_least(table.PYSPARK_CLIENT, client, (4, 2))
    elif recorded is None or files == recorded:
        yield _at_least(table.PYSPARK, recorded, (4, 2))
    else:
        differ = f"{recorded} is installed, but its files are of {files or 'no version'}"
        yield table.FILES_OF_PYSPARK.problem(differ, version=recorded)
    if recorded is not None and client not in {None, recorded}:
        yield table.TWO_PYSPARKS.problem(f"{client} is installed over pyspark {recorded}", version=recorded)


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution; None where it is not installed."""
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
