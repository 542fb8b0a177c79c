"""Invariants of code (invariant 8): one code for each task of an epoch, and newer code only where somebody wants it.

Invariant: which code made a result is seen in its content; who has cleared is what persons did, not what Weir took it
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tests.simulator.engine import meaning_of
from tests.simulator.history.epochs import RunRegion
from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Attempt, LedgerView, Partition, StoredArchive
from tests.simulator.invariants.needs import is_gone
from tests.simulator.invariants.recomputation import recomputed

from weir.code.generation_rules import RepairCode
from weir.execution.run_state import CLOSE
from weir.ledger.runs import dataflow_of

BY_PERSON: Final = "cleared by a person"

OWN: Final = ("application", "fatal")
"""The failures that the function itself is to blame for."""


def a_stage_has_one_code(history: History) -> Iterator[str]:
    """The valid results of a stage are what one code makes of what they read; what is published is valid as a whole."""
    ledger = history.ledger
    if not ledger.results_changed:
        return
    tasks: dict[tuple[str, str], list[Partition]] = {}
    for partition, result in ledger.current.items():
        if not ledger.attempts[result.attempt].is_restored and ledger.is_valid(partition):
            tasks.setdefault((partition.run, history.epochs.producer(partition)[1].name), []).append(partition)
    for (run, name), partitions in tasks.items():
        if edits_of(history, run, name, partitions) is None:
            made = {ledger.current[each].attempt for each in partitions}
            found = {each: history.engine.made[each].edits for each in sorted(made)}
            yield f"the results of {name} of {run} are valid, and no code makes all of them: their edits are {found}"


def a_run_that_counts_as_closed_has_one_code(history: History) -> Iterator[str]:
    """After a commit, a run counts as closed only if one code has made each stage: later runs ask no more."""
    ledger = history.ledger
    for run in {row.run for row in ledger.new_commits if ledger.runs()[row.run].closed_at is not None}:
        for partition in ledger.current:
            if partition.run == run and ledger.behind(partition):
                yield f"{run} counts as closed, and no code has made all of {partition.id.stage}"


def edits_of(history: History, run: str, name: str, partitions: list[Partition]) -> Mapping[str, int] | None:
    """Return the edits that make all of a task's results of what these read; None if there are none."""
    ledger, made = history.ledger, history.engine.made
    current = {ledger.current[each].attempt for each in partitions}
    used = [made[each].edits for each in sorted(current)]
    if all(_meanings(each) == _meanings(used[0]) for each in used):
        return used[0] if used else {}
    tried = [row.id for row in ledger.attempts.values() if (row.run, row.region) == (run, name)]
    possible = {_meanings(made[each].edits): made[each].edits for each in tried if each in made}
    return next((each for each in possible.values() if _explains(history, each, partitions)), None)


