"""What a deployment says about recovery: Airflow's section [weir], read by whoever may.

Invariant: an option that looks like one of these and is none is refused, never ignored.

What a deployment says about the life of results: Airflow's section [weir], read by whoever may.

Invariant: an option that cannot be understood is refused, never ignored.

Where Weir's own things are: the environment, Airflow's `[weir]` section, then connections; read when used.

Invariant: no secret is in a representation or in the message of an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.retention import Keep, KeepUntil
from weir.errors import Misconfigured
from weir.execution.labels import checked_enrichers
from weir.restarts.answer import OPTION_PREFIX, Budgets
from weir.restarts.options import PER_RUN, PER_TASK, close_to, squeezed
from weir.restarts.strategy import RestartChoice
from weir.store.local import is_local
from weir.units import size_from_text, time_from_text

if TYPE_CHECKING:
    from collections.abc import Callable


LARGEST_PLAN = "largest_plan"
FAILURE_ENRICHERS = "failure_enrichers"
DEFAULT_SHARE = 0.5
_MAXIMA = (
    *(OPTION_PREFIX + each.name for each in fields(Budgets)),
    squeezed(PER_TASK),
    squeezed(PER_RUN),
)


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Restarts where a DAG says nothing of them, budgets, functions that label failures, and the largest plan.

    `failure_enrichers` are written "module:function". `largest_plan` is the share of a run's regions, from 0 to 1, that
    may be re-run because of the losses of one probe without a person's word.
    """

    restart: RestartChoice = field(default_factory=RestartChoice)
    budgets: Budgets = field(default_factory=Budgets)
    failure_enrichers: tuple[str, ...] = ()
    largest_plan: float = DEFAULT_SHARE

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> RecoverySettings:
        """Read the options of the section [weir]; those of other things, and empty ones, are passed over.

        Raises Misconfigured.
        """
        given = {key: value for key, value in options.items() if str(value).strip()}
        plain = {squeezed(key): value for key, value in given.items()}
        for key in plain:
            if key.startswith(OPTION_PREFIX) and key not in _MAXIMA:
                raise Misconfigured(f"there is no option {key!r}{close_to(key, _MAXIMA)}")
        return RecoverySettings(
            RestartChoice.from_options(given),
            Budgets.from_options(plain),
            checked_enrichers(_listed(str(plain.get(FAILURE_ENRICHERS, "")))),
            _largest_plan(plain.get(LARGEST_PLAN, DEFAULT_SHARE)),
        )


