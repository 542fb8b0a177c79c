"""Locations of Weir's store and ledger: read from the environment, Airflow's section `[weir]`, then its connections.

Invariants: the environment goes before the section, and the section before a connection. Nothing is read before it is
used. No secret is in a representation or in the message of an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Misconfigured
from weir.restarts.recovery_settings import RecoverySettings
from weir.store.local import is_local
from weir.topology.layouts import SMALL_RESULT
from weir.units import size_from_text

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
STORE_CONNECTION = "weir_store"
LEDGER_CONNECTION = "weir_ledger"

STORE_OPTIONS_VARIABLE = "WEIR_STORE_OPTIONS"
"""Also passes the options to a driver of spark-submit: a command line or a file would show their secrets."""

SPARK_VARIABLE = "WEIR_SPARK_REMOTE"
"""The URL of the Spark Connect server that commands compute with where --remote is not given.

It also passes the URL to their programs: every user of the machine could read a token on a command line.
"""

EXPECTATIONS = str(Path(__file__).parents[1] / "expectations")
"""The default folder of suites: beside this package, in the project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """URLs of store and ledger, the ids of the connections to Spark and to Airflow's API, and the store's options.

    `ledger` may hold a password: show `url_without_password(settings.ledger)`. `store_options` are those of the store's
    fsspec file system, with secrets among them. `recovery` and `retention` hold where a dataflow does not say.
    """

    store: str
    ledger: str = field(repr=False)
    spark_conn_id: str
    api_conn_id: str
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    expectations: str = EXPECTATIONS
    """The folder of the suites; each is a file <suite>.json."""
    small_result: int = SMALL_RESULT
    """The bytes up to which a result is written plain, and filtered when it is read."""
    operators: frozenset[str] = frozenset()
    """The names of the users who may ask for what concerns a whole dataflow."""


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """The Airflow connection `weir_store`: the store's URL (None: not given) and its fsspec options."""

    url: str | None
    options: Mapping[str, Any] = field(repr=False)


class Connections(Protocol):
    """Looks up Airflow's connections to store and ledger; None for one that is not defined."""

    def store(self) -> StoreConnection | None:
        """Look up `weir_store`. Raises Misconfigured, and Retryable if Airflow does not answer."""
        ...

    def ledger(self) -> str | None:
        """Look up `weir_ledger` as an SQLAlchemy URL. Raises Misconfigured, and Retryable as above."""
        ...


def read_settings(
    environ: Mapping[str, str] | None = None,
    option: Callable[[str], str | None] | None = None,
    connections: Connections | None = None,
    section: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings; `option` looks up a key in Airflow's `[weir]` section (None: there is no Airflow).

    `section` is the whole section, for the options of recovery and retention, whose keys have several spellings.
    `connections` are looked up only where the environment and the section leave something open. Raises Misconfigured if
    the store or the ledger is not set or an option cannot be understood, and what `connections` raises.
    """
    found = os.environ if environ is None else environ

    def value(key: str) -> str | None:
        return found.get(f"WEIR_{key.upper()}") or (option(key) if option else None)

    store, options = _store(value("store"), store_options(found), connections)
    ledger = value("ledger") or (connections.ledger() if connections else None)
    if not ledger:
        raise _unknown("ledger", f"the Airflow connection {LEDGER_CONNECTION} (of type postgres)")
    return Settings(
        store=store,
        ledger=ledger,
        spark_conn_id=value("spark_conn_id") or "spark_connect_weir",
        api_conn_id=value("api_conn_id") or "weir_api",
        store_options=options,
        recovery=_of_section(RecoverySettings.from_options, found, section or {}),
        retention=_of_section(RetentionSettings.from_options, found, section or {}),
        expectations=value("expectations") or EXPECTATIONS,
        small_result=size_from_text("small_result", value("small_result") or str(SMALL_RESULT)),
        operators=frozenset(filter(None, (name.strip() for name in (value("operators") or "").split(",")))),
    )


def store_options(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The store's options in `WEIR_STORE_OPTIONS`, a JSON object; None if it is not set. Raises Misconfigured."""
    text = environ.get(STORE_OPTIONS_VARIABLE)
    if not text:
        return None
    try:
        options = json.loads(text)
    except ValueError as error:
        # The text itself, and what `json` quotes of it, may be a secret.
        raise Misconfigured.of("settings.store_options_not_json", name=type(error).__name__) from None
    if not isinstance(options, dict):
        raise Misconfigured.of("settings.store_options_not_an_object", name=type(options).__name__)
    return options


def url_without_password(url: str) -> str:
    """Replace the password in a URL with asterisks, for messages."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    account, at, host = authority.rpartition("@")
    login, colon, _ = account.partition(":")
    return f"{scheme}{separator}{login}{':***' if colon else ''}{at}{host}{slash}{path}"


def _of_section(read: Callable[[Mapping[str, Any]], T], environ: Mapping[str, str], section: Mapping[str, Any]) -> T:
    """Read options of a section, the environment before the section."""
    prefix = "WEIR_"
    own = {name.removeprefix(prefix).lower(): value for name, value in environ.items() if name.startswith(prefix)}
    try:
        return read({**section, **own})
    except Misconfigured as error:
        raise Misconfigured.of("settings.section_wrong", error=error) from error


def _store(
    url: str | None, options: dict[str, Any] | None, connections: Connections | None
) -> tuple[str, Mapping[str, Any]]:
    if url and (options is not None or is_local(url)):
        return url, options or {}
    connection = connections.store() if connections else None
    url = url or (connection.url if connection else None)
    if not url:
        raise _unknown("store", f"the extra `url` of the Airflow connection {STORE_CONNECTION}")
    if options is None:
        options = dict(connection.options) if connection else {}
    return url, options


def _unknown(key: str, connection: str) -> Misconfigured:
    return Misconfigured.of("settings.key_unknown", key=key, type=key.upper(), connection=connection)
