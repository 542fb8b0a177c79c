"""Catalogs of Apache Iceberg by Airflow connections, for sinks and sources.

Invariants: no error shows a password; no request has no time limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from pydantic import ValidationError as PydanticError
from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    ResolveError,
    RESTError,
    UnauthorizedError,
    ValidationError,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)

from weir.connections import LIBPQ, Connection
from weir.errors import Misconfigured, Retryable, first_line, is_for_person
from weir.refusals import Verdict, is_login_refused, is_passing, verdict
from weir.secrecy import without_secrets

if TYPE_CHECKING:
    from requests import Session

_KIND: Final = "iceberg"

SECONDS: Final = (15.0, 60.0)
"""How long a REST catalog may take to accept a connection, and to send its next bytes: PyIceberg has no limit."""


_CUT: Final = re.compile("[#?]")


class _LimitedRestCatalog(RestCatalog):
    def _create_session(self) -> Session:
        session = super()._create_session()
        session.request = partial(session.request, timeout=SECONDS)  # type: ignore[method-assign]
        return session


def _rest(name: str, properties: dict[str, str]) -> Catalog:
    return cast("Catalog", _LimitedRestCatalog(name, **properties))


AVAILABLE_CATALOGS[CatalogType.REST] = _rest


class CatalogAway(Retryable):
    """The catalog, or the file system of its tables, does not answer."""


@contextmanager
def opened(connection: Connection) -> Iterator[Catalog]:
    """Open the catalog of a connection. Raises CatalogAway if it does not answer, or Misconfigured; also while open."""
    conn_id = connection.id
    name, properties = properties_of(connection)
    with _answering(conn_id):
        try:
            catalog = load_catalog(name, **properties)
        except (ValueError, ArgumentError, NoSuchModuleError, NoSuchPropertyException, NotInstalledError) as error:
            raise Misconfigured.of("catalogs.catalog_unusable", conn_id=conn_id, said=said(error)) from error
        try:
            yield catalog
        finally:
            catalog.close()


def properties_of(connection: Connection) -> tuple[str, dict[str, str]]:
    """Return the name and the properties by which PyIceberg opens the catalog of a connection. Raises Misconfigured.

    Host is `uri`, login and password are `credential` (in a catalog of type sql: the account in `uri`); all of extra is
    taken as it is, but for `name`, the catalog's name, which is the connection's id else.
    """
    if connection.kind != _KIND:
        raise Misconfigured.of(
            "catalogs.not_a_catalog", connection_id=connection.id, kind=connection.kind, expected=_KIND
        )
    given = {key: _text(value) for key, value in connection.extra.items() if value is not None}
    name = given.pop("name", connection.id)
    require_location(f"the warehouse of connection {connection.id}", given.get("warehouse", ""))
    if "uri" not in given and connection.host:
        given["uri"] = _uri(connection)
    if given.get("type", "").lower() == "sql":
        given["uri"] = _of_database(connection, given.get("uri", ""))
    elif connection.login or connection.password:
        given.setdefault("credential", f"{connection.login}:{connection.password}")
    return name, given


def require_location(what: str, location: str) -> None:
    """Require a location that PyIceberg takes whole: it cuts off all from # or ? on. Raises Misconfigured."""
    found = _CUT.search(location)
    if found:
        raise Misconfigured.of(
            "catalogs.path_is_read_otherwise",
            what=what,
            location=location,
            read_as=location[: found.start()],
            found=found[0],
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _uri(connection: Connection) -> str:
    if "://" not in connection.host:
        raise Misconfigured.of("catalogs.no_uri", connection_id=connection.id, host=connection.host)
    port = "" if connection.port is None else f":{connection.port}"
    return f"{connection.host.rstrip('/')}{port}"


def _of_database(connection: Connection, uri: str) -> str:
    """Return a database's URL with the account and, for libpq, with the limits that its own query does not set."""
    try:
        url = make_url(uri)
    except ArgumentError:
        raise Misconfigured.of("catalogs.no_database_url", connection_id=connection.id) from None
    if connection.login or connection.password:
        url = url.set(username=connection.login or None, password=connection.password or None)
    if url.drivername in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
        url = url.set(query={**{key: str(value) for key, value in LIBPQ.items()}, **url.query})
    return url.render_as_string(hide_password=False)


@contextmanager
def _answering(conn_id: str) -> Iterator[None]:
    """Translate what catalog, database, file system and PyIceberg say: what no person has to change may pass."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError, OAuthError, PermissionError) as error:
        raise Misconfigured.of("catalogs.access_refused", conn_id=conn_id, said=said(error)) from error
    except PydanticError as error:  # no answer of a catalog: that of a proxy, for example
        raise CatalogAway.of("catalogs.not_understood", conn_id=conn_id, said=said(error)) from error
    except Exception as error:
        if is_refusal(error) or verdict(error) is Verdict.REFUSED:
            raise Misconfigured.of("catalogs.not_possible", conn_id=conn_id, said=said(error)) from error
        if isinstance(error, (RESTError, OSError, DBAPIError)):
            raise CatalogAway.of("catalogs.not_reached", conn_id=conn_id, said=said(error)) from error
        raise


def is_refusal(error: BaseException) -> bool:
    """Report whether an error is one that a later try meets again, and no silence, load or conflict."""
    match error:
        case PydanticError():
            return False
        case RESTError():
            answer = getattr(error.__cause__, "response", None)
            status = getattr(answer, "status_code", 0)
            return isinstance(error, BadRequestError) or (400 <= status < 500 and status not in _PASSING)
        case OSError():
            return is_for_person(error) or isinstance(error, FileExistsError) or bool(_REFUSED_BY_S3.search(str(error)))
        case DBAPIError():
            return not error.connection_invalidated and _is_refused_by_database(error)
    return isinstance(error, (*_OF_LIBRARY, SQLAlchemyError))


def _is_refused_by_database(error: DBAPIError) -> bool:
    code, said_by_it = getattr(error.orig, "pgcode", None), error.orig or error
    is_of_statement = isinstance(error, (ProgrammingError, DataError, NotSupportedError))
    is_limit = not isinstance(error, IntegrityError) and not is_passing(code)
    return is_of_statement or is_limit or is_login_refused(said_by_it) or bool(_READ_ONLY.search(str(said_by_it)))


_PASSING: Final = (401, 403, 408, 409, 419, 425, 429)
"""Answers of a REST catalog with a meaning of their own, and those that pass."""

_REFUSED_BY_S3: Final = re.compile(
    "ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT|KeyTooLong|"
    r"HTTP status 301"
)
"""What Arrow's S3 client says, whose errors have no numbers."""

_READ_ONLY: Final = re.compile("readonly database|no such (table|column)")
"""What SQLite calls an operational error, as it does a lock that somebody else holds."""

_OF_LIBRARY: Final = (
    *(ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError),
    *(ValidationError, ResolveError, NotInstalledError, NoSuchPropertyException),
    *(NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError),
)
"""What PyIceberg raises before it asks anybody: names, types and values that a table cannot have."""


def said(error: BaseException) -> str:
    """Return the first line of what an error says, without secrets."""
    return without_secrets(f"{type(error).__name__}: {first_line(error)}")
