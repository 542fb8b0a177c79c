"""Install into `.venv` what `requirements.lock` pins, then start the command line in it.

The launcher runs this as a script, by the Python of `.venv` or, before anything is installed, by any Python >= 3.11:
standard library only. The Python of a current `.venv` is that of the command: no other one is started.
`uv` installs if it is on the PATH, else pip. Both take only files whose hashes are in the lock.
Invariant: a `.venv` without its stamp is never used; the stamp is removed before `.venv` is touched and written last.
"""

from __future__ import annotations

import compileall
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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


STAMP_NAME: Final = ".weir-installed.json"
FORMAT: Final = 1
INSTALL_VARIABLE: Final = "WEIR_INSTALL"
"""Tells the launcher not to use the Python of `.venv`, which is about to be replaced."""

PIP: Final = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
_PROGRESS_EVERY_SECONDS: Final = 5.0

_IGNORED: Final = {
    *("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE_NEWER"),
}
"""Settings of the user's environment that would change what is installed, or where."""


class InstallError(Exception):
    """The installation failed; the message has the end of its log."""


def main(arguments: Sequence[str]) -> None:
    """Install what is missing, then become the command line, or pytest for `test`."""
    root, verb = Path(arguments[0]), arguments[1:]
    venv = root / ".venv"
    is_asked_to_install = os.environ.pop(INSTALL_VARIABLE, "") != ""
    if Path(sys.prefix) == venv and not is_asked_to_install:
        if installed(venv) != fingerprints(root):
            os.environ[INSTALL_VARIABLE] = "1"
            os.execv(root / "weir", [str(root / "weir"), *verb])  # noqa: S606  no shell is wanted
        if verb[:1] != ["test"]:
            run_here(verb)
            return
    try:
        python = ensure_installed(root, install)
    except InstallError as error:
        sys.exit(f"weir: {error}\nweir: repair that, then type the same command again")
    except KeyboardInterrupt:
        sys.exit("\nweir: interrupted; the installation starts from the beginning the next time")
    if verb[:1] == ["test"]:
        os.chdir(root)
        command = ["-m", "pytest", "-n", "auto", *verb[1:]]  # how many that is: tests/schedule.py
    else:
        command = ["-m", "weir_dev.main", *verb]
    sys.stdout.flush()
    os.execv(python, [str(python), *command])  # noqa: S606  no shell is wanted


def run_here(verb: Sequence[str]) -> None:
    """Run the command line in this process, with the import path that `python -m` would give it."""
    if not sys.flags.safe_path:
        sys.path[0] = ""  # it was this script's folder, whose modules have names like `files` and `main`
    sys.argv = ["weir", *verb]
    import_module("weir_dev.main").app(prog_name="weir")


