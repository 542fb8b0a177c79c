"""Airflow connections and variables as functions, sinks and sources use them, and the account for S3 of a connection.

Invariant: no error shows a password, and no secret is written to a file. The command line and Spark's own processes
know only the environment; those that a task has started on its machine ask the task.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from weir.errors import Misconfigured, Retryable, WeirError
from weir.secrecy import hide, secrets_of_account

VARIABLE = "AIRFLOW_CONN_"
"""The beginning of environment variables with connections."""

VARIABLE_OF_VARIABLE: Final = "AIRFLOW_VAR_"
"""The beginning of environment variables with Airflow's variables."""

TASK_VARIABLE: Final = "WEIR_TASK_SOCKET"
"""The environment variable with the socket at which a task answers the processes that it has started."""

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that no proxy reaches: they are this machine."""

LIBPQ: Final[dict[str, str | int]] = {
    "application_name": "weir",
    "connect_timeout": 15,
    # A server that is gone without a word is noticed after two minutes, and not after hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 120_000,
}
"""How long a database of PostgreSQL may be silent, in parameters of libpq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An Airflow connection; `kind` is its type, `database` is what Airflow calls its schema, `extra` is decoded."""

    id: str
    kind: str
    host: str = ""
    port: int | None = None
    database: str = ""
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def for_libpq(self) -> dict[str, Any]:
        """Return the parameters by which libpq opens a connection of type postgres.

        Raises Misconfigured for one of another type.
        """
        if self.kind != "postgres":
            raise Misconfigured.of("connections.not_postgres", id=self.id, kind=self.kind)
        given = {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.login,
            "password": self.password,
            **{key: str(value) for key, value in self.extra.items() if not isinstance(value, dict | list)},
        }
        found = {key: value for key, value in given.items() if value not in (None, "")}
        return {**LIBPQ, **found}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Account:
    """How S3 is asked. What is empty, the client takes from the environment, as Amazon's own tools do."""

    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    endpoint: str = ""
    region: str = ""

    @classmethod
    def of(cls, conn_id: str, connections: Connections) -> S3Account:
        """Return the account of a connection, or where none is named, that of the environment."""
        return cls.of_connection(connections(conn_id)) if conn_id else cls.of_environment()

    @classmethod
    def of_connection(cls, connection: Connection) -> S3Account:
        """Return the account of an Airflow connection of type aws. Raises Misconfigured."""
        extra = connection.extra
        if connection.kind != "aws":
            raise Misconfigured.of("connections.not_aws", connection_id=connection.id, kind=connection.kind)
        session = extra.get("session_kwargs") or {}
        foreign = next((each for each in ("role_arn", "profile_name") if extra.get(each) or session.get(each)), None)
        if foreign:
            raise Misconfigured.of("connections.aws_extra_unknown", connection_id=connection.id, foreign=foreign)
        for_s3 = (extra.get("service_config") or {}).get("s3") or {}
        return cls(
            key=connection.login or str(extra.get("aws_access_key_id") or ""),
            secret=connection.password or str(extra.get("aws_secret_access_key") or ""),
            token=str(extra.get("aws_session_token") or ""),
            endpoint=str(for_s3.get("endpoint_url") or extra.get("endpoint_url") or ""),
            region=str(extra.get("region_name") or ""),
        )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None) -> S3Account:
        """Return the account of AWS_* variables; keys that they do not have, the client finds (a role, for example)."""
        found = os.environ if environ is None else environ
        return cls(
            key=found.get("AWS_ACCESS_KEY_ID", ""),
            secret=found.get("AWS_SECRET_ACCESS_KEY", ""),
            token=found.get("AWS_SESSION_TOKEN", ""),
            endpoint=found.get("AWS_ENDPOINT_URL_S3") or found.get("AWS_ENDPOINT_URL", ""),
            region=found.get("AWS_REGION") or found.get("AWS_DEFAULT_REGION", ""),
        )

    def for_s3fs(self) -> dict[str, Any]:
        """Return the options of s3fs."""
        given = {"key": self.key, "secret": self.secret, "token": self.token, "endpoint_url": self.endpoint}
        options: dict[str, Any] = {name: value for name, value in given.items() if value}
        return options | ({"client_kwargs": {"region_name": self.region}} if self.region else {})

    def for_object_store(self) -> dict[str, str]:
        """Return the options of the Rust library object_store, which delta-rs uses."""
        given = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ALLOW_HTTP": "true" if self.endpoint.startswith("http:") else "",
        }
        return {name: value for name, value in given.items() if value}


Connections = Callable[[str], Connection]
"""Looks up a connection by its id. Raises Misconfigured, or Retryable where Airflow does not answer."""

Variables = Callable[[str], str]
"""Looks up a variable of Airflow by its key. Raises Misconfigured, or Retryable where Airflow does not answer."""


@dataclass(frozen=True, slots=True)
class LookUps:
    """How a process finds what Airflow knows."""

    connection: Connections
    variable: Variables

    def hiding(self) -> LookUps:
        """Return look-ups for functions of the user, after which errors and notes do not show what is secret.

        Of a connection these are its password and the extras whose names say so, of variables those whose keys say so.
        """

        def connection(conn_id: str) -> Connection:
            found = self.connection(conn_id)
            hide(*secrets_of(found))
            return found

        def variable(key: str) -> str:
            found = self.variable(key)
            hide(*secrets_of_variable(key, found))
            return found

        return LookUps(connection, variable)


def secrets_of_variable(key: str, value: str) -> list[str]:
    """Return what is secret of a variable of Airflow: its value where its key says so, else what is in its JSON."""
    return list(secrets_of_account("", "", {key: value}))


