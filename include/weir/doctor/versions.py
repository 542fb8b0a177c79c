"""The versions of what is installed together.

Invariant: nothing is imported for it: a broken pyspark is told of, not tripped over.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from weir.doctor.examination import Finding, ok, problem, warning

AREA = "versions"
PYTHON = "python"
PYSPARK_FILES = "files of pyspark"
"""What the files in the folder `pyspark` say, whichever distribution wrote them last."""

OLDEST_PYTHON = (3, 11)
AIRFLOW = (3, 3)
OLDEST_SPARK = (4, 0)
REINSTALL_PYSPARK = (
    "pip uninstall -y pyspark-client && pip install --force-reinstall --no-deps pyspark=={version}   "
    "(uv: override-dependencies = [\"pyspark-client; sys_platform == 'never'\"])"
)

_DISTRIBUTIONS = (
    "apache-airflow-core",
    "apache-airflow-providers-apache-spark",
    "pyspark",
    "pyspark-client",
    "fsspec",
    "s3fs",
    "pandas",
    "pyarrow",
    "SQLAlchemy",
    "psycopg2-binary",
    "psycopg2",
    "weir",
)


def installed_versions() -> dict[str, str]:
    """The versions of Python, of what Weir works with, and of pyspark's own files; what is absent is left out."""
    found = {name: version for name in _DISTRIBUTIONS if (version := _version(name)) is not None}
    files = _pyspark_files_version()
    return {
        PYTHON: ".".join(map(str, sys.version_info[:3])),
        **found,
        **({} if files is None else {PYSPARK_FILES: files}),
    }


def judge_versions(found: Mapping[str, str]) -> Iterator[Finding]:
    """Judge what `installed_versions` answers."""
    yield _python(found[PYTHON])
    yield _airflow(found.get("apache-airflow-core"))
    yield _pyspark(found)
    yield from _client(found)
    yield _provider(found.get("apache-airflow-providers-apache-spark"))
    yield _pandas(found.get("pandas"))
    yield _fsspec(found)


def _python(version: str) -> Finding:
    if _numbers(version) >= OLDEST_PYTHON:
        return ok(AREA, "Python", version)
    return problem(
        AREA, "Python", version, expected="3.11 or newer", mend="install Weir with a newer Python, everywhere alike"
    )


def _airflow(version: str | None) -> Finding:
    if version is not None and _numbers(version) == AIRFLOW:
        return ok(AREA, "Airflow", version)
    expected, mend = "3.3", "pip install 'apache-airflow==3.3.2'"
    if version is None:
        return problem(AREA, "Airflow", "not installed in this environment", expected=expected, mend=mend)
    if _numbers(version) < AIRFLOW:
        return problem(AREA, "Airflow", version, expected=expected, mend=mend)
    return warning(
        AREA, "Airflow", version, expected=f"{expected}, with which Weir is tested", mend=f"try it, or {mend}"
    )


def _pyspark(found: Mapping[str, str]) -> Finding:
    recorded, files = found.get("pyspark"), found.get(PYSPARK_FILES)
    if recorded is None:
        mend = "pip install 'pyspark[connect]==4.3.0'"
        return problem(AREA, "pyspark", "not installed in this environment", expected="4.0 or newer", mend=mend)
    if files != recorded:
        text = f"{recorded} by its record, but its files are of {files or 'no version'}"
        mend = REINSTALL_PYSPARK.format(version=recorded)
        return problem(AREA, "pyspark", text, expected="one version", mend=mend)
    if _numbers(recorded) < OLDEST_SPARK:
        return problem(AREA, "pyspark", recorded, expected="4.0 or newer", mend="pip install 'pyspark[connect]==4.3.0'")
    return ok(AREA, "pyspark", recorded)


def _client(found: Mapping[str, str]) -> Iterator[Finding]:
    """A hundred files of pyspark-client and pyspark differ; which are there depends on the order of installing."""
    client, full = found.get("pyspark-client"), found.get("pyspark")
    if client is None or full is None or client == full:
        return
    yield problem(
        AREA,
        "pyspark-client",
        f"{client} is installed over pyspark {full}",
        expected="none, or the same version: both write the same files",
        mend=REINSTALL_PYSPARK.format(version=full),
    )


def _provider(version: str | None) -> Finding:
    if version is not None and _numbers(version) >= (6, 0):
        return ok(AREA, "provider of Spark", version)
    return problem(
        AREA,
        "provider of Spark",
        version or "not installed in this environment",
        expected="apache-airflow-providers-apache-spark 6 or newer",
        mend="pip install 'apache-airflow-providers-apache-spark>=6'; it brings pyspark-client: "
        "`weir doctor` afterwards",
    )


def _pandas(version: str | None) -> Finding:
    if version is None or _numbers(version) < (3, 0):
        return ok(AREA, "pandas", version or "not installed, and not needed")
    return warning(
        AREA, "pandas", version, expected="older than 3, which Spark is not tested with", mend="pip install 'pandas<3'"
    )


def _fsspec(found: Mapping[str, str]) -> Finding:
    version, s3fs = found.get("fsspec"), found.get("s3fs")
    if version is None:
        return problem(AREA, "fsspec", "not installed in this environment", expected="any", mend="pip install fsspec")
    if s3fs is not None and s3fs != version:
        return warning(
            AREA,
            "fsspec",
            f"{version} with s3fs {s3fs}",
            expected="the same version of both: they are released together",
            mend=f"pip install 'fsspec=={s3fs}'",
        )
    return ok(AREA, "fsspec", version if s3fs is None else f"{version}, and s3fs of the same")


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pyspark_files_version() -> str | None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "version.py"
    found = re.search(r"""__version__\s*(?::\s*str\s*)?=\s*["']([^"']+)""", file.read_text()) if file.exists() else None
    return found[1] if found else None
