"""Airflow's settings, where Weir's speed or safety hangs on them.

Invariant: a setting is judged by what it does to Weir, and no secret is shown, only whether there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weir.doctor.examination import Finding, ok, problem, unknown, warning
from weir.store.local import is_local

AREA = "settings"
PLUGIN_FILE = "weir_plugin.py"

Key = tuple[str, str]

MIN_HEARTBEAT: Key = ("workers", "min_heartbeat_interval")
IDLE_SLEEP: Key = ("scheduler", "scheduler_idle_sleep_time")
HEARTBEAT_TIMEOUT: Key = ("scheduler", "task_instance_heartbeat_timeout")
PARALLELISM: Key = ("core", "parallelism")
PLUGINS_FOLDER: Key = ("core", "plugins_folder")
ALL_ADMINS: Key = ("core", "simple_auth_manager_all_admins")
FERNET_KEY: Key = ("core", "fernet_key")
JWT_SECRET: Key = ("api_auth", "jwt_secret")
JWT_KEY_FILE: Key = ("api_auth", "jwt_private_key_path")

EXECUTOR: Key = ("core", "executor")

SHOWN = (EXECUTOR, MIN_HEARTBEAT, IDLE_SLEEP, HEARTBEAT_TIMEOUT, PARALLELISM, PLUGINS_FOLDER, ALL_ADMINS, JWT_KEY_FILE)
SECRET = (FERNET_KEY, JWT_SECRET)
"""Settings of which only "set" or an empty text is handed on."""

_ON_ONE_MACHINE = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor", "InProcessExecutor", ""})


@dataclass(frozen=True, slots=True)
class _Limit:
    """A number that costs something above `most`."""

    key: Key
    most: float
    advised: str
    cost: str


_LIMITS = (
    _Limit(MIN_HEARTBEAT, 2, "1", "a slot stays taken for as long after most short tasks, and Weir's tasks are many"),
    _Limit(IDLE_SLEEP, 0.5, "0.1", "the scheduler pauses for as long between one task and the next"),
    _Limit(HEARTBEAT_TIMEOUT, 120, "30", "a task whose worker died is started again only after so long"),
)


def judge_settings(found: Mapping[Key, str]) -> Iterator[Finding]:
    """Judge the values of `SHOWN` and `SECRET`; an absent one is taken for unset."""
    for limit in _LIMITS:
        yield _judge_limit(limit, found.get(limit.key, ""))
    yield from _judge_patience(found)
    yield _judge_parallelism(found.get(PARALLELISM, ""))
    yield from _judge_safety(found)


def judge_reach(executors: str, ledger: str, store: str) -> Iterator[Finding]:
    """Judge whether a ledger and a store, by their URLs, are the same ones for all tasks of Airflow's executors."""
    remote = [name for each in executors.split(",") if (name := _executor(each)) not in _ON_ONE_MACHINE]
    if not remote:
        return
    if ledger.startswith("sqlite"):
        yield problem(
            AREA,
            "ledger of all workers",
            f"SQLite, and {', '.join(remote)} runs tasks on several machines",
            expected="one ledger for all of them",
            mend="set WEIR_LEDGER=postgresql+psycopg2://USER:PASSWORD@HOST/weir or the connection weir_ledger",
        )
    if is_local(store):
        yield warning(
            AREA,
            "store of all workers",
            f"a folder, and {', '.join(remote)} runs tasks on several machines",
            expected="one store for all of them",
            mend="fine if every worker mounts it at this path; else set WEIR_STORE to an object store, s3://... say",
        )


def judge_plugins_folder(folder: str, names: tuple[str, ...] | None, checkout: str | None) -> Finding:
    """Judge the names in Airflow's plugins folder, None if there is no such folder; `checkout` is Weir's own one."""
    name = "plugins folder"
    if names is not None and PLUGIN_FILE in names:
        return ok(AREA, name, f"{folder} has {PLUGIN_FILE}")
    found = f"{folder} has no {PLUGIN_FILE}" if names is not None else f"{folder} is not there"
    mend = f"AIRFLOW__CORE__PLUGINS_FOLDER={checkout}" if checkout else f"put Weir's plugins/{PLUGIN_FILE} there"
    return problem(
        AREA,
        name,
        found,
        expected=f"the folder with {PLUGIN_FILE}, at the api-server above all",
        mend=f"{mend}, and start the api-server again; the package weir_airflow has to be installed beside it",
    )


def _executor(text: str) -> str:
    """The class of an executor, which may be given with a team, an alias and its module."""
    return text.strip().split(":")[-1].split(".")[-1]


def _judge_limit(limit: _Limit, text: str) -> Finding:
    name = _name(limit.key)
    seconds = _number(text)
    if seconds is None:
        return unknown(AREA, name, f"{text!r} is no number", mend=_set(limit.key, limit.advised))
    if seconds <= limit.most:
        return ok(AREA, name, f"{text} s")
    expected = f"at most {limit.most:g} s: {limit.cost}"
    return warning(AREA, name, f"{text} s", expected=expected, mend=_set(limit.key, limit.advised))


def _judge_patience(found: Mapping[Key, str]) -> Iterator[Finding]:
    """Airflow must not take a living task for dead."""
    beat, timeout = _number(found.get(MIN_HEARTBEAT, "")), _number(found.get(HEARTBEAT_TIMEOUT, ""))
    if beat is not None and timeout is not None and timeout < 3 * beat:
        yield problem(
            AREA,
            "heartbeats",
            f"given up after {timeout:g} s, sent every {beat:g} s or less often",
            expected="room for three heartbeats: or living tasks are taken for dead, and run twice",
            mend=_set(HEARTBEAT_TIMEOUT, f"{max(30.0, 6 * beat):g}"),
        )


def _judge_parallelism(text: str) -> Finding:
    number = _number(text)
    if number is not None and number >= 2:
        return ok(AREA, _name(PARALLELISM), f"{text} task(s) at once")
    return warning(
        AREA,
        _name(PARALLELISM),
        text or "not set",
        expected="at least 2: a task that waits for a repair may hold a slot for a few seconds",
        mend=_set(PARALLELISM, "4"),
    )


def _judge_safety(found: Mapping[Key, str]) -> Iterator[Finding]:
    if found.get(ALL_ADMINS, "").strip().lower() in {"true", "t", "1", "on", "yes"}:
        yield warning(
            AREA,
            _name(ALL_ADMINS),
            "everybody who reaches the api-server may do everything",
            expected="accounts: a clear makes results anew",
            mend=f"{_set(ALL_ADMINS, 'False')}, and an account for the connection weir_api",
        )
    if found.get(JWT_SECRET) or found.get(JWT_KEY_FILE):
        yield ok(AREA, "secret of the tokens", "set")
    else:
        yield warning(
            AREA,
            "secret of the tokens",
            "not set here: each process would make one of its own",
            expected="one for scheduler and api-server: or the tokens of tasks are refused",
            mend=f"{_set(JWT_SECRET, '...')}, the same at scheduler and api-server; workers need none",
        )
    if found.get(FERNET_KEY):
        yield ok(AREA, "fernet key", "set")
    else:
        yield warning(
            AREA,
            "fernet key",
            "not set here",
            expected="one for all: without it Airflow's database keeps the passwords of connections readable",
            mend=_set(FERNET_KEY, "..."),
        )


def _set(key: Key, value: str) -> str:
    return f"AIRFLOW__{key[0].upper()}__{key[1].upper()}={value}"


def _name(key: Key) -> str:
    return f"[{key[0]}] {key[1]}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
