"""What a ledger answers, judged. Invariant: nothing is asked here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from weir.doctor.finding import Finding, ok, problem, warning

AREA = "ledger"
OLDEST_POSTGRESQL = 13
OLD_CLEAR = timedelta(minutes=15)
"""Upkeep comes by every three minutes: a clear that is owed for so long is one that cannot be carried out."""
SPARE_CONNECTIONS = 20


@dataclass(frozen=True, slots=True)
class Owed:
    """The clears that Airflow has still to be told of."""

    number: int
    oldest: datetime | None


def judge_revision(found: str | None, head: str, known: frozenset[str]) -> Finding:
    """Judge the revision of the ledger's tables, None if it has none."""
    if found == head:
        return ok(AREA, "revision", found)
    if found is None:
        return ok(AREA, "revision", "none; the first task or command makes its tables")
    if found in known:
        mend = "`weir ledger upgrade`; the next task does it by itself too"
        return warning(AREA, "revision", found, expected=head, mend=mend)
    return problem(
        AREA,
        "revision",
        f"{found}, which this Weir does not know",
        expected=head,
        mend="install the Weir that wrote it here too; all workers need the same",
    )


def judge_postgresql(version: int) -> Finding:
    """Judge `server_version_num`, 160004 for 16.4 say."""
    shown = f"PostgreSQL {version // 10000}.{version % 10000}"
    if version // 10000 >= OLDEST_POSTGRESQL:
        return ok(AREA, "server", shown)
    mend = f"use PostgreSQL {OLDEST_POSTGRESQL} or newer"
    return warning(AREA, "server", shown, expected=f"{OLDEST_POSTGRESQL} or newer", mend=mend)


def judge_connections(limit: int, used: int, parallelism: int | None) -> Finding:
    """Judge a server's room: each task that runs holds up to two connections to the ledger, for moments."""
    needed = 2 * (parallelism or 16) + SPARE_CONNECTIONS
    found = f"{limit} at most, {used} in use"
    if limit >= needed and used < limit - 5:
        return ok(AREA, "connections", found)
    why = f"[core] parallelism is {parallelism}" if parallelism else "a worker runs 16 tasks by default"
    return warning(
        AREA,
        "connections",
        found,
        expected=f"at least {needed}, not all in use: {why}",
        mend=f"max_connections = {max(needed, 2 * limit)} in postgresql.conf and a restart of the server",
    )


def judge_owed(owed: Owed, now: datetime, *, is_served: bool) -> Finding:
    """Judge the clears that Airflow has still to be told of."""
    name = "owed clears"
    if owed.number == 0 or owed.oldest is None:
        return ok(AREA, name, "none")
    age = now - owed.oldest
    found = f"{owed.number}, the oldest for {_told(age)}"
    if age < OLD_CLEAR:
        return ok(AREA, name, found)
    if not is_served:
        return ok(AREA, name, f"{found}; carried out as soon as Airflow runs")
    return problem(
        AREA,
        name,
        found,
        expected=f"none older than {_told(OLD_CLEAR)}: results wait to be made again",
        mend="unpause the DAG weir_upkeep and read the log of its last run, which names what Airflow refuses; a clear "
        "of a DAG or run that was deleted in Airflow can never be carried out",
    )


def _told(age: timedelta) -> str:
    minutes = int(age.total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
