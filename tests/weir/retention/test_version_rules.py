"""Versions expire: replaced ones after an hour, others only by the settings of the deployment."""

from datetime import UTC, datetime, timedelta

import pytest

from weir.dataflow.retention_settings import RetentionSettings
from weir.retention.deletion_rules import expired_versions

DAY = timedelta(days=1)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def judged(*versions, after, keep=None, keep_failed=14 * DAY, last_event=AT, is_deleted=False):
    found = {number: None if at is None else AT + at for number, at in versions}
    settings = RetentionSettings(keep_published=keep, keep_failed=keep_failed)
    gone = expired_versions(found, last_event, AT + after, settings, is_deleted=is_deleted)
    return set(gone)


NOW, HOUR = timedelta(0), timedelta(hours=1)


@pytest.mark.parametrize(
    ("versions", "after", "gone"),
    [
        ([(1, NOW)], 1000 * DAY, set()),
        ([(1, NOW), (2, NOW)], HOUR - timedelta(seconds=1), set()),
        ([(1, NOW), (2, NOW)], HOUR, {1}),
        ([(1, NOW), (2, None), (3, NOW)], HOUR, {1, 2}),
        ([(1, NOW), (2, None)], 2 * HOUR, set()),
        ([(1, NOW), (2, None)], 14 * DAY, {2}),
        ([(1, None)], 13 * DAY, set()),
        ([(1, None)], 14 * DAY, {1}),
    ],
)
def test_of_the_versions_of_an_epoch(versions, after, gone):
    assert judged(*versions, after=after) == gone


def test_what_is_published_goes_when_it_is_older_than_it_is_kept():
    assert judged((1, NOW), after=7 * DAY, keep=7 * DAY) == {1}
    assert judged((1, NOW), after=7 * DAY, keep=7 * DAY, last_event=AT + DAY) == set()
    assert judged((1, NOW), (2, DAY), after=7 * DAY, keep=7 * DAY) == {1}


def test_an_incomplete_version_expires_with_its_dag_run():
    assert judged((1, None), after=DAY, keep_failed=None) == set()
    assert judged((1, None), after=DAY, keep_failed=None, is_deleted=True) == {1}
    assert judged((1, NOW), after=DAY, is_deleted=True) == set()