def _listed(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _largest_plan(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise Misconfigured(f"{LARGEST_PLAN} is {value!r}, expected a share of a run's regions, from 0 to 1")
    return share


_DAY = timedelta(days=1)
_TWO_RUNS = Keep(KeepUntil.RUNS, runs=2)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSettings:
    """How long what stays, where a dataflow says nothing of it; None is forever, or without a limit.

    `keep_failed` is counted from the last thing that happened in a run that never closed; `expire_runs` likewise, of
    all runs: then manifests and records go too. `orphan_age` is how old a file must be that nobody knows, before it is
    deleted. Each hour `scrub_share` of all bytes is read again, and with `scrub_repair` what is found bad is made again
    before somebody needs it. `quota` and `least_free` are in bytes.
    `retained_checkpoints` is how many checkpoints and savepoints of a dataflow that keeps state are retained.
    """

    keep: Keep = _TWO_RUNS
    keep_failed: timedelta | None = 14 * _DAY
    keep_published: timedelta | None = None
    expire_runs: timedelta | None = 90 * _DAY
    orphan_age: timedelta = _DAY
    scrub_share: float = 1 / 168
    scrub_repair: bool = True
    quota: int | None = None
    least_free: int = 16 * 2**20
    retained_checkpoints: int = 3

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> LifeSettings:
        """Read the options of the section [weir]; those of other things, and empty ones, are passed over.

        Raises Misconfigured.
        """
        given = {key.lower(): str(value).strip() for key, value in options.items() if str(value).strip()}
        usual = LifeSettings()
        orphan_age = _time(given, "orphan_age", usual.orphan_age)
        if orphan_age is None:
            raise Misconfigured('orphan_age is "forever": what nobody knows would stay for good; expected a time')
        return LifeSettings(
            keep=Keep.from_text(given["keep"]) if "keep" in given else usual.keep,
            keep_failed=_time(given, "keep_failed", usual.keep_failed),
            keep_published=_time(given, "keep_published", usual.keep_published),
            expire_runs=_time(given, "expire_runs", usual.expire_runs),
            orphan_age=orphan_age,
            scrub_share=_share(given.get("scrub_share"), usual.scrub_share),
            scrub_repair=_flag(given.get("scrub_repair"), usual=usual.scrub_repair),
            quota=size_from_text("quota", given["quota"]) if "quota" in given else None,
            least_free=size_from_text("least_free", given["least_free"]) if "least_free" in given else usual.least_free,
            retained_checkpoints=_count(given, "retained_checkpoints", usual.retained_checkpoints),
        )

    def of(self, dataflow: Dataflow) -> LifeSettings:
        """What holds for a dataflow: its own word first."""
        return LifeSettings(
            keep=self.keep if dataflow.keep is None else Keep.from_text(dataflow.keep),
            keep_failed=_own("keep_failed", dataflow.keep_failed, self.keep_failed),
            keep_published=_own("keep_published", dataflow.keep_published, self.keep_published),
            expire_runs=self.expire_runs,
            orphan_age=self.orphan_age,
            scrub_share=self.scrub_share,
            scrub_repair=self.scrub_repair,
            quota=self.quota if dataflow.quota is None else size_from_text("quota", dataflow.quota),
            least_free=self.least_free,
            retained_checkpoints=self.retained_checkpoints
            if dataflow.retained_checkpoints is None
            else dataflow.retained_checkpoints,
        )


def _own(what: str, text: str | None, usual: timedelta | None) -> timedelta | None:
    return usual if text is None else time_from_text(what, text)


def _time(given: Mapping[str, str], what: str, usual: timedelta | None) -> timedelta | None:
    return time_from_text(what, given[what]) if what in given else usual


def _count(given: Mapping[str, str], what: str, usual: int) -> int:
    text = given.get(what)
    if text is None:
        return usual
    if not text.isdecimal() or int(text) < 1:
        raise Misconfigured(f"{what} is {text!r}, expected a whole number of at least 1")
    return int(text)


def _share(text: str | None, usual: float) -> float:
    if text is None:
        return usual
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Misconfigured(f"scrub_share is {text!r}, expected a share of all bytes an hour, from 0 (never) to 1")
    return share


def _flag(text: str | None, *, usual: bool) -> bool:
    if text is None or text.lower() in (*_TRUE, *_FALSE):
        return usual if text is None else text.lower() in _TRUE
    raise Misconfigured(f"scrub_repair is {text!r}, expected true or false")


T = TypeVar("T")
STORE_CONNECTION = "weir_store"
LEDGER_CONNECTION = "weir_ledger"

STORE_OPTIONS_VARIABLE = "WEIR_STORE_OPTIONS"
"""Also how the options reach a driver of spark-submit: a command line and a file would show their secrets."""

EXPECTATIONS = str(Path(__file__).parents[1] / "expectations")
"""Where suites are if nobody says otherwise: beside this package, in the project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """URLs of store and ledger, the ids of the connections to Spark and to Airflow's API, and the store's options.

    `ledger` may hold a password: show `shown_url(settings.ledger)`. `store_options` are those of the store's fsspec
    file system, with secrets among them. `recovery` is what the deployment says of restarts and budgets, `life` of how
    long results stay.
    """

    store: str
    ledger: str = field(repr=False)
    spark_conn_id: str
    api_conn_id: str
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    life: LifeSettings = field(default_factory=LifeSettings)
    expectations: str = EXPECTATIONS
    """The folder of the suites, each in a file <suite>.json."""


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """What the connection `weir_store` says: the store's URL, if it does, and its fsspec options."""

    url: str | None
    options: Mapping[str, Any] = field(repr=False)


class Connections(Protocol):
    """The connections that say where store and ledger are, where there is an Airflow; None if one is not defined."""

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
    """Read the settings; `option` looks a key up in Airflow's `[weir]` section, where there is an Airflow.

    `section` is the whole of it, for the options of recovery, whose keys have several spellings. A connection is looked
    up only where something is still unknown. Raises Misconfigured if the store or the ledger is not set, the store's
    options are no JSON object or an option of recovery cannot be understood, and what `connections` raises.
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
        life=_of_section(LifeSettings.from_options, found, section or {}),
        expectations=value("expectations") or EXPECTATIONS,
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
        raise Misconfigured(
            f"WEIR_STORE_OPTIONS is not JSON ({type(error).__name__}): expected an object of fsspec options, such as "
            '{"endpoint_url": "https://...", "key": "...", "secret": "..."}'
        ) from None
    if not isinstance(options, dict):
        raise Misconfigured(
            f"WEIR_STORE_OPTIONS: expected a JSON object of fsspec options, found a {type(options).__name__}"
        )
    return options


def shown_url(url: str) -> str:
    """Spell a URL for a person's eyes: without the password."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    account, at, host = authority.rpartition("@")
    login, colon, _ = account.partition(":")
    return f"{scheme}{separator}{login}{':***' if colon else ''}{at}{host}{slash}{path}"


def _of_section(read: Callable[[Mapping[str, Any]], T], environ: Mapping[str, str], section: Mapping[str, Any]) -> T:
    """As for the rest, the environment goes before the section."""
    prefix = "WEIR_"
    own = {name.removeprefix(prefix).lower(): value for name, value in environ.items() if name.startswith(prefix)}
    try:
        return read({**section, **own})
    except Misconfigured as error:
        raise Misconfigured(f"the section [weir] of airflow.cfg, or the environment in its place: {error}") from error


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
    return Misconfigured(
        f"Weir does not know its {key}: set WEIR_{key.upper()} in the environment of every worker, "
        f"or `{key}` in the section [weir] of airflow.cfg, or {connection}"
    )