def _meanings(edits: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((stage, meaning_of(edit)) for stage, edit in edits.items())


def _explains(history: History, edits: Mapping[str, int], partitions: list[Partition]) -> bool:
    """Report whether a code gives all of these results, with the rows of sources as some try of each had read them."""
    ledger, made = history.ledger, history.engine.made
    for each in partitions:
        result = ledger.current[each]
        where, stage = ledger.attempts[result.attempt].run_region, result.stage
        tries = [made[row.id] for row in ledger.attempts.values() if row.run_region == where and row.id in made]
        owns = [one.own for one in tries if stage in one.contents]
        if all(recomputed(history, each, own, edits)[stage] != made[result.attempt].contents[stage] for own in owns):
            return False
    return True


def no_older_code_commits_after_newer(history: History) -> Iterator[str]:
    """The code of a task in a run never goes back."""
    for row in history.ledger.new_commits:
        if has_newer_code(history, row):
            yield f"{row.id} of {row.region} has committed with generation {row.generation}, and a newer one had"


def has_newer_code(history: History, row: Attempt) -> bool:
    """Report whether another subtask has committed with newer code than an attempt's."""
    newest = max((each.generation or 0 for each in _committed(history, row)), default=0)
    return row.generation is not None and newest > row.generation


def is_of_older_code(history: History, where: RunRegion) -> bool:
    """Report whether a region's results have to be computed again with the newer code of their siblings."""
    run, region = where
    outputs = () if region == CLOSE else history.topology_of(run).outputs(region)
    return any(each in history.ledger.behind(each) for each in (Partition(run, one) for one in outputs))


def a_commit_owes_the_clears_of_siblings_of_older_code(history: History) -> Iterator[str]:
    """In its own transaction, where no code has made all of a stage's results; those that run need no clear.

    Not what is of older code itself: the newest may be of a try that Airflow has lost, and which another one repeats.
    """
    ledger = history.ledger
    for row in ledger.new_commits:
        if row.is_restored or row.generation is None:
            continue
        owed = {each.run_region for each in ledger.pending_clears()}
        for partition in history.topology_of(row.run).outputs(row.run_region[1]):
            behind = ledger.behind(Partition(row.run, partition))
            for other in () if Partition(row.run, partition) in behind else behind:
                producer = history.epochs.producer(other)
                if producer not in owed and not ledger.is_running(*producer):
                    yield f"{row.id} has committed {partition} with newer code, and {other.id} is not to be cleared"


def what_weir_runs_again_runs_the_code_that_is_current(history: History) -> Iterator[str]:
    """A begin has the current generation, or goes on with that of the try before; else a person or a failure asks."""
    ledger = history.ledger
    for row in ledger.attempts.values():
        before = ledger.before.get(row.id)
        has_begun = row.state == "running" and (before is None or before.state != "running")
        if row.generation is None or not has_begun or ledger.runs()[row.run].run_id in history.recreated:
            continue
        tries = _tries(history, row)
        mine = [each for each in tries if each.subtask == row.subtask and each.try_number < row.try_number]
        last = max(mine, key=lambda each: each.try_number, default=None)
        is_wanted = _is_taken_for_cleared(history, row) or _is_cleared_by_person(history, row, last)
        is_as_it_was = history.topology_of(row.run).dataflow.repair_code is RepairCode.AS_IT_WAS
        is_empty = not _has_results(history, row)
        is_new = is_empty or not any(each.state == "committed" and each.generation is not None for each in tries)
        has_failed = last is not None and last.failure in OWN
        if (is_wanted and (not is_as_it_was or is_new)) or (has_failed and is_empty) or _is_for_newest(ledger, row):
            continue
        allowed = _present(history, row, last, tries)
        if allowed is not None and (row.generation, row.code) != allowed:
            yield (
                f"{row.id} of {row.region}[{row.subtask}] ({row.origin}) runs generation {row.generation} "
                f"({row.code}), and not {allowed}"
            )


def _present(
    history: History, row: Attempt, last: Attempt | None, tries: list[Attempt]
) -> tuple[int | None, str | None] | None:
    """Return the generation, and its code, that a try has to run; None where it may open the first one."""
    found = [each for each in tries if each.state == "committed" and each.generation is not None]
    if last is not None and row.origin == "retry" and last.generation is not None:
        found.append(last)
    before = history.ledger.before.get(row.id)
    opened = [each for each in (*tries, before) if each is not None and each.generation is not None]
    newest = max(found or opened, key=lambda each: each.generation or 0, default=None)
    return None if newest is None else (newest.generation, newest.code)


def _is_cleared_by_person(history: History, row: Attempt, last: Attempt | None) -> bool:
    """Report whether a person has cleared the task instance since the try before, or, while that ran, another one."""
    run_id, since = history.ledger.runs()[row.run].run_id, 0 if last is None else last.try_number
    was_running = last is not None and (last.failure == "killed" or last.state in ("fenced", "committed"))
    for key, at in history.cleared:
        is_this = (key.task_id, key.map_index) == (row.task_id, row.map_index) and since <= at < row.try_number
        if key.run_id == run_id and (is_this or was_running):
            return True
    return False


def _has_results(history: History, row: Attempt) -> bool:
    """Report whether the run has current results of the stages of an attempt."""
    stages = {stage.name for stage in history.topology_of(row.run).stages_of(row.region)}
    return any(each.run == row.run and each.id.stage in stages for each in history.ledger.current)


def _is_for_newest(ledger: LedgerView, row: Attempt) -> bool:
    """Report whether Weir has cleared a task of the run for the newest code, as it does for what follows a restore.

    Its other subtasks, and what follows it and has not begun, take that code, too.
    """
    newest = RepairCode.NEWEST.value
    return any(each.run == row.run and each.code == newest for each in ledger.clears.values())


def what_nobody_touched_has_the_code_of_its_run(history: History) -> Iterator[str]:
    """A run in which no person has cleared, and no function has failed, has one code, except after a restore."""
    ledger = history.ledger
    for row in ledger.attempts.values():
        if row.generation is None or (row.id in ledger.before and ledger.before[row.id].archive == row.archive):
            continue
        run = ledger.runs()[row.run]
        is_touched = run.run_id in history.recreated or any(key.run_id == run.run_id for key, _ in history.cleared)
        has_failed = any(each.failure in OWN or _has_failed(history, each) for each in _of_run(ledger, row.run))
        is_touched |= any(_is_taken_for_cleared(history, each) for each in _of_run(ledger, row.run))
        is_touched |= _is_for_newest(ledger, row)
        if row.archive != run.archive and not is_touched and not has_failed:
            yield f"{row.id} of {row.region} runs {row.archive}, and {row.run} is pinned to {run.archive}"


def _of_run(ledger: LedgerView, run: str) -> list[Attempt]:
    return [each for each in ledger.attempts.values() if each.run == run]


def _is_taken_for_cleared(history: History, row: Attempt) -> bool:
    """Report whether a try may count as a person's: a ledger that lost commits may not know what it had cleared."""
    return history.has_lost_commits and row.origin == BY_PERSON


def _has_failed(history: History, row: Attempt) -> bool:
    made = history.engine.made.get(row.id)
    return made is not None and made.has_failed


def the_archives_of_all_attempts_are_there(history: History) -> Iterator[str]:
    """The code that an attempt names is in the store, whole, until its run expires: here since its DagRun is gone."""
    ledger = history.ledger
    named = {(row.run, row.archive) for row in ledger.attempts.values()}
    named |= {(run.id, run.archive) for run in ledger.runs().values()}
    named = {(dataflow_of(run), archive) for run, archive in named if archive is not None and not is_gone(history, run)}
    if not named:
        return
    rows = ledger.rows(StoredArchive, "archive")
    there = {(row.dataflow, row.fingerprint) for row in rows if row.deleting_at is None and row.path in history.files}
    for dataflow, fingerprint in named - there:
        yield f"archive {fingerprint} of {dataflow} is not in the store"


def _tries(history: History, row: Attempt) -> list[Attempt]:
    """Return the other attempts of a task, of all its subtasks."""
    rows = history.ledger.attempts.values()
    return [
        each
        for each in rows
        if (each.run, each.region) == (row.run, row.region) and each != row and each.try_number > 0
    ]


def _committed(history: History, row: Attempt) -> list[Attempt]:
    return [each for each in _tries(history, row) if each.state == "committed"]
