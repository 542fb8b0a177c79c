"""Spells the paths of files as Spark does. Invariant: a path names one file, whatever characters are in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from weir.store.urls import spark_root

WHOLE: Mapping[str, str] = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options of Spark's reader with which each file is read, or the reading fails."""

_PATTERN = re.compile(r"[{}\[\]*?\\]")
"""What Spark takes for a pattern in a path; it has an option against that, which Spark Connect does not pass on."""


def is_hidden(path: str) -> bool:
    """Report whether Spark leaves out a file of this name, without a word."""
    return path.rpartition("/")[2].startswith(("_", "."))


def is_pattern(path: str) -> bool:
    """Report whether Spark takes a path for a pattern, unless it is escaped."""
    return _PATTERN.search(path) is not None


def is_lost_on_hadoop(path: str) -> bool:
    """Report whether Hadoop cannot have a path: it expands one with what it takes for a pattern, name by name.

    A name with a colon is a URL to it then.
    """
    return is_pattern(path) and ":" in path.partition("://")[2 if "://" in path else 0]


def spark_path(path: str) -> str:
    """Return the path or URL of one file as Spark spells it: a plain path is of a local disk, whatever its default."""
    escaped = _PATTERN.sub(r"\\\g<0>", path)
    if path.startswith("/"):
        return f"file://{escaped}"
    return spark_root(escaped) if "://" in path else escaped
