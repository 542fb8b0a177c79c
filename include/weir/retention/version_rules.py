"""Which versions of what was published are not needed any more.

Invariant: the version that readers take stays, unless the deployment says that it may go; one that may still become
visible is decisions only when nobody can be about to publish it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

LEAVE = timedelta(hours=1)
"""Readers of a version that was replaced have so long to come to their end."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of one sink and epoch that has not been expired; `published_at` is None where it may be incomplete."""

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
    """The versions that may go, by number, and why. `keep` is how long published data stay; None is forever.

    `last_event` is when something happened in the run last: a closing task that is at work is seen there. `is_deleted`
    says that Airflow has no such run any more.
    """
    newest_first = sorted(versions, key=lambda version: version.number, reverse=True)
    newest = next((each for each in newest_first if each.published_at is not None), None)
    found: dict[int, str] = {}  # with the newest all go: a reader would take the one below it
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
        return "nobody has completed it, and nobody will" if is_silent else None
    assert newest.published_at is not None  # noqa: S101  # that is what it was chosen for
    if keep is not None and max(newest.published_at, last_event) + keep <= now:
        return "it is older than what is published is kept"
    if version.number < newest.number and newest.published_at + LEAVE <= now:
        return f"version {newest.number} has replaced it"
    return None


def _is_silent(last_event: datetime, now: datetime, keep_failed: timedelta | None, is_deleted: bool) -> bool:  # noqa: FBT001
    return is_deleted or (keep_failed is not None and last_event + keep_failed <= now)
