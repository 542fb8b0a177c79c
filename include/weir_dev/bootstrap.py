"""Make `.venv` what `requirements.lock` says, then start the command line in it.

Run as a script by the launcher, by any Python >= 3.11, before anything is installed: standard library only.
Invariant: a `.venv` without its stamp is never used; the stamp is removed before `.venv` is touched and written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


STAMP_NAME: Final = ".weir-installed.json"
FORMAT: Final = 1
PIP: Final = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
_PROGRESS_EVERY_SECONDS: Final = 5.0

_ASTRAY: Final = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT"}
"""Settings of a person's own that would have pip install into another place, or other things."""


class InstallError(Exception):
    """The installation failed; the message says where to read why."""


def main(arguments: Sequence[str]) -> None:
    """Install what is missing, then become the command line, or pytest for `test`."""
    root, verb = Path(arguments[0]), arguments[1:]
    try:
        python = ensure_installed(root, install)
    except InstallError as error:
        sys.exit(f"weir: {error}")
    except KeyboardInterrupt:
        sys.exit("\nweir: interrupted; the installation starts anew the next time")
    if verb[:1] == ["test"]:
        os.chdir(root)
        command = ["-m", "pytest", "-n", "auto", *verb[1:]]  # how many that is: tests/schedule.py
    else:
        command = ["-m", "weir_dev.main", *verb]
    sys.stdout.flush()
    os.execv(python, [str(python), *command])  # noqa: S606  no shell is wanted


def ensure_installed(root: Path, installer: Callable[[Path, Path, bool], None]) -> Path:
    """Return the Python of a `.venv` that is whole and up to date; the installer is called if it is not.

    Only one process installs at a time; others wait and then find it done.
    """
    venv = root / ".venv"
    wanted = fingerprints(root)
    if installed(venv) == wanted:
        return _python(venv)
    with _alone(root):
        found = installed(venv)
        if found != wanted:
            only_project = found is not None and found["lock"] == wanted["lock"]
            (venv / STAMP_NAME).unlink(missing_ok=True)
            installer(root, venv, only_project)
            _write_stamp(venv, wanted)
    return _python(venv)


def fingerprints(root: Path) -> dict[str, str]:
    """What an installation is made from."""
    return {
        "format": str(FORMAT),
        # An editable install holds the checkout's path, and so does a virtual environment.
        "root": str(root),
        "lock": _sha256(root / "requirements.lock"),
        "project": _sha256(root / "pyproject.toml"),
    }


def installed(venv: Path) -> dict[str, str] | None:
    """What `venv` was made from; None if it is not whole, was moved, or its Python is gone."""
    try:
        stamp = json.loads((venv / STAMP_NAME).read_text())
    except (OSError, ValueError):
        return None
    is_usable = isinstance(stamp, dict) and stamp.get("root") == str(venv.parent) and _python(venv).exists()
    return stamp if is_usable else None


def install(root: Path, venv: Path, only_project: bool) -> None:  # noqa: FBT001  called by ensure_installed alone
    """Make the virtual environment from nothing, or only install the project anew."""
    log_path = root / ".weir" / "install.log"
    log_path.parent.mkdir(exist_ok=True)
    with log_path.open("w") as log:
        _install(root, venv, log, only_project=only_project)


def _install(root: Path, venv: Path, log: IO[str], *, only_project: bool) -> None:
    lock = root / "requirements.lock"
    python = str(_python(venv))
    if not only_project:
        total = len(re.findall(r"(?m)^[A-Za-z0-9]", lock.read_text()))
        tell(f"weir: installing {total} packages into {venv}, once; about two minutes")
        shutil.rmtree(venv, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(venv)], log)
        # Some packages come as sources: they are built with the setuptools that the lock names.
        tools = venv / "build-requirements.txt"
        tools.write_text(requirement(lock.read_text(), "setuptools"))
        _run([python, *PIP, "--require-hashes", "-r", str(tools)], log)
        _run([python, *PIP, "--require-hashes", "-r", str(lock)], log, Progress(total))
    _run([python, *PIP, "-e", str(root)], log)
    _write_paths(root, venv)
    tell("weir: installed")


def requirement(lock: str, package: str) -> str:
    """The part of a lock file that pins one package."""
    found = re.search(rf"(?m)^{re.escape(package)}==(?:.*\\\n)*.*\n?", lock)
    if found is None:
        raise InstallError(f"requirements.lock does not pin {package}: make it anew, with the development group")
    return found[0]


def tell(text: str, end: str = "\n") -> None:
    """Print for whoever watches the installation, on stderr: stdout is for what the command itself answers.

    That nobody watches any more (`2>&1 | head`) does not end the installation.
    """
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except BrokenPipeError:
        # The text that could not be written is still held, and would fail again when this process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


class Progress:
    """Counts the packages that pip names: on one line of a terminal, or every few seconds elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen = 0
        self._shown_at = 0.0
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Take a line of pip's output."""
        words = text.split()
        if text.startswith(("Collecting ", "Processing ", "Requirement already")):
            self._seen += 1
            self._show(f"{min(self._seen, self._total)}/{self._total} {words[1].rpartition('/')[2]}")
        elif text.startswith(("Building wheel", "  Building wheel", "Installing collected")):
            self._show(" ".join(words[:6]).rstrip(",:"), now=True)

    def _show(self, what: str, *, now: bool = False) -> None:
        if self._is_terminal:
            tell(f"\r\033[Kweir: {what[:100]}", end="")
        elif now or time.monotonic() - self._shown_at > _PROGRESS_EVERY_SECONDS:
            self._shown_at = time.monotonic()
            tell(f"weir: {what[:100]}")

    def close(self) -> None:
        """Leave the line."""
        if self._is_terminal:
            tell("\r\033[K", end="")


def _run(command: list[str], log: IO[str], progress: Progress | None = None) -> None:
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    environment = {key: value for key, value in os.environ.items() if key not in _ASTRAY}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            for line in process.stdout or ():
                log.write(line)
                if progress is not None:
                    progress.line(line)
        except BaseException:
            process.terminate()
            raise
    if progress is not None:
        progress.close()
    if process.returncode != 0:
        log.flush()
        end = "\n".join(Path(log.name).read_text().splitlines()[-15:])
        raise InstallError(
            f"`{' '.join(command[:5])} ...` failed with status {process.returncode}. The end of {log.name}:\n{end}\n"
            "weir: mend that, then type the same command again"
        )


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    path = root / ".weir" / "install.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("weir: another process is installing; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_paths(root: Path, venv: Path) -> None:
    """Have the checkout's own packages found, which no wheel carries: the development tools and the examples."""
    for packages in venv.glob("lib/python*/site-packages"):
        (packages / "weir_checkout.pth").write_text(f"{root / 'include'}\n{root / 'spark_jobs'}\n")


def _write_stamp(venv: Path, made_from: dict[str, str]) -> None:
    temporary = venv / f"{STAMP_NAME}.new"
    temporary.write_text(json.dumps(made_from, indent=1) + "\n")
    temporary.replace(venv / STAMP_NAME)


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
