import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.codec import from_json, to_json
from weir.formats.paths import record_path
from weir.formats.run_record import CorrectedSplits, RecordedDataset, RecordedRange, RecordedSeal, RunRecord

GOLDEN = Path(__file__).parents[2] / "golden"
RECORD = RunRecord(
    run="ladder@20130101T000000Z",
    dataflow="ladder",
    epoch="20130101T000000Z",
    interval=("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
    dag_id="ladder",
    run_id="scheduled__2013-01-02T00:00:00+00:00",
    task_prefix="group.",
    parameters={"airports": ["EWR", "JFK"]},
    pinned={"version": 1, "name": "ladder", "max_parallelism": 128, "parameters": {}, "stages": []},
    predecessor=None,
    created_at="2013-01-02T00:00:05+00:00",
    abandoned=("t0001-0123456789ab",),
    archive="0e" * 32,
    restored_in=3,
    ledger="0f0e0d0c-0b0a-4908-8706-050403020100",
    revision=41,
    ranges={
        "orders": RecordedRange(
            splits=([4, 5], [6]),
            position={"value": {"items": 7}},
            base="ladder@20121231T000000Z",
            pinned_to="0e" * 8,
            resolved_at="2013-01-02T00:00:07+00:00",
        )
    },
    datasets=(
        RecordedDataset(
            stage="report",
            argument="zones",
            dataset="trips.zones",
            selection="last(2), skip",
            runs=("trips@20121231T000000Z",),
            left_out=("20130101T000000Z",),
        ),
    ),
    corrected={"flights": CorrectedSplits(splits=([1],), generation=2, resolved_at="2013-01-03T00:00:07+00:00")},
    seal=RecordedSeal(at="2013-01-04T00:00:07+00:00", why="sealed by ada", clears=1),
)


def test_the_format_on_disk_is_that_of_the_golden_file():
    assert to_json(RECORD) == (GOLDEN / "run-record-v1.json").read_bytes()


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, pinned=None, predecessor="20121231T000000Z", abandoned=(), archive="", revision=0, ranges={}),
    ],
)
def test_a_record_comes_back_as_it_was(record):
    assert from_json(RunRecord, to_json(record)) == record


def test_an_unknown_version_is_refused():
    document = json.loads(to_json(RECORD)) | {"version": 4}
    with pytest.raises(Misconfigured, check=of_kind("formats.another_version", found="4", versions="1")):
        from_json(RunRecord, json.dumps(document).encode())


def test_a_record_lies_beside_the_results_of_its_run():
    assert record_path("ladder", "20130101T000000Z") == "ladder/20130101T000000Z/_run.json"
