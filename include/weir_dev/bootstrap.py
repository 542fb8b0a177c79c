"""Install into `.venv` what `requirements.lock` pins, then start the command line in it.

What the commands need is installed first; the tests add the rest of the lock when they are first asked for.

The launcher runs this as a script, by the Python of `.venv` or, before anything is installed, by any Python >= 3.11:
standard library only. The Python of a current `.venv` is that of the command: no other one is started.
`uv` installs: that on the PATH, else the pinned one, which pip brings into `.venv`; where it fails, pip does. Both take
only files whose hashes are in the lock.
Invariant: a `.venv` without its stamp is never used; the stamp is removed before anything in `.venv` is replaced, and
written last. It stays while the tests' packages are added, which replaces nothing: what it says is there all the time.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


STAMP_NAME: Final = ".weir-installed.json"
FORMAT: Final = 2
INSTALL_VARIABLE: Final = "WEIR_INSTALL"
"""Tells the launcher not to use the Python of `.venv`, which is about to be replaced."""

PIP: Final = (
    "-m",
    "pip",
    "install",
    "--no-deps",
    "--no-build-isolation",
    "--no-compile",
    "--disable-pip-version-check",
)
BUILD: Final = "build.txt"
"""Pins what packages that come as sources are built with."""
UV: Final = "uv.txt"
"""Pins the installer."""
COMMANDS: Final = "commands.txt"
"""Pins what the commands need."""
SECONDS_ON_A_TERMINAL: Final = 0.5
SECONDS_IN_A_LOG: Final = 10.0
"""How often progress is told: on one line of a terminal, elsewhere on a line of its own."""
_TESTS_OF_OTHERS: Final = r"[\\/]site-packages[\\/].*[\\/]tests?[\\/]"
"""No command imports them, and they are a third of all modules."""

_PIP_IS_QUICK: Final = {"_PIP_USE_IMPORTLIB_METADATA": "0"}
"""pip 23, which Python 3.11 and 3.12 bring, else reads all metadata once for each package that it has installed."""

BUILT: Final = "build.cfg"
_STORED: Final = "[bdist_wheel]\ncompression = stored\n"
"""What is built is unpacked at once: the jars of pyspark, 400 MB, else take 13 s to be compressed a second time."""

UV_BY_PIP: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "no-index": "UV_OFFLINE",
    "no-cache-dir": "UV_NO_CACHE",
}
"""What uv calls the settings of pip that it does not read."""

_IGNORED: Final = {
    *("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE_NEWER"),
}
"""Settings of the user's environment that would change what is installed, or where."""


class InstallError(Exception):
    """The installation failed; the message has the end of its log."""


class Packages(StrEnum):
    """What a `.venv` has."""

    COMMANDS = "commands"
    TESTS = "tests"
    """That, and the rest of the lock."""


class Step(StrEnum):
    """What an installer is asked for."""

    ALL = "all"
    """Make `.venv` from nothing."""
    PROJECT = "project"
    """Install the project again, and nothing else."""
    ADD = "add"
    """Add the packages of the tests."""


def main(arguments: Sequence[str]) -> None:
    """Install what is missing, then become the command line, or pytest for `test`."""
    root, verb = Path(arguments[0]), arguments[1:]
    venv = root / ".venv"
    tests = verb[:1] == ["test"]
    packages = Packages.TESTS if tests else Packages.COMMANDS
    is_asked_to_install = os.environ.pop(INSTALL_VARIABLE, "") != ""
    if Path(sys.prefix) == venv and not is_asked_to_install:
        if steps(installed(venv), fingerprints(root), packages):
            os.environ[INSTALL_VARIABLE] = "1"
            os.execv(root / "weir", [str(root / "weir"), *verb])  # noqa: S606  no shell is wanted
        if not tests:
            run_here(verb)
            return
    _end_what_runs_when_this_is_ended()
    try:
        python = ensure_installed(root, install, packages)
    except InstallError as error:
        sys.exit(f"weir: {error}\nweir: repair that, then type the same command again")
    except KeyboardInterrupt:
        sys.exit("\nweir: interrupted; type the same command again, and what was not finished is installed again")
    if tests:
        os.chdir(root)
        command = ["-m", "pytest", "-n", "auto", *verb[1:]]  # how many that is: tests/schedule.py
    else:
        command = ["-m", "weir_dev.main", *verb]
    sys.stdout.flush()
    os.execv(python, [str(python), *command])  # noqa: S606  no shell is wanted