def ensure_installed(root: Path, installer: Callable[[Path, Path, bool], None]) -> Path:
    """Return the Python of a complete and current `.venv`; call the installer if it is not one.

    One process installs at a time; others wait, and then find it installed.
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
    """Return what an installation is made from, by digests."""
    return {
        "format": str(FORMAT),
        # An editable install holds the checkout's path, and so does a virtual environment.
        "root": str(root),
        "lock": _sha256(root / "requirements.lock"),
        "project": _sha256(root / "pyproject.toml"),
    }


def installed(venv: Path) -> dict[str, str] | None:
    """Return what `venv` was made from; None if it is incomplete, was moved, or its Python is gone."""
    try:
        stamp = json.loads((venv / STAMP_NAME).read_text())
    except (OSError, ValueError):
        return None
    is_usable = isinstance(stamp, dict) and stamp.get("root") == str(venv.parent) and _python(venv).exists()
    return stamp if is_usable else None


@dataclass(frozen=True)
class Tool:
    """The commands of an installer: make the environment, install a requirement, and install all of a lock file."""

    name: str
    make: tuple[str, ...]
    install: tuple[str, ...]
    sync: tuple[str, ...]


def pip(venv: Path) -> Tool:
    """Return the commands of pip, in an environment of its own."""
    install = (str(_python(venv)), *PIP)
    return Tool("pip", (sys.executable, "-m", "venv", str(venv)), install, (*install, "--require-hashes", "-r"))


def uv(program: str, venv: Path) -> Tool:
    """Return the commands of uv."""
    # Where a person has set several indexes, a pin may be in any of them, as with pip; hashes decide what is taken.
    into = ("--python", str(_python(venv)), "--no-build-isolation", "--index-strategy", "unsafe-best-match")
    return Tool(
        "uv",
        make=(program, "venv", "--python", sys.executable, str(venv)),
        install=(program, "pip", "install", *into, "--no-deps"),
        sync=(program, "pip", "sync", *into, "--require-hashes", "--compile-bytecode"),
    )


def install(root: Path, venv: Path, only_project: bool) -> None:  # noqa: FBT001  called by ensure_installed alone
    """Make the virtual environment from nothing, or only install the project again."""
    log_path = root / ".weir" / "install.log"
    log_path.parent.mkdir(exist_ok=True)
    program = shutil.which("uv")
    with log_path.open("w") as log:
        if program is not None:
            try:
                _install(root, venv, log, uv(program, venv), only_project=only_project)
            except InstallError as error:
                # Its settings are not pip's: a person may have set an index or a certificate for pip alone.
                tell(f"weir: {error}\nweir: trying pip instead of uv")
                only_project = False
            else:
                return
        _install(root, venv, log, pip(venv), only_project=only_project)


def _install(root: Path, venv: Path, log: IO[str], tool: Tool, *, only_project: bool) -> None:
    lock = root / "requirements.lock"
    # An environment that uv has made has no pip.
    if not only_project or (tool.name == "pip" and not (venv / "bin" / "pip").exists()):
        total = len(re.findall(r"(?m)^[A-Za-z0-9]", lock.read_text()))
        tell(f"weir: installing {total} packages into {venv} by {tool.name}, once; two to five minutes")
        shutil.rmtree(venv, ignore_errors=True)
        _run([*tool.make], log)
        # Packages that come as sources are built with the setuptools that the lock pins.
        build = venv / "build-requirements.txt"
        build.write_text(requirement(lock.read_text(), "setuptools"))
        _run([*tool.install, "--require-hashes", "-r", str(build)], log)
        _run([*tool.sync, str(lock)], log, Progress(total))
    _run([*tool.install, "-e", str(root)], log)
    _write_paths(root, venv)
    # Else each command compiles the modules that it imports, where PYTHONDONTWRITEBYTECODE is set.
    for packages in ("include", "plugins", "spark_jobs"):
        compileall.compile_dir(root / packages, quiet=2)
    tell("weir: installed")


def requirement(lock: str, package: str) -> str:
    """Return the part of a lock file that pins one package."""
    found = re.search(rf"(?m)^{re.escape(package)}==(?:.*\\\n)*.*\n?", lock)
    if found is None:
        raise InstallError(f"requirements.lock does not pin {package}: make it again, with the development group")
    return found[0]


def tell(text: str, end: str = "\n") -> None:
    """Print progress on stderr: stdout is for the answer of the command itself.

    A reader that has closed the pipe (`2>&1 | head`) does not end the installation.
    """
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except BrokenPipeError:
        # The buffer still has the text, and would raise again when this process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


class Progress:
    """Shows what pip or uv does: on one line of a terminal, or every few seconds elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen = 0
        self._shown_at = 0.0
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Take a line of the installer's output."""
        words = text.split()
        if text.startswith(("Collecting ", "Processing ", "Requirement already")):
            self._seen += 1
            self._show(f"{min(self._seen, self._total)}/{self._total} {words[1].rpartition('/')[2]}")
        elif text.lstrip().startswith(("Building ", "Installing collected", "Resolved ", "Prepared ", "Installed ")):
            self._show(" ".join(words[:6]).rstrip(",:"), now=True)
        elif text.lstrip().startswith("Downloading "):
            self._show(" ".join(words[:2]))

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
    environment = {key: value for key, value in os.environ.items() if key not in _IGNORED}
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
            f"`{' '.join(command[:5])} ...` failed with status {process.returncode}. The end of {log.name}:\n{end}"
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
    """Put the checkout's packages that are in no wheel on the path: the development tools and the examples."""
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