def secrets_of(connection: Connection) -> list[str]:
    """Return what is secret of a connection, also in nested extras and in a host that is a URL."""
    return list(secrets_of_account(connection.login, connection.password, connection.extra, connection.host))


def variable_from_environment(key: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the variable of Airflow that AIRFLOW_VAR_<KEY> holds. Raises Misconfigured."""
    name = f"{VARIABLE_OF_VARIABLE}{key.upper()}"
    found = (os.environ if environ is None else environ).get(name)
    if found is None:
        raise Misconfigured.of("connections.variable_missing", key=key, name=name)
    return found


def from_environment(conn_id: str, environ: Mapping[str, str] | None = None) -> Connection:
    """Return the connection that AIRFLOW_CONN_<ID> describes, as JSON or as a URI. Raises Misconfigured."""
    name = f"{VARIABLE}{conn_id.upper()}"
    text = (os.environ if environ is None else environ).get(name)
    if not text:
        raise Misconfigured.of("connections.connection_missing", conn_id=conn_id, name=name)
    try:
        return _from_json(conn_id, text) if text.lstrip().startswith("{") else _from_uri(conn_id, text)
    except (ValueError, TypeError, AttributeError):
        # Not chained: the cause would show the text, and with it the password.
        raise Misconfigured.of("connections.connection_malformed", name=name) from None


def as_variable(connection: Connection) -> tuple[str, str]:
    """Return name and value of the variable that `from_environment` reads, for the environment of another process."""
    plain = {
        "conn_type": connection.kind,
        "host": connection.host,
        "port": connection.port,
        "schema": connection.database,
        "login": connection.login,
        "password": connection.password,
        "extra": dict(connection.extra),
    }
    return f"{VARIABLE}{connection.id.upper()}", json.dumps(plain)


def _from_json(conn_id: str, text: str) -> Connection:
    found = json.loads(text)
    extra = found.get("extra") or {}
    return Connection(
        id=conn_id,
        kind=found.get("conn_type") or "",
        host=found.get("host") or "",
        port=None if found.get("port") in (None, "") else int(found["port"]),
        database=found.get("schema") or "",
        login=found.get("login") or "",
        password=found.get("password") or "",
        extra=json.loads(extra) if isinstance(extra, str) else dict(extra),
    )


def _from_uri(conn_id: str, text: str) -> Connection:
    found = urlsplit(text)
    if not found.scheme:
        raise ValueError(text)
    query = dict(parse_qsl(found.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    kind = found.scheme.replace("-", "_")
    return Connection(
        id=conn_id,
        kind="postgres" if kind == "postgresql" else kind,
        host=unquote(found.hostname or ""),
        port=found.port,
        database=unquote(found.path.lstrip("/")),
        login=unquote(found.username or ""),
        password=unquote(found.password or ""),
        extra=extra,
    )


FROM_ENVIRONMENT: Final = LookUps(from_environment, variable_from_environment)
"""The look-ups of a process that knows only its environment."""


# Between a task and the processes that it has started on its machine

_LONGEST: Final = 100
"""The bytes of a path that a socket can have; systems allow a few more."""


@contextmanager
def answering(folder: str, found: LookUps) -> Iterator[dict[str, str]]:
    """Answer look-ups until the end, at a socket in a folder that only this user can enter.

    Yields the environment variable by which `asking` finds it.
    """
    path = f"{folder}/task"
    with _short(path) as place:
        server = _Answers(place, found)
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        thread.start()
        try:
            yield {TASK_VARIABLE: path}
        finally:
            server.shutdown()
            thread.join()
            Path(path).unlink()  # another one may answer here later


def asking(path: str) -> LookUps:
    """Return look-ups that ask the task which answers at a socket."""

    def connection(conn_id: str) -> Connection:
        return Connection(**_asked(path, {"connection": conn_id}))

    def variable(key: str) -> str:
        return str(_asked(path, {"variable": key}))

    return LookUps(connection, variable)


@contextmanager
def _short(path: str) -> Iterator[str]:
    """Yield a path that the address of a socket has room for: a long one by an open folder, as Linux has it."""
    if len(path.encode()) <= _LONGEST:
        yield path
        return
    folder, _, name = path.rpartition("/")
    opened = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


class _Answers(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, found: LookUps) -> None:
        super().__init__(path, _Answer)
        self.found = found


class _Answer(socketserver.StreamRequestHandler):
    server: _Answers

    def handle(self) -> None:
        wanted = json.loads(self.rfile.readline())
        try:
            answer = {"found": self._found(wanted)}
        except WeirError as error:
            answer = {type(error).__name__: str(error)}
        self.wfile.write(json.dumps(answer).encode())

    def _found(self, wanted: Mapping[str, str]) -> Any:
        if "variable" in wanted:
            return self.server.found.variable(wanted["variable"])
        connection = self.server.found.connection(wanted["connection"])
        return {name: getattr(connection, name) for name in Connection.__slots__}


def _asked(path: str, wanted: Mapping[str, str]) -> Any:
    try:
        with _short(path) as place, socket.socket(socket.AF_UNIX) as client:
            client.connect(place)
            client.sendall(json.dumps(wanted).encode() + b"\n")
            answer = json.loads(client.makefile("rb").read())
    except (OSError, ValueError) as error:
        raise Retryable.of("connections.task_does_not_answer", wanted=wanted, error=error) from error
    if "found" in answer:
        return answer["found"]
    kind, message = next(iter(answer.items()))
    raise {"Retryable": Retryable}.get(kind, Misconfigured)(message)
