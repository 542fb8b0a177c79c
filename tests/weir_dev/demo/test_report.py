"""What the demo prints is short, and leaves nothing out that it found."""

from __future__ import annotations

from weir_dev.airflow_api import TaskInstance
from weir_dev.demo.hold import LostPartition
from weir_dev.demo.report import in_short, reason_in_short

LOST = LostPartition(
    name="join[0] by carrier",
    folder="flights/e/join/by-carrier/0/t1",
    rows=411,
    bytes=10219,
    consumers=("by_carrier[0]",),
    held_results=14,
)


def named(*names):
    return [
        TaskInstance(task_id=task_id, map_index=map_index, run_id="run", state="success", try_number=1, note="")
        for task_id, map_index in names
    ]


def test_neighbours_of_a_mapped_task_are_named_together():
    found = named(("join", 1), ("clean", 2), ("clean", 0), ("weather", -1), ("clean", 1), ("by", 0), ("by", 2))
    assert in_short(found) == "by[0], by[2], clean[0..2], join[1], weather"


def test_a_reason_leaves_out_which_result_was_lost_and_the_path_of_its_manifest():
    reason = (
        "join[0] (by-carrier) of flights@e: missing, expected the manifest "
        "flights/e/join/by-carrier/0/t1/manifest.json, found no such file; needed by by_carrier[0]"
    )
    said = reason_in_short(reason, LOST)
    assert said == "missing, expected the manifest, found no such file; needed by by_carrier[0]"


def test_any_other_reason_stays_as_it_is():
    for reason in ("try 2: cleared by a person, backtrack; try 3: retry, committed", "nothing it reads is recomputed"):
        assert reason_in_short(reason, LOST) == reason
