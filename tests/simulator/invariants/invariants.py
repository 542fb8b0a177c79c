"""The invariants of `docs/guarantees.md`, as functions over the history of a simulation.

Invariant: each function yields what breaks it, as text, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Clear, Partition, Read, Result
from tests.simulator.invariants.clears import (
    a_clear_is_settled_when_airflow_has_followed,
    a_commit_records_the_clears_that_follow_from_it,
    made_by,
    nothing_is_cleared_again_and_again_in_vain,
)
from tests.simulator.invariants.code import (
    a_commit_owes_the_clears_of_siblings_of_older_code,
    a_run_that_counts_as_closed_has_one_code,
    a_stage_has_one_code,
    has_newer_code,
    is_of_older_code,
    no_older_code_commits_after_newer,
    the_archives_of_all_attempts_are_there,
    what_nobody_touched_has_the_code_of_its_run,
    what_weir_runs_again_runs_the_code_that_is_current,
)
from tests.simulator.invariants.gates import (
    nothing_bad_passes_a_gate,
    only_suspected_inputs_are_quarantined,
    what_is_in_quarantine_is_bad,
)
from tests.simulator.invariants.needs import no_needed_result_is_released
from tests.simulator.invariants.plans import a_plan_names_what_must_run_again, what_is_spared_is_not_cleared
from tests.simulator.invariants.recomputation import recomputed
from tests.simulator.invariants.restores import (
    a_restore_is_taken_whole,
    a_restore_is_what_was_kept,
    no_attempt_from_before_a_restore_commits,
    what_was_restored_stays_pinned,
)
from tests.simulator.invariants.reuse import (
    a_closed_run_has_read_what_is_current,
    an_adopted_result_is_valid_and_wanted,
)
from tests.simulator.invariants.snapshots import (
    a_checkpoint_is_what_is_current,
    a_retained_checkpoint_can_be_read_whole,
)
from tests.simulator.invariants.sources import (
    a_copied_source_is_read_once,
    a_source_is_recorded_as_it_once_was,
    published_epochs_have_each_file_once,
    ranges_follow_each_other,
    results_of_a_source_are_of_one_listing,
)

from weir.coordination.values import Begun
from weir.dataflow.dataflow import FailoverStrategy
from weir.execution.run_state import CLOSE
from weir.formats.paths import folder_of
from weir.ledger.runs import dataflow_of
from weir.recovery.standing import AGAIN
from weir.topology.regions import PartitionId, RegionId


def one_attempt_a_try_becomes_current(history: History) -> Iterator[str]:
    """Invariant 2."""
    ledger = history.ledger
    for row in ledger.new_commits:
        tried = (*row.run_region, row.try_number)
        other = history.committed_tries.get(tried, row.id)
        history.committed_tries[tried] = row.id
        # Attempts of a deleted DagRun have been renumbered.
        if other != row.id and ledger.attempts[other].try_number == row.try_number:
            yield f"{row.id} and {other} are both committed for try {row.try_number} of {row.region}[{row.subtask}]"


def a_fenced_attempt_changes_nothing(history: History) -> Iterator[str]:
    """Invariant 2: only the newest attempt commits, and none that has ended before."""
    ledger = history.ledger
    for row in ledger.new_commits:
        if row.is_restored:
            continue  # it is synthetic, and fences all others
        newer = [
            each.id
            for each in ledger.attempts.values()
            if each.run_region == row.run_region and each.try_number > row.try_number
        ]
        if newer:
            yield f"{row.id} has committed though {', '.join(newer)} had begun"
        known = ledger.before.get(row.id)
        if known is not None and known.state != "running":
            yield f"{row.id} has committed though it was {known.state}"
    committed = {row.id for row in ledger.new_commits}
    for result in ledger.new_results:
        if result.is_current and result.attempt not in committed:
            yield f"a result of {result.attempt} is current, which has not committed just now"


def results_of_a_region_are_of_one_attempt(history: History) -> Iterator[str]:
    """Invariant 2."""
    found: dict[tuple[str, RegionId], set[str]] = {}
    for partition, result in history.ledger.current.items():
        _, region = history.epochs.producer(partition)
        if not history.ledger.attempts[result.attempt].is_restored:
            found.setdefault((partition.run, region), set()).add(result.attempt)
    for (_, region), attempts in found.items():
        if len(attempts) > 1:
            yield f"the current results of {region} are those of {', '.join(sorted(attempts))}"


def a_commit_has_read_nothing_damaged(history: History) -> Iterator[str]:
    """Invariant 3: no commit has read a result that was found damaged before."""
    ledger = history.ledger
    for row in ledger.new_commits:
        read = {(each.partition, each.attempt): each for each in ledger.reads[row.id]}
        for result in ledger.results.values():
            if result.fault == "damaged" and (result.partition, result.attempt) in read:
                yield f"{row.id} of {row.region} has committed, but {_shown(result)} was found damaged"


def what_is_finished_has_no_fault(history: History) -> Iterator[str]:
    """Invariant of states: what a commit would refuse as damaged is lost by the ledger, and no begin reads it."""
    for result in history.ledger.results.values():
        if result.fault is not None and result.state == "finished":
            yield f"{_shown(result)} is finished, and {result.fault}"


def a_commit_was_made_from_what_is_current(history: History) -> Iterator[str]:
    """Invariant 3."""
    ledger = history.ledger
    for row in ledger.new_commits:
        for read in ledger.reads[row.id]:
            found = ledger.current.get(read.partition)
            if found is None or found.digest != read.digest or found.state == "quarantined":
                yield f"{row.id} of {row.region} has committed, but read {_short(read)} and {_shown(found)} is current"
            elif found.attempt != read.attempt and history.restarts_consumers(read.partition.id.stage):
                yield f"{row.id} of {row.region} read {_short(read)}, but {found.attempt} is, and it always restarts"


def why_not_stopped(history: History, begun: Begun) -> Iterator[str]:
    """Yield why a heartbeat should not have stopped an attempt: its inputs are as they were read, or only went away."""
    ledger = history.ledger
    if any(each.manifest.state is not None for each in begun.inputs):
        return  # the lease on a state may have run out
    lineage = max((row.lineage for row in ledger.attempts.values()), default=0)
    if lineage != begun.attempt.lineage or begun.attempt.id not in ledger.attempts:
        return
    damaged = {(row.partition, row.attempt) for row in ledger.results.values() if row.fault == "damaged"}
    for read in begun.reads:
        partition = Partition(read.run, PartitionId(read.stage, read.subtask, read.layout))
        found = ledger.current.get(partition)
        if found is None or found.digest != read.digest or found.state == "quarantined":
            return
        is_other = found.attempt != read.attempt and history.restarts_consumers(read.stage)
        if is_other or (partition, read.attempt) in damaged:
            return
    if has_newer_code(history, ledger.attempts[begun.attempt.id]) or _has_lost_its_splits(history, begun):
        return
    yield f"{begun.attempt.id} of {begun.attempt.region} is stopped, and all that it reads is as it was"


def _has_lost_its_splits(history: History, begun: Begun) -> bool:
    """Report whether the ledger has lost, with its last commits, what a source of an attempt was to read."""
    known, own = history.ledger.recorded, [each for each in begun.job.stages if each.split is not None]
    return any(
        known.get((begun.run.id, each.name), [])[begun.attempt.region.subtask :][:1] != [each.split] for each in own
    )


def what_is_called_lost_was_harmed(history: History) -> Iterator[str]:
    """Invariant 5: a result that only seems lost, as the store is away or an answer is outdated, is not recomputed."""
    for result in history.ledger.newly_lost:
        folders = {result.folder, *(folder_of(path) for path in history.files_of(result))}
        if result.fault != "stale" and not folders & (history.damaged | history.unnoted):
            yield f"{_shown(result)} is called lost ({result.fault}), and nothing has happened to it"


def only_finished_and_valid_inputs_are_read(history: History) -> Iterator[str]:
    """Invariant 3: the inputs that a begin leases are finished and valid at that instant.

    What a task is to take, which is of its own stages, was made of the same: whether it is out of date in its run, does
    not matter.
    """
    ledger = history.ledger
    for lease in ledger.new_leases:
        result = ledger.results[lease.result]
        if lease.holder not in ledger.attempts:
            continue  # a person may read any available result
        is_to_take = result.is_current and result.state == "finished" and _is_to_take(history, lease.holder, result)
        if not is_to_take and not (result.is_current and ledger.is_good(result.partition)):
            valid = "valid" if ledger.is_valid(result.partition) else "not valid"
            yield f"{lease.holder} reads {_shown(result)}, which is {result.state}, {valid}"


def _is_to_take(history: History, holder: str, result: Result) -> bool:
    """Report whether a leased result is no input of an attempt, but of one of the stages that it computes."""
    run, region = history.ledger.attempts[holder].run_region
    if region == CLOSE:
        return False
    own = {(each.stage, each.subtask, each.layout) for each in history.topology_of(run).outputs(region)}
    is_own = (result.stage, result.partition.id.subtask, result.partition.id.layout) in own
    return is_own and result.partition not in history.epochs.inputs_of((run, region))


def a_valid_result_is_what_its_inputs_give(history: History) -> Iterator[str]:
    """Invariants 1 and 3: recomputed from the current inputs, a valid result is the same."""
    ledger = history.ledger
    if not ledger.results_changed:
        return
    for partition, result in ledger.current.items():
        if not ledger.is_valid(partition) or ledger.attempts[result.attempt].is_restored:
            continue
        inputs = history.epochs.inputs_of(history.epochs.producer(partition))
        if any(each not in ledger.current for each in inputs):
            continue  # an epoch that was created again has more subtasks, and not all of them have committed yet
        expected = _again(history, partition, result)
        found = history.engine.made[result.attempt].contents[result.stage]
        if found != expected:
            yield f"{_shown(result)} is valid, but its present inputs do not give it"


def _again(history: History, partition: Partition, result: Result) -> str | None:
    made = history.engine.made[result.attempt]
    return recomputed(history, partition, made.own, made.edits)[result.stage]


GOES_ON: Final = AGAIN.format("a person")
"""The reason of a clear of what had stopped, since a person has sealed the day for which it waited."""


def a_clear_has_a_cause(history: History) -> Iterator[str]:
    """Invariant 5: a region that need not run again is not cleared."""
    for clear in history.ledger.new_clears:
        if clear.failover is not None or is_of_older_code(history, clear.run_region) or _is_to_fail(history, clear):
            continue
        if clear.reason == GOES_ON:
            continue
        if not _reads_something_else(history, clear):
            yield f"{clear.region}[{clear.subtask}] is to be cleared after try {clear.expected_try}: {clear.reason}"
        if history.strategy is FailoverStrategy.INDIVIDUAL:
            yield f"Weir clears {clear.region}[{clear.subtask}] by itself, though failover is individual"


def _is_to_fail(history: History, clear: Clear) -> bool:
    """Report whether a closing task is cleared since something has failed in its run, which is no longer closed.

    It may have failed in an earlier run, which that one reads.
    """
    ledger, of = history.ledger, dataflow_of(clear.run)
    tasks = [each for each in history.begun() if each[1] != CLOSE and dataflow_of(each[0]) == of]
    tasks = [each for each in tasks if each[0] <= clear.run]
    has_failed = any(newest.state == "failed" for each in tasks if (newest := ledger.newest(*each)) is not None)
    return clear.run_region[1] == CLOSE and ledger.runs()[clear.run].closed_at is None and has_failed


def _reads_something_else(history: History, clear: Clear) -> bool:
    ledger = history.ledger
    run, region = clear.run_region
    made = made_by(history, run, region)
    # The closing task also runs again where files that it had published are missing.
    reads = [read for attempt in made for read in ledger.reads.get(attempt, ())]
    is_other = any(_differs(history, read, is_same_wanted=region == CLOSE) for read in reads)
    return is_other or any(ledger.has_missed(run, attempt) for attempt in made)


def _differs(history: History, read: Read, *, is_same_wanted: bool) -> bool:
    found = history.ledger.current.get(read.partition)
    return found is None or history.is_other(read, found) or (is_same_wanted and found.attempt != read.attempt)


def _short(read: Read) -> str:
    return f"{read.partition.id} of {read.attempt} ({read.digest})"


def _shown(result: Result | None) -> str:
    return "nothing" if result is None else f"{result.partition.id} of {result.attempt} ({result.digest})"


AFTER_A_REBUILD: Final[tuple[Callable[[History], Iterator[str]], ...]] = (
    results_of_a_region_are_of_one_attempt,
    a_source_is_recorded_as_it_once_was,
    results_of_a_source_are_of_one_listing,
    a_copied_source_is_read_once,
    ranges_follow_each_other,
    published_epochs_have_each_file_once,
    a_valid_result_is_what_its_inputs_give,
    a_stage_has_one_code,
    the_archives_of_all_attempts_are_there,
    a_retained_checkpoint_can_be_read_whole,
    a_restore_is_taken_whole,
)
"""The invariants of what a ledger holds, whatever has changed in it."""

AFTER_EACH_TRANSACTION: Final[tuple[Callable[[History], Iterator[str]], ...]] = (
    nothing_bad_passes_a_gate,
    what_is_in_quarantine_is_bad,
    only_suspected_inputs_are_quarantined,
    one_attempt_a_try_becomes_current,
    a_fenced_attempt_changes_nothing,
    results_of_a_region_are_of_one_attempt,
    a_commit_was_made_from_what_is_current,
    a_commit_has_read_nothing_damaged,
    what_is_finished_has_no_fault,
    only_finished_and_valid_inputs_are_read,
    what_is_called_lost_was_harmed,
    a_source_is_recorded_as_it_once_was,
    results_of_a_source_are_of_one_listing,
    a_copied_source_is_read_once,
    ranges_follow_each_other,
    published_epochs_have_each_file_once,
    a_valid_result_is_what_its_inputs_give,
    an_adopted_result_is_valid_and_wanted,
    a_closed_run_has_read_what_is_current,
    a_stage_has_one_code,
    a_run_that_counts_as_closed_has_one_code,
    no_older_code_commits_after_newer,
    what_weir_runs_again_runs_the_code_that_is_current,
    what_nobody_touched_has_the_code_of_its_run,
    the_archives_of_all_attempts_are_there,
    a_commit_owes_the_clears_of_siblings_of_older_code,
    a_clear_has_a_cause,
    a_commit_records_the_clears_that_follow_from_it,
    a_clear_is_settled_when_airflow_has_followed,
    nothing_is_cleared_again_and_again_in_vain,
    a_plan_names_what_must_run_again,
    what_is_spared_is_not_cleared,
    no_needed_result_is_released,
    a_checkpoint_is_what_is_current,
    a_retained_checkpoint_can_be_read_whole,
    a_restore_is_what_was_kept,
    no_attempt_from_before_a_restore_commits,
    what_was_restored_stays_pinned,
)