def _end_what_runs_when_this_is_ended() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def run_here(verb: Sequence[str]) -> None:
    """Run the command line in this process, with the import path that `python -m` would give it."""
    if not sys.flags.safe_path:
        sys.path[0] = ""  # it was this script's folder, whose modules have names like `files` and `main`
    sys.argv = ["weir", *verb]
    import_module("weir_dev.main").app(prog_name="weir")


def ensure_installed(
    root: Path, installer: Callable[[Path, Path, Step, Packages], None], packages: Packages = Packages.COMMANDS
) -> Path:
    """Return the Python of a complete and current `.venv`; call the installer if it is not one.

    One process installs at a time; others wait, and then find it installed.
    """
    venv = root / ".venv"
    wanted = fingerprints(root)
    if not steps(installed(venv), wanted, packages):
        return _python(venv)
    with _alone(root):
        for step, has in steps(installed(venv), wanted, packages):
            if step is not Step.ADD:
                (venv / STAMP_NAME).unlink(missing_ok=True)
            installer(root, venv, step, has)
            _write_stamp(venv, {**wanted, "packages": has})
    return _python(venv)


def steps(
    found: Mapping[str, str] | None, wanted: Mapping[str, str], packages: Packages
) -> list[tuple[Step, Packages]]:
    """What makes the `.venv` of a stamp current for what needs `packages`, each step with what there is after it."""
    has = Packages.TESTS if (found or {}).get("packages") == Packages.TESTS else Packages.COMMANDS
    whole = Packages.TESTS if Packages.TESTS in (has, packages) else Packages.COMMANDS  # what has them keeps them
    if found is None or any(found.get(name) != wanted[name] for name in ("format", "root", "lock")):
        return [(Step.ALL, whole)]
    project = [(Step.PROJECT, has)] if found.get("project") != wanted["project"] else []
    return [*project, (Step.ADD, whole)] if has is not whole else project


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


@dataclass(frozen=True, slots=True)
class Tool:
    """The commands of an installer: make the environment, install a requirement, and install what a file pins."""

    name: str
    make: tuple[str, ...]
    install: tuple[str, ...]
    sync: tuple[str, ...]
    settings: Mapping[str, str]
    """Variables of its environment."""


def pip(venv: Path) -> Tool:
    """Return the commands of pip, in an environment of its own."""
    install = (str(_python(venv)), *PIP)
    return Tool("pip", (sys.executable, "-m", "venv", str(venv)), install, (*install, "--require-hashes", "-r"), {})


