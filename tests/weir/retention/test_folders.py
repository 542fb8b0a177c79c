"""What a sweep may take: by definition, whatever else the ledger knows; drawn folders of a run."""

from datetime import UTC, datetime
from random import Random

import pytest

from weir.execution.partition_state import PartitionState as State
from weir.formats.manifest import COPY_NAME, RELEASED_NOTE
from weir.retention.deletion_rules import (
    Age,
    FolderAction,
    KnownAttempt,
    KnownResult,
    RunKnowledge,
    folder_decisions,
)
from weir.retention.folder_rules import Place, run_folder

ROOT = "flow/20130101T000000Z"
AT = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUTS = ("plain", "copy")


def drawn(random):
    """The files of a run's folder, and what the ledger knows of it."""
    attempts = {
        f"t{number}": KnownAttempt(
            region="clean",
            subtask=random.choice([0, 1]),
            try_number=number,
            is_running=(is_running := random.random() < 0.3),
            state="running" if is_running else random.choice(["committed", "failed", "fenced"]),
            ended_at=None if is_running else AT,
        )
        for number in range(1, 5)
    }
    files, results, published = [], {}, set()
    for attempt in [*attempts, "unknown"]:
        layout = random.choice(LAYOUTS)
        folder = f"{ROOT}/clean/{layout}/{attempts[attempt].subtask if attempt in attempts else 0}/{attempt}"
        last = COPY_NAME if layout == "copy" else "manifest.json"
        names = [["part-0", last], ["part-0"], [last, RELEASED_NOTE]][random.choice([0, 0, 0, 1, 2])]
        files += [(f"{folder}/{name}", 4) for name in names]
        if layout == "plain" and attempt != "unknown" and random.random() < 0.7:
            state = random.choice([State.FINISHED, State.LOST, State.QUARANTINED, State.RELEASED, State.SUPERSEDED])
            reader = "somebody reads it" if random.random() < 0.2 else None
            results[folder] = KnownResult(state=state, bytes=4, reason="so it is", reader=reader)
        if random.random() < 0.2:
            published.add(folder)
    copies = {("clean", str(subtask)): "its run goes on" for subtask in (0, 1) if random.choice([True, False])}
    return run_folder(ROOT, files), RunKnowledge(
        results=results,
        attempts=attempts,
        published=frozenset(published),
        copies=copies,
        pointers={},
        is_expired=random.random() < 0.3,
    )


def is_needed(folder, known):
    """Whether an attempt, a reader, a published version or the ledger needs what is in a folder."""
    attempt, result = known.attempts.get(folder.attempt), known.results.get(folder.path)
    if attempt is not None and attempt.is_running:
        return True
    if folder.place is Place.COPY:
        same = [each for each in known.attempts.values() if attempt and each.subtask == attempt.subtask]
        return COPY_NAME in folder.names and not known.is_expired and any(each.is_running for each in same)
    if folder.path in known.published or (result is not None and result.reader is not None):
        return True
    kept = (State.FINISHED,) if known.is_expired else (State.FINISHED, State.LOST, State.QUARANTINED)
    return result is not None and result.state in kept


@pytest.mark.parametrize("seed", range(300))
def test_what_is_needed_stays_and_what_was_superseded_goes(seed):
    found, known = drawn(Random(seed))
    for decision in folder_decisions(found, known):
        folder, result = decision.folder, known.results.get(decision.folder.path)
        if is_needed(folder, known):
            assert decision.action is FolderAction.KEPT
        elif result is not None and (result.state is State.SUPERSEDED or known.is_expired):
            assert (decision.action, decision.age) == (FolderAction.GARBAGE, Age.ANY)
        elif result is not None:
            assert decision.action is (FolderAction.EMPTIED if "part-0" in folder.names else FolderAction.KEPT)
        elif folder.path not in known.published and (known.is_expired or folder.place is Place.RESULT):
            assert decision.action is FolderAction.GARBAGE
            assert (decision.age is Age.ANY) is known.is_expired
            if decision.age is not Age.ANY and folder.attempt in known.attempts:
                assert decision.since == AT
