"""Servers that are written in Java, for tests: where their classes come from, and how they start and end.

Maven brings their jars once into an ignored folder; a lock beside each `pom.xml` says which bytes they are. Invariant:
a server ends with the process that started it.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
POMS = Path(__file__).with_name("jars")
INSTALLED = ROOT / ".weir" / "jars"
SMALL_JAVA = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),  # a tenth of the time of a start
)

_INSTALL_SECONDS = 300.0


class JarsMissing(Exception):
    """The jars of a server cannot be had here; the text says why."""


def installed_jars(name: str, change: Callable[[Path], None] | None = None) -> Path:
    """Return the folder with what `jars/<name>/pom.xml` names, installed unless it is.

    `change` is called once, with the folder of the jars, before they are used. Raises JarsMissing.
    """
    pom = POMS / name / "pom.xml"
    digest = hashlib.sha256(pom.read_bytes() + _lock(name).read_bytes()).hexdigest()[:12]
    folder = INSTALLED / f"{name}-{digest}"
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(name, pom, folder, change)
    return folder


def locked(name: str) -> dict[str, str]:
    """Return the digests of the jars that Maven is to bring, by name."""
    return {jar: digest for digest, jar in (line.split() for line in _lock(name).read_text().splitlines())}


def _lock(name: str) -> Path:
    return POMS / name / "jars.sha256"


def _install(name: str, pom: Path, folder: Path, change: Callable[[Path], None] | None) -> None:
    """Have Maven copy the jars, and compare them with the lock."""
    if shutil.which("mvn") is None:
        raise JarsMissing("there is no mvn on the PATH: Debian's package maven has it")
    jars = INSTALLED / uuid.uuid4().hex
    try:
        _copy_dependencies(name, pom, jars)
        found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in jars.iterdir()}
        if found != locked(name):
            raise AssertionError(f"Maven brought {found}, and {_lock(name)} has {locked(name)}")
        if change is not None:
            change(jars)
        jars.rename(folder)
    finally:
        shutil.rmtree(jars, ignore_errors=True)


def _copy_dependencies(name: str, pom: Path, jars: Path) -> None:
    command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise JarsMissing(f"Maven's repository did not answer within {error.timeout:g} s") from error
    if run.returncode != 0:
        said = (run.stdout + run.stderr).strip().splitlines() or ["nothing"]
        raise JarsMissing(f"Maven could not bring the jars of {name}: {said[0][:300]}")


class JavaServer:
    """A server, started by its main class, which may be killed and started again."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        with_parent: signal.Signals = signal.SIGKILL,
    ) -> None:
        """`with_parent` is the signal that it gets when its parent ends."""
        self.log = log
        self._command = command
        self._environment = environment
        self._with_parent = with_parent
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is ready some seconds later."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_ending_with_parent(self._with_parent), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.log.parent,
            )

    @property
    def pid(self) -> int:
        """The process that was started last."""
        assert self._process is not None
        return self._process.pid

    def is_alive(self) -> bool:
        """Report whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a crash would, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def _ending_with_parent(number: signal.Signals) -> list[str]:
    """Return the words before a command that gets a signal when its parent ends in whatever way; only Linux can.

    A function for Popen to call would have the child forked with the handlers of gRPC, which may crash it.
    """
    return ["setpriv", f"--pdeathsig={number.name.removeprefix('SIG')}"] if shutil.which("setpriv") else []
