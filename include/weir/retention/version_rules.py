"""Rules of expiry for published versions.

Invariant: the version that readers see stays, unless `keep_published` has passed; a version that may still become
visible expires only when no closing task can be about to publish it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

LEAVE = timedelta(hours=1)
"""How long readers of a replaced version may continue."""


@dataclass(frozen=True, slots=True)
class Version:
    """An unexpired version of one sink and epoch; `published_at` is None if it may be incomplete."""

    number: int
    published_at: datetime | None


def expired(
    versions: Iterable[Version],
    last_event: datetime,
    now: datetime,
    *,
    keep: timedelta | None,
    keep_failed: timedelta | None,
    is_deleted: bool = False,
) -> dict[int, str]:
    """Return the versions to expire, by number, and why. `keep` is the retention of published data; None is forever.

    `last_event` is the time of the last event in the run, which a running closing task renews. `is_deleted` says that
    the DagRun was deleted in Airflow.
    """
    newest_first = sorted(versions, key=lambda version: version.number, reverse=True)
    newest = next((each for each in newest_first if each.published_at is not None), None)
    found: dict[int, str] = {}  # with the newest all expire: a reader would see the version before it
    for each in newest_first:
        why = _why(each, newest, last_event, now, keep, is_silent=_is_silent(last_event, now, keep_failed, is_deleted))
        if why is not None:
            found[each.number] = why
    return found


def _why(
    version: Version,
    newest: Version | None,
    last_event: datetime,
    now: datetime,
    keep: timedelta | None,
    *,
    is_silent: bool,
) -> str | None:
    if newest is None or version.number > newest.number:
        return "it is incomplete, and will not be completed" if is_silent else None
    assert newest.published_at is not None  # noqa: S101  # that is what it was chosen for
    if keep is not None and max(newest.published_at, last_event) + keep <= now:
        return "it is older than keep_published"
    if version.number < newest.number and newest.published_at + LEAVE <= now:
        return f"version {newest.number} has replaced it"
    return None


def _is_silent(last_event: datetime, now: datetime, keep_failed: timedelta | None, is_deleted: bool) -> bool:  # noqa: FBT001
    return is_deleted or (keep_failed is not None and last_event + keep_failed <= now)
