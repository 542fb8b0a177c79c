"""The rules decide about the files in a run's folder by the ledger's record of the run."""

from datetime import UTC, datetime

import pytest

from weir.execution.partition_state import PartitionState as State
from weir.retention.deletion_rules import (
    Age,
    FolderAction,
    KnownAttempt,
    KnownResult,
    RunKnowledge,
    folder_decisions,
    known_gone,
)
from weir.retention.folder_rules import Place, may_have_strays, run_folder, strays

ROOT = "flow/20130101T000000Z"
AT = datetime(2026, 1, 1, tzinfo=UTC)
FOLDER = f"{ROOT}/clean/plain/0/t1"
COPY = f"{ROOT}/clean/copy/0"


def attempt(number=1, *, is_running=False, state="failed"):
    return KnownAttempt(
        region="clean",
        subtask=0,
        try_number=number,
        is_running=is_running,
        state=state,
        ended_at=None if is_running else AT,
    )


def result(state, **more):
    return KnownResult(state=state, bytes=4, reason="so it is", **more)


def knowing(results=None, attempts=None, *, published=(), copies=None, expired=False):
    return RunKnowledge(
        results=results or {},
        attempts=attempts or {},
        published=frozenset(published),
        copies=copies or {},
        pointers={},
        is_expired=expired,
    )


def action(known, *files):
    (judged,) = folder_decisions(
        run_folder(ROOT, [(f"{FOLDER}/{name}", 4) for name in files or ("manifest.json", "x")]), known
    )
    return judged.action, judged.age is not Age.ANY


def test_files_are_grouped_by_the_attempt_that_writes_them():
    found = run_folder(
        ROOT,
        [
            (f"{ROOT}/_run.json", 1),
            (f"{ROOT}/._run.json.{'a' * 32}.tmp", 2),
            (f"{ROOT}/_regions/clean/0/t1/report.json", 3),
            (f"{ROOT}/clean/plain/0/t1/_temporary/0/part", 4),
            (f"{ROOT}/clean/plain/0/t1/manifest.json", 5),
            (f"{ROOT}/clean/copy/0/t1/copy.json", 6),
            (f"{ROOT}/clean/plain/note", 7),
            (f"{ROOT}/_other/a/b/c/d/e", 8),
        ],
    )
    assert found.has_record
    assert [(each.place, each.name, each.attempt, each.bytes) for each in found.folders] == [
        (Place.RECORD, "clean", "t1", 3),
        (Place.COPY, "clean", "t1", 6),
        (Place.RESULT, "clean", "t1", 9),
    ]
    assert [size for _, size in found.temporary] == [2]
    assert [size for _, size in found.strange] == [7, 8]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.FINISHED, FolderAction.KEPT),
        (State.LOST, FolderAction.KEPT),
        (State.QUARANTINED, FolderAction.KEPT),
        (State.RELEASED, FolderAction.EMPTIED),
        (State.SUPERSEDED, FolderAction.GARBAGE),
    ],
)
def test_a_result_goes_by_its_state(state, expected):
    assert action(knowing({FOLDER: result(state)}, {"t1": attempt(state="committed")})) == (expected, False)
    leased = knowing({FOLDER: result(state, reader="ann reads it")}, {"t1": attempt(state="committed")})
    assert action(leased) == (FolderAction.KEPT, False)
    named = knowing({FOLDER: result(state)}, {"t1": attempt(state="committed")}, published=[FOLDER])
    assert action(named) == (FolderAction.KEPT, False)
    expired = knowing({FOLDER: result(state)}, {"t1": attempt(state="committed")}, expired=True)
    assert action(expired)[0] is (FolderAction.KEPT if state is State.FINISHED else FolderAction.GARBAGE)


def test_the_manifest_of_a_released_result_stays():
    known = knowing({FOLDER: result(State.RELEASED)}, {"t1": attempt(state="committed")})
    assert action(known, "manifest.json", "released.json") == (FolderAction.KEPT, False)


def test_files_of_an_attempt_are_deleted_once_they_are_old_and_never_while_it_is_running():
    assert action(knowing(attempts={"t1": attempt(is_running=True, state="running")})) == (FolderAction.KEPT, False)
    assert action(knowing(attempts={"t1": attempt(is_running=True, state="running")}, expired=True)) == (
        FolderAction.KEPT,
        False,
    )
    assert action(knowing(attempts={"t1": attempt(state="fenced")})) == (FolderAction.GARBAGE, True)
    assert action(knowing(attempts={"t1": attempt(state="fenced")}, published=[FOLDER])) == (FolderAction.KEPT, False)
    assert action(knowing()) == (FolderAction.GARBAGE, True)


@pytest.mark.parametrize("state", ["running", "committed", "failed"])
def test_what_a_source_has_loaded_for_an_attempt_is_garbage_after_it(state):
    path = f"{ROOT}/clean/loaded/0/t1/00000.parquet"
    known = knowing(attempts={"t1": attempt(is_running=state == "running", state=state)})
    (judged,) = folder_decisions(run_folder(ROOT, [(path, 4)]), known)
    assert judged.action is (FolderAction.KEPT if state == "running" else FolderAction.GARBAGE)


def copies(known, *attempts, complete=True):
    name = "copy.json" if complete else "part"
    return [
        each.action
        for each in folder_decisions(run_folder(ROOT, [(f"{COPY}/{each}/{name}", 4) for each in attempts]), known)
    ]


def test_copies_stay_as_long_as_an_attempt_may_resume_from_the_newest():
    kept, two = {("clean", "0"): "the run is not over"}, {"t1": attempt(1), "t2": attempt(2)}
    assert copies(knowing(attempts=two, copies=kept), "t1", "t2") == [FolderAction.GARBAGE, FolderAction.KEPT]
    assert copies(knowing(attempts=two), "t1", "t2") == [FolderAction.GARBAGE, FolderAction.GARBAGE]
    third = two | {"t3": attempt(3, is_running=True, state="running")}
    assert copies(knowing(attempts=third), "t1", "t2") == [FolderAction.KEPT, FolderAction.KEPT]
    assert copies(knowing(attempts=third, copies=kept), "t2", complete=False) == [FolderAction.GARBAGE]


def test_strays_are_what_no_manifest_names():
    (folder,) = run_folder(
        ROOT, [(f"{FOLDER}/{name}", size) for name, size in [("a", 4), ("manifest.json", 9)]]
    ).folders
    assert not may_have_strays(folder, 4)
    assert may_have_strays(folder, 3)
    (folder,) = run_folder(ROOT, [(f"{FOLDER}/{name}", size) for name, size in [("a", 4), ("_SUCCESS", 0)]]).folders
    assert may_have_strays(folder, 4)
    assert strays(folder, frozenset({"a"})) == (("_SUCCESS", 0),)


def test_what_is_out_of_use_and_not_there_any_more_is_known_to_be_gone():
    known = {
        "a": result(State.SUPERSEDED),
        "b": result(State.SUPERSEDED, is_deleted=True),
        "c": result(State.LOST),
        "d": result(State.FINISHED),
        "e": result(State.SUPERSEDED),
    }
    assert known_gone(knowing(known), {"e"}) == {"a"}
    assert known_gone(knowing(known, expired=True), {"e"}) == {"a", "c"}
