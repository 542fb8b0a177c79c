"""The format of notifications is a contract with whoever receives them."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from weir.dataflow import EventKind
from weir.formats.notification import (
    Subject,
    checkpoint_event,
    deadline_event,
    failed_over_event,
    healed_event,
    person_event,
    published_event,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "notification-v1.json"
AT = datetime(2013, 1, 2, 6, tzinfo=UTC)
OF = Subject("trips", "20130101T000000Z", "trips@20130101T000000Z")


def events():
    yield checkpoint_event(EventKind.CHECKPOINT_COMPLETED, OF, 4, "is complete", full_bytes=9, incremental_bytes=1)
    yield published_event(OF, "delays", 2, "t0001-a", "p.json")
    yield person_event("task_failed", OF, ("t0003-b",), "report has failed for good: x", task_id="report")
    yield deadline_event(OF, "was to be published", deadline="2013-01-02T06:00:00+00:00", published_at=None)
    failed_over = failed_over_event(OF, (OF.run, "t0003-b"), "recovers", trigger="loss", cause="x", tasks=["a[0]"])
    yield failed_over
    yield healed_event(failed_over.id, OF, "is whole again", cause="x", failovers=1)


def test_the_format_is_that_of_the_golden_file():
    assert [event.to_json(AT) for event in events()] == json.loads(GOLDEN.read_text())


def test_an_id_is_ascii_and_depends_on_nothing_but_what_happened():
    event = person_event("begin_failed", OF, ("täg", "manual__1+00:00", "a/b", "-1", "1"), "x")
    assert event.id == "trips/person_needed/begin_failed/t%C3%A4g/manual__1+00:00/a%2Fb/-1/1"


def test_times_are_in_utc():
    elsewhere = AT.astimezone(timezone(timedelta(hours=5)))
    assert next(events()).to_json(elsewhere)["at"] == "2013-01-02T06:00:00+00:00"