def uv(program: str, venv: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Tool:
    """Return the commands of uv."""
    # Where a person has set several indexes, a pin may be in any of them, as with pip; hashes decide what is taken.
    into = ("--python", str(_python(venv)), "--no-build-isolation", "--index-strategy", "unsafe-best-match")
    install = (program, "pip", "install", *into, "--no-deps")
    make = (program, "venv", "--python", sys.executable, str(venv))
    return Tool("uv", make, install, (*install, "--require-hashes", "-r"), settings)


def settings_for_uv(listed: str) -> dict[str, str]:
    """Return what `pip config list` says in the variables of uv: files for all commands, for `install`, environment."""
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for name, text in re.findall(rf"(?m)^{section}\.([a-z-]+)=(.*)$", listed):
            if name in UV_BY_PIP:
                words = str(ast.literal_eval(text)).split()
                if name == "find-links":  # uv fails where a folder is not there
                    words = [word for word in words if "://" in word or Path(word).is_dir()]
                found[UV_BY_PIP[name]] = ("," if name == "find-links" else " ").join(words)
    return {name: text for name, text in found.items() if text}


def install(root: Path, venv: Path, step: Step, packages: Packages) -> None:
    """Carry out one step with uv or with pip, and write down in `.weir/install.log` what they say."""
    own = root / ".weir"
    own.mkdir(exist_ok=True)
    scratch = own / "install-files"
    shutil.rmtree(scratch, ignore_errors=True)  # of an installation that was killed
    scratch.mkdir()
    (scratch / BUILT).write_text(_STORED)
    with (own / "install.log").open("w") as log:
        try:
            work = _Work(root, venv, step, _pins(root, scratch, packages), log, scratch, time.monotonic())
            try:
                _install(work, _uv(work))
            except (InstallError, OSError) as error:
                # A person may have set an index or a certificate for pip alone, which an own uv does not read.
                tell(f"weir: {error}\nweir: trying pip instead of uv")
                _make(work, pip(venv))
                _install(work, pip(venv))
            tell("weir: installed")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Work:
    root: Path
    venv: Path
    step: Step
    pins: Path
    log: IO[str]
    scratch: Path
    began: float


def _uv(work: _Work) -> Tool:
    """Return the user's uv, or else the one in the environment, which pip brings; the environment is there then."""
    if (program := shutil.which("uv")) is not None:
        tool = uv(program, work.venv)
        _make(work, tool)
        return tool
    by_pip, brought = pip(work.venv), work.venv / "bin" / "uv"
    _make(work, by_pip)
    if not brought.exists():
        _run(work, by_pip, (*by_pip.sync, str(work.scratch / UV)), "installing uv")
    command = [str(_python(work.venv)), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return uv(str(brought), work.venv, settings_for_uv(listed))


def _make(work: _Work, tool: Tool) -> None:
    """Make the environment from nothing where it is asked for, and see to it that it has pip where pip is the tool."""
    if work.step is Step.ALL:
        tell(f"weir: installing into {work.venv}: {_number(work.pins)} packages, once; one to five minutes")
        shutil.rmtree(work.venv, ignore_errors=True)
        _run(work, tool, tool.make, "making the environment")
    if tool.name == "pip" and not (work.venv / "bin" / "pip").exists():
        _run(work, tool, (str(_python(work.venv)), "-m", "ensurepip"), "installing pip")  # uv has made the environment


def _install(work: _Work, tool: Tool) -> None:
    total = _number(work.pins)
    if work.step is Step.ADD:
        new = total - _number(work.scratch / COMMANDS)
        tell(f"weir: adding to {work.venv} what the tests need: {new} packages, once; a minute or two")
    if work.step is not Step.PROJECT:
        _run(work, tool, (*tool.sync, str(work.scratch / BUILD)), "installing what builds packages")
        _run(work, tool, (*tool.sync, str(work.pins)), "resolving", total)
    if work.step is not Step.ADD:
        _run(work, tool, (*tool.install, "-e", str(work.root)), "installing the project")
        _write_paths(work.root, work.venv)
    _compile(work, tool)


def _number(pins: Path) -> int:
    return len(re.findall(r"(?m)^[A-Za-z0-9]", pins.read_text()))


def _pins(root: Path, scratch: Path, packages: Packages) -> Path:
    """Return the file that pins these packages, and write that of the packages that build others."""
    lock, commands = root / "requirements.lock", scratch / COMMANDS
    for file, words in ((scratch / BUILD, ("setuptools",)), (scratch / UV, ("uv",)), (commands, ("--checkout",))):
        command = [sys.executable, str(Path(__file__).with_name("requirements.py")), str(lock), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InstallError(done.stderr.strip())
        file.write_text(done.stdout)
    return commands if packages is Packages.COMMANDS else lock


def _compile(work: _Work, tool: Tool) -> None:
    """Compile modules: else each command compiles what it imports, where PYTHONDONTWRITEBYTECODE is set.

    Some that packages have as examples do not compile, whose messages go to the log.
    """
    own = [str(work.root / name) for name in ("include", "plugins", "spark_jobs")]
    packages = map(str, work.venv.glob("lib/python*/site-packages"))
    python = str(_python(work.venv))
    command = (python, "-m", "compileall", "-j", "0", "-x", _TESTS_OF_OTHERS, *packages, *own)
    _run(work, tool, command, "compiling", may_fail=True)


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
    """How far an installation is, by the lines that pip, uv and compileall print, and by the files that there are."""

    def __init__(self, doing: str, total: int, venv: Path, scratch: Path) -> None:
        self._doing = doing
        self._total = total
        self._venv = venv
        self._scratch = scratch
        self._fetched = 0
        self._now = ""
        self._large: dict[str, float] = {}
        """What uv has announced to fetch or to build, by size."""
        self._ready: set[str] = set()
        self._order: list[str] | None = None
        self._before = 0

    def line(self, text: str) -> bool:
        """Take a line of a program's output, and tell whether it belongs in the log."""
        words = text.split()
        if text.startswith(("Collecting ", "Processing ", "Requirement already")):
            self._fetched += 1
            self._now = _named(words[3 if words[0] == "Requirement" else 1])
        elif text.startswith("Ignoring "):  # it is for another Python, or another system
            self._total -= 1
        elif match := _UV_BEGINS.match(text.rstrip()):
            self._large[match[1]] = float(match[2] or 0) * {"K": 0.001, "M": 1, "G": 1000}[match[3] or "M"]
        elif match := _UV_ENDS.match(text):
            self._ready.add(match[1])
        elif text.lstrip().startswith("Downloading "):
            self._now = " ".join([_named(words[1]), *words[2:4]])
        elif text.startswith("Prepared "):
            self._large.clear()
            self._doing = "installing packages"
        elif text.startswith("Installing collected packages: "):
            self._order = text.partition(": ")[2].strip().split(", ")
            self._before = self._installed()
        elif text.startswith(("Compiling ", "Listing ")):
            package = text.partition("site-packages/")[2].partition("/")[0].rstrip("'.\n") or "weir"
            self._doing = f"compiling {package}"
            return False
        return True

    def text(self) -> str:
        """Say what is being done, and how much of it is done."""
        if self._order is not None:
            done = self._installed() - self._before
            now = f": {self._order[done]}" if done < len(self._order) else ", looking through them"
            return f"{done} of {max(len(self._order), done)} packages installed{now}"
        if self._fetched and self._total:
            fetched = sum(map(_size, self._scratch.glob("pip-unpack-*/*"))) / 1e6
            return f"{min(self._fetched, self._total)} of {self._total} packages fetched, {fetched:.0f} MB: {self._now}"
        if self._large:
            fetched = sum(self._large[name] for name in self._ready if name in self._large)
            left = [name for name in self._large if name not in self._ready]
            now = ", ".join(left[:3]) or "small ones, and those that are built"
            return f"{fetched:.0f} of {sum(self._large.values()):.0f} MB of large packages ready: {now}"
        return self._doing

    def _installed(self) -> int:
        return sum(1 for _ in self._venv.glob("lib/python*/site-packages/*.dist-info/RECORD"))


_UV_BEGINS: Final = re.compile(r" *(?:Downloading|Building) ([\w.-]+)(?:==\S+)?(?: \(([\d.]+)([KMG])iB\))?$")
_UV_ENDS: Final = re.compile(r" *(?:Downloaded|Built) ([\w.-]+)")


def _named(requirement: str) -> str:
    """The package of a requirement, or of a file by its name, with its version."""
    return "-".join(requirement.rpartition("/")[2].split("-")[:2])


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # it was moved to where it belongs


@contextmanager
def telling(progress: Progress, began: float) -> Iterator[None]:
    """Tell progress from now on, again and again, whether or not the installer says anything."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    ended = threading.Event()

    every = SECONDS_ON_A_TERMINAL if is_terminal else SECONDS_IN_A_LOG

    def tell_it() -> None:
        # Counted from the beginning of the installation: steps that are shorter are told, too.
        while not ended.wait(every - (time.monotonic() - began) % every):
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            text = f"weir: {minutes}:{seconds:02} {progress.text()}"
            if is_terminal:
                tell(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="")
            else:
                tell(text)

    thread = threading.Thread(target=tell_it)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if is_terminal:
            tell("\r\033[K", end="")


def _run(
    work: _Work, tool: Tool, command: Sequence[str], doing: str, total: int = 0, *, may_fail: bool = False
) -> None:
    log = work.log
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    environment = {key: value for key, value in os.environ.items() if key not in _IGNORED}
    environment = {**tool.settings, **environment, **_PIP_IS_QUICK}
    environment |= {
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(work.scratch),
        "DIST_EXTRA_CONFIG": str(work.scratch / BUILT),
    }
    progress = Progress(doing, total, work.venv, work.scratch)
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            close_fds=False,  # it holds the lock as long as it writes, even if this process is killed
        ) as process,
        telling(progress, work.began),
    ):
        try:
            for line in process.stdout or ():
                if progress.line(line):
                    log.write(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0 and not may_fail:
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
        os.set_inheritable(lock.fileno(), True)  # noqa: FBT003  it takes no names
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"weir: another process is installing, and writes {path.with_suffix('.log')}; waiting for it")
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
