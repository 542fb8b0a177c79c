"""The pins of `requirements.lock`, and the parts of them that a deployment and a checkout need.

    python include/weir_dev/requirements.py requirements.lock > runtime.txt
    python include/weir_dev/requirements.py requirements.lock --checkout > commands.txt
    python include/weir_dev/requirements.py requirements.lock setuptools > build.txt

Run as a script before anything is installed, in an image or by the launcher: standard library only.
Invariant: a pin is passed on as it stands in the lock, with its marker and its hashes, or not at all.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


PROJECT: Final = "weir (pyproject.toml)"
"""The lock's name for the requirer of `[project] dependencies` and extras."""
STACK: Final = "weir (pyproject.toml:stack)"
"""The same for the group that the examples and the image need besides."""
SERVER: Final = "weir (pyproject.toml:server)"
"""The same for the group that the local stack needs besides."""
BUILD: Final = "setuptools"
"""Builds the project where it is installed."""

_PINS: Final = re.compile(r"(?m)^[A-Za-z0-9].*\n(?:[ \t].*\n?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_REQUIRED_BY: Final = re.compile(r"(?m)^ +#(?: via)? +(?!via$)(\S.*)$")


def main(arguments: Sequence[str]) -> None:
    """Print the pins of the packages that are named, or else of all that a run, or any command of a checkout, needs."""
    path, *names = arguments
    lock = Path(path).read_text()
    if not re.search(rf"{re.escape(PROJECT)}$", lock, re.MULTILINE):
        sys.exit(f"{path} does not say which packages {PROJECT} requires: make it anew, with annotations")
    wanted = checkout(lock) if names == ["--checkout"] else set(names) or runtime(lock)
    found = [pin for pin in _PINS.findall(lock) if _name(pin) in wanted]
    if missing := wanted - {_name(pin) for pin in found}:
        sys.exit(f"{path} does not pin {', '.join(sorted(missing))}: make it anew, with the development group")
    sys.stdout.write("".join(found))


def runtime(lock: str) -> set[str]:
    """The names of the packages that the project and its examples require, and those that they require in turn."""
    return _required_by(lock, PROJECT, STACK)


def checkout(lock: str) -> set[str]:
    """The names of the packages that a checkout's commands but `test` need, and those that they require in turn."""
    return _required_by(lock, PROJECT, STACK, SERVER) | {BUILD}


def _required_by(lock: str, *roots: str) -> set[str]:
    required_by: dict[str, set[str]] = {}
    for pin in _PINS.findall(lock):
        # A package may be pinned more than once, for different versions of Python.
        required_by.setdefault(_name(pin), set()).update(_REQUIRED_BY.findall(pin))
    found: set[str] = set()
    newest = set(roots)
    while newest:
        newest = {name for name, parents in required_by.items() if parents & newest} - found
        found |= newest
    return found


def _name(pin: str) -> str:
    name, *_ = _NAME.findall(pin)
    return str(name)


if __name__ == "__main__":
    main(sys.argv[1:])
