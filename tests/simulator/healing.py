"""The end of a simulation, after its faults: everything recovers, and the outcome is that of a run without faults.

Invariant: a person acts only where one is really needed; knowledge that only a person has (a source has changed, a
published file may be damaged) is expressed by clears.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from tests.simulator.actions import apply, run_fork
from tests.simulator.airflow import Api
from tests.simulator.chores import FORK, Chore, collect, complete_savepoints, run_by_hand, upkeep_process
from tests.simulator.engine import Made, Nature, is_broken
from tests.simulator.events import Event, Verb
from tests.simulator.history.ledger_view import Attempt, Partition
from tests.simulator.history.restores import Restore
from tests.simulator.invariants.code import edits_of
from tests.simulator.invariants.needs import left_over, unknown_files
from tests.simulator.invariants.recomputation import UNKNOWN, contents_of, day_of
from tests.simulator.invariants.snapshots import unfinished
from tests.simulator.invariants.sources import copied_by
from tests.simulator.observer import Broken, NeedsARestore, require
from tests.simulator.on_call import FULL_TOO_LONG
from tests.simulator.process import NO_FAULT
from tests.simulator.receiver import not_told
from tests.simulator.store import Condition
from tests.simulator.world import MACHINES, World

from weir.coordination.values import TaskKey
from weir.dataflow.dataflow import FailoverStrategy
from weir.errors import Misconfigured
from weir.execution.run_state import CLOSE
from weir.formats.paths import folder_of, manifest_path
from weir.ledger.outbox import waiting_receivers
from weir.ledger.runs import epoch_of, run_key, runs_of
from weir.recovery.adopt import adopt
from weir.recovery.questions import Question, apply_answer, ask
from weir.retention.checkpoints import maintain_checkpoints
from weir.store.catalogue import published
from weir.testing.fakes.dag import FakeTask
from weir.topology.partitions import PLAIN
from weir.topology.regions import PartitionId, RegionId, region_compacted

MOST_TRIES: Final = 400

QUIET_MINUTES: Final = 150
"""As long as any claim lasts, and a closed run may be busy."""

MOST_WAITS: Final = 20
"""After so many waits in a row without another step, tasks are taken to wait for a person."""

MOST_WORDS: Final = 12
"""The number of times that a person may be needed: with failover="individual" for each loss that is found."""

NOT_CLOSED: Final = "checkpoints complete in the order of epochs, but run"
"""The error where the closing task of an earlier run was marked, or with failover="individual": a person clears it."""

AGAIN_AND_AGAIN: Final = "times backtrack since"
"""The error of a task whose producer fails for good each time, since a person has marked or deleted what that reads."""

FOLLOWS: Final = "but Airflow calls"
"""The error of a task that misses what another one of its run has failed to compute: a person clears both."""

NEEDS_A_PERSON: Final = ("was skipped in Airflow", FOLLOWS, AGAIN_AND_AGAIN, NOT_CLOSED)
"""The errors of a task that a person has marked, and of one that reads it a day later and has it cleared again."""

SEALED: Final = "was sealed at "
"""The note of a task that was skipped since its day was sealed: a person who has that day computed clears it, too."""

GONE: Final = ("Airflow's DagRun was deleted: ", "Airflow has no task instance of ")
"""The errors where a DagRun that was read is deleted: a person creates it again."""

REFUSED: Final = "QualityFailed: "
"""The error where a gate has refused rows, and no other try would repair them."""

VIOLATED: Final = "violate"
"""In an error that is AGAIN_AND_AGAIN: what the gate suspects has read bad rows, and is other ones each time."""

HELD_BACK: Final = "nothing was restarted: "
"""The error where a person has to apply the plan."""

IMPOSSIBLE: Final = "nothing was restarted: running these tasks again cannot bring the input back"
"""The error where a state that has to be recomputed has expired: a person restores a checkpoint."""

TOO_LATE: Final = "comes too late: "
"""The error where a first day was deleted before it began, and comes again behind another: its DagRun has to go."""

DROPPED: Final = "not needed: its state was restored"
"""The outcome of a clear that a restore has dropped."""

OUT_OF_TRIES: Final = ("allows no further one", "recovery is suppressed by")


def heal(world: World) -> None:
    """End all faults, and check that everything recovers. Raises Broken."""
    _end_faults(world)
    _run_until_well(world)
    while world.suspended:  # zombies, which Airflow ignores
        world.run(world.suspended[0], NO_FAULT)
        _run_until_well(world)
    _tell_what_a_person_knows(world)
    _run_until_well(world)
    _follow_by_hand(world)
    require("no_clear_is_pending_at_the_end", (row.reason for row in world.history.ledger.pending_clears()))
    require("all_is_valid_at_the_end", _not_good(world))
    require("what_is_published_is_that_of_a_run_without_faults", _wrong(world))
    if world.scene.flow.notify and world.airflow.flow.name == world.scene.flow.name:
        _tell_all(world)
    if world.scene.keeps_state:
        _keep_checkpoints(world)
        require("checkpoints_are_complete_at_the_end", unfinished(world.history))
        _run_fork(world)
    if world.scene.collects and world.airflow.flow.name == world.scene.flow.name:  # a fork's DAG collects nothing
        _collect_all(world)
        require("what_is_published_outlives_collection", _wrong(world))


def _is_told_all(world: World) -> bool:
    """Report whether somebody is told, and the ledger has lost nothing of what was to be told."""
    is_own = world.airflow.flow.name == world.scene.flow.name
    return bool(world.scene.flow.notify) and is_own and not world.is_lossy and not world.rebuilders


def _tell_all(world: World) -> None:
    """Deliver notifications until none waits: each pass ends where the receiver fails."""
    name = world.scene.flow.name
    for _ in range(MOST_TRIES):
        world.run(upkeep_process(world.airflow, Chore.DELIVER), NO_FAULT)
        world.airflow.wait(QUIET_MINUTES)
        with world.ledger.transaction() as session:
            if not waiting_receivers(session, name, world.services.now()):
                break
    may_be_lost = world.is_lossy or bool(world.rebuilders)
    untold = not_told(world.history, world.received, name, may_be_lost=may_be_lost)
    require("receivers_are_told_all_in_order", untold)


def _keep_checkpoints(world: World) -> None:
    """Keep checkpoints as upkeep does, also those that a process had begun, and list savepoints as a person does."""
    _let_claims_end(world)
    world.run(upkeep_process(world.airflow, Chore.CHECKPOINTS), NO_FAULT)
    complete_savepoints(world)


def _run_fork(world: World) -> None:
    """Run two days of a fork; after the first it needs no files of its origin."""
    begun = _fork_of(world)
    if begun is None or _is_harmed(world, begun.run):
        return
    run_fork(world)
    for behind in (1, 2):
        world.airflow.dag_run(day_of(begun.run) + behind)
        _run_until_quiet(world)
        ill = _ill(world)
        require(
            "a_fork_goes_on_from_what_was_kept", (f"{each.key} is {each.state}: {_last_note(each)}" for each in ill)
        )
        require("what_a_fork_publishes_is_that_of_a_run_without_faults", _wrong(world))
        require("a_fork_is_full_once", _foreign(world, begun.run))
        for dataflow in (world.scene.flow.name, FORK):
            maintain_checkpoints(world.services, dataflow)
    require("all_is_valid_at_the_end", _not_good(world))


def _fork_of(world: World) -> Restore | None:
    """Return the fork that there is: of one that the ledger has lost it may know the restore, which pins files."""
    history = world.history
    runs = history.ledger.runs()
    return next((row for row in history.restores.known.values() if row.is_fork and row.run in runs), None)


def _is_harmed(world: World, run: str) -> bool:
    """Report whether files were damaged of what a fork began with: it cannot be recomputed."""
    history = world.history
    current = [result for partition, result in history.ledger.current.items() if partition.run == run]
    folders = {each.folder for each in current}
    folders |= {folder_of(path) for each in current for path in history.files_of(each)}
    return not folders.isdisjoint(history.damaged)


def _foreign(world: World, begun: str) -> Iterator[str]:
    """Yield the files of its origin that a fork still needs."""
    for result in world.history.ledger.current.values():
        if result.run.startswith(f"{FORK}@") and result.run != begun:
            for path in world.history.files_of(result):
                if not path.startswith(f"{FORK}/"):
                    yield f"{result.partition.id} of {result.run} has {path}"
    if any(world.history.restores.known[id_].is_fork for id_ in world.history.restores.pins):
        yield "the restore is pinned though a full checkpoint is complete"


def _collect_all(world: World) -> None:
    """Check that policies keep what they say, and that only published results are kept where space is needed."""
    _let_claims_end(world)
    collect(world, Event(Verb.COLLECT, how="release"))
    require("no_unneeded_result_is_left", left_over(world.history, is_reclaiming=False))
    # What restores and compactions that were killed have left is of no attempt that the ledger knows.
    world.airflow.wait((world.services.retention.orphan_age + world.history.slack) // timedelta(minutes=1))
    collect(world, Event(Verb.COLLECT, 1, "sweep"))
    require("no_unneeded_result_is_left", left_over(world.history, is_reclaiming=True))
    require("all_that_is_left_is_known", unknown_files(world.history))


def _let_claims_end(world: World) -> None:
    world.airflow.wait(QUIET_MINUTES + world.history.slack // timedelta(minutes=1))


def _end_faults(world: World) -> None:
    world.airflow.api, world.files.condition = Api.UP, Condition.UP
    world.ledger.decide()
    for machine in range(MACHINES):
        world.set_clock(machine, timedelta())
    for stage, content in world.content.items():
        if content < 0:
            world.content[stage] = abs(content) + 1
    world.airflow.deliver()
    for process in [each for each in world.suspended if each in world.airflow.owners.values()]:
        world.run(process, NO_FAULT)
    _mend(world)


def _mend(world: World) -> None:
    """Mend the functions that raise, and clear what has failed with them."""
    broken = {stage for stage, edit in world.airflow.edits.items() if is_broken(edit)}
    for stage in sorted(broken):
        world.airflow.edit(stage)
    for task in list(world.airflow.tasks.values()):
        newest = _newest_try(world, task)
        if task.try_number and newest is not None and _ran_broken_code(world, newest, task):
            world.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)


def _clear_where_mended(world: World, task: FakeTask) -> None:
    """Clear a task whose try has just raised, as its note says: one that is repeated may still have older code."""
    newest = _newest_try(world, task)
    if newest is not None and newest.try_number == task.try_number and _ran_broken_code(world, newest, task):
        world.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)


def _ran_broken_code(world: World, newest: Attempt, task: FakeTask) -> bool:
    made = world.engine.made.get(newest.id)
    return made is not None and task.state != "success" and any(is_broken(each) for each in made.edits.values())


def _newest_try(world: World, task: FakeTask) -> Attempt | None:
    run, region = run_key(world.airflow.flow.name, epoch_of(world.airflow.request(task).interval[0])), task.key
    return world.history.ledger.newest(run, RegionId(region.task_id, max(region.map_index, 0)))


def _lift_seals(world: World) -> bool:
    """Have each day computed that is sealed and not queued, as a person does once its cause is mended; report it."""
    sealed = [row.run_id for row in world.history.ledger.runs().values() if row.sealed_at is not None]
    there = {*sealed} & {key.run_id for key in world.airflow.tasks} - world.airflow.queued
    for run_id in sorted(there):
        world.airflow.clear_run_by_hand(run_id)
    return bool(there)


def _run_until_well(world: World) -> None:
    """Run all that may run, then clear as a person where only a person can, and repeat."""
    applied = set[tuple[TaskKey, int]]()
    for _ in range(MOST_WORDS):
        _run_until_quiet(world)
        if _lift_seals(world):
            continue
        require("a_green_dag_run_is_closed", _green_and_open(world))
        ill = _ill(world)
        if not ill:
            return
        stuck = [task for task in ill if task.state in ("failed", "skipped")]
        if _is_told_all(world):
            failed = [each for each in stuck if each.state == "failed" and each.key not in world.airflow.marked]
            require("a_person_is_told_of_what_stands_still", world.on_call.visit(failed))
        require("all_heals_without_a_person", _unneeded(world, stuck or ill))
        stuck = _without_late_runs(world, stuck)
        stuck = _do_as_is_said(world, stuck)
        for task in {task.key: task for task in stuck}.values():
            # Weir clears nothing that is skipped: it would be skipped again. A plan may be lost with its commit. It has
            # no part for a try that began before its DagRun was known to be another one.
            at = task.key, task.try_number
            if task.state == "skipped" or not _is_held_back(task) or world.is_lossy or at in applied:
                world.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)
            applied.add(at)
    raise Broken("all_heals_in_the_end", f"a person has cleared repeatedly: {world.airflow.states()}")


def _do_as_is_said(world: World, stuck: list[FakeTask]) -> list[FakeTask]:
    """Do what the errors of the tasks say, and return the tasks to clear then: these, and what may have misled them."""
    said = [*map(_last_note, stuck)]  # read before anything is done: a plan that clears a task is its last note
    if any(IMPOSSIBLE in each for each in said):
        tries = {task.key: task.try_number for task in stuck}
        _restore_what_helps(world, stuck)
        # Where all is computed again, they have run: what has failed anew is seen at the next visit.
        stuck = [task for task in stuck if task.state != "success" and task.try_number == tries[task.key]]
    elif any(_is_held_back(task) or (_is_by_hand(world) and NOT_CLOSED in _last_note(task)) for task in stuck):
        _apply_plans(world)
    if any(map(_is_refused, said)):
        stuck = list(world.airflow.tasks.values())  # a person knows no better than that some source was bad
        if world.scene.flow.keeps_state:  # that of a day that was deleted may hold bad rows
            _create_again(world, " ".join(world.history.deleted))
    for each in said:
        if any(gone in each for gone in (*GONE, NOT_CLOSED)):
            _create_again(world, each)
    if _is_by_hand(world):
        stuck += _never_begun(world)
    if any(NOT_CLOSED in each for each in said):
        stuck += [task for key, task in world.airflow.tasks.items() if key.task_id == CLOSE.name]
    return stuck


def _never_begun(world: World) -> list[FakeTask]:
    """Return the tasks that have succeeded in Airflow, and have never begun by a plan: Airflow's database went back."""
    regions = {each.name for each in world.history.epochs.newest.region_ids()}
    tasks = (task for key, task in world.airflow.tasks.items() if key.task_id in regions and task.state == "success")
    return [task for task in tasks if _newest_try(world, task) is None]


def _is_refused(said: str) -> bool:
    """Report whether rows were refused that no other try would repair."""
    return REFUSED in said or (AGAIN_AND_AGAIN in said and VIOLATED in said)


def _is_held_back(task: FakeTask) -> bool:
    """Report whether a plan waits for a person to apply it."""
    said = _last_note(task)
    return HELD_BACK in said and IMPOSSIBLE not in said


def _green_and_open(world: World) -> Iterator[str]:
    """Yield the DagRuns that Airflow calls a success though the ledger does not call them closed.

    A person may have marked one so; with failover="individual" a person has stale results recomputed; after a rebuild
    a person closes what it names; and what a restore leaves stale by its contract, a person has recomputed. Of a task
    that has failed since a person is told, though the leaves of its DagRun have succeeded.
    """
    closed = {row.run_id for row in world.history.ledger.runs().values() if row.closed_at is not None}
    marked = {key.run_id for key in world.airflow.marked}
    marked |= {key.run_id for key, task in world.airflow.tasks.items() if task.state == "failed"}
    is_up_to_a_person = _is_by_hand(world) or world.unanswered_rebuilds > 0
    expected = {*world.runs} - closed - marked - world.airflow.queued - world.to_be_closed - {*_left_stale(world)}
    for run in () if is_up_to_a_person else sorted(expected):
        if world.airflow.state_of(run) == "success":
            yield f"{run} is a success, and not closed: {world.airflow.states()}"


def _left_stale(world: World) -> Iterator[str]:
    """Yield the DagRuns of which a restore has dropped clears of tasks that have not begun since.

    Their states are as restored; what else they have made, and published, stays, though an input has changed.
    """
    ledger = world.history.ledger
    for clear in ledger.clears.values():
        newest = ledger.newest(*clear.run_region)
        if clear.outcome == DROPPED and (newest is None or newest.try_number <= clear.expected_try):
            yield clear.run_id


def _is_by_hand(world: World) -> bool:
    """Report whether Weir clears nothing by itself."""
    return world.scene.flow.failover is FailoverStrategy.INDIVIDUAL


def _without_late_runs(world: World, stuck: list[FakeTask]) -> list[FakeTask]:
    """Delete DagRuns that come too late, and return the other tasks."""
    late = {task.key.run_id for task in stuck if TOO_LATE in _last_note(task)}
    for run in sorted(late):
        apply(world, Event(Verb.DELETE, world.runs.index(run)))
    return [task for task in stuck if task.key.run_id not in late]


def _restore_what_helps(world: World, stuck: list[FakeTask]) -> None:
    """Restore the snapshot that an error names, each once; where none helps, compute all epochs again as it says."""
    said = "".join(_last_note(task) for task in stuck)
    named = {int(each) for each in re.findall(rf"`weir restore {world.airflow.flow.name} (\d+)`", said)}
    if not named - world.restored:
        _compute_all_again(world, said)
        return
    numbers = sorted(row.number for row in world.history.snapshots.known.values() if row.is_usable)
    oldest = min(named - world.restored)  # what the other errors miss may follow from it
    world.restored.add(oldest)
    if oldest in numbers:  # else it was subsumed since: the task that is cleared says what helps now
        apply(world, Event(Verb.GO_BACK, numbers.index(oldest)))


def _compute_all_again(world: World, said: str) -> None:
    """Adopt the runs that an error names, then clear each when the one before has succeeded; once."""
    named = re.search(r"`weir replay \S+ --from (\S+) --to (\S+)`", said)
    if named is None or world.has_begun_again:
        raise NeedsARestore
    world.has_begun_again = True
    first, last = named.groups()
    with world.ledger.transaction() as session:
        runs = [(row.id, row.run_id) for row in runs_of(session, world.airflow.flow.name) if first <= row.epoch <= last]
    world.history.adopted |= {run for run, _ in runs}
    for run, _ in runs:
        run_by_hand(world, partial(adopt, world.services, run), NO_FAULT)
    for _, run_id in runs:
        if run_id in world.runs:
            world.airflow.clear_run_by_hand(run_id)
            _run_until_quiet(world)
    _follow_by_hand(world)


def _follow_by_hand(world: World) -> None:
    """Have stale results computed again where Weir clears nothing by itself: later epochs, then what they publish."""
    for _ in range(2 * len(world.runs) if _is_by_hand(world) else 0):
        is_open = any(row.closed_at is None for row in world.history.ledger.runs().values())
        if not is_open and not any(_not_good(world)):
            return
        _apply_plans(world)
        _run_until_quiet(world)


def _create_again(world: World, said: str) -> None:
    """Create the DagRun that a task misses, as its error says."""
    for name in set(re.findall(r"\w+__\d{4}-\d\d-\d\d", said)) & world.history.deleted:
        if not any(each[-10:] == name[-10:] for each in world.runs):
            world.runs.append(world.airflow.dag_run(int(name[-2:]), kind=name.partition("__")[0]))
            world.history.deleted.discard(name)
            world.history.recreated.add(name)


def _ill(world: World) -> list[FakeTask]:
    """Return the tasks that have not succeeded, without compactions: no run depends on these.

    A queued DagRun has begun no task; but one that a person has skipped there stands in the way of later epochs.
    """
    tasks, queued = world.airflow.tasks.items(), world.airflow.queued
    begun = [(key, task) for key, task in tasks if key.run_id not in queued or task.state == "skipped"]
    return [task for key, task in begun if task.state != "success" and region_compacted(key.task_id) is None]


def _last_note(task: FakeTask) -> str:
    """Return why it has failed, even if a zombie has left a note since; else its last note."""
    if task.state == "failed" and task.failed_because:
        return task.failed_because
    return task.notes[-1] if task.notes else ""


def _apply_plans(world: World) -> None:
    """As `weir plan RUN --apply` does; one that is impossible says so, and nothing of its run is restarted."""
    with world.ledger.transaction() as session:
        runs = [row.id for row in runs_of(session) if row.pinned is not None]
    for run in runs:
        with suppress(Misconfigured):
            apply_answer(world.services, ask(world.services, Question(run)))
    world.airflow.upkeep()


def _run_until_quiet(world: World) -> None:
    waits = 0
    for _ in range(MOST_TRIES * max(len(world.runs), 1)):
        ready = world.airflow.ready()
        if not ready or waits > MOST_WAITS:
            _upkeep(world)
            ready = world.airflow.ready()
        if not ready or (waits > MOST_WAITS and _is_waited_for(world)):
            return
        world.run(world.airflow.launch(ready[0]), NO_FAULT)
        _clear_where_mended(world, ready[0])
        waits = waits + 1 if ready[0].state == "up_for_reschedule" else 0
    raise Broken("all_heals_in_the_end", f"no end after {MOST_TRIES} tries: {world.airflow.states()}")


def _upkeep(world: World) -> None:
    """Deliver clears; what else upkeep does is done where a ledger may have to catch up."""
    if world.is_lossy and world.scene.collects:
        for chore in (Chore.MINUTES, Chore.HOURLY):
            world.run(upkeep_process(world.airflow, chore), NO_FAULT)
    world.airflow.upkeep()


def _is_waited_for(world: World) -> bool:
    """Report whether the waiting tasks wait for a task of another run that a person has to clear."""
    return any(task.state in ("failed", "skipped") for task in _ill(world))


def _unneeded(world: World, stuck: list[FakeTask]) -> Iterator[str]:
    for task in stuck:
        said = _last_note(task)
        was_marked = task.key in world.airflow.marked
        has_sealed = any(SEALED in note for each in world.airflow.tasks.values() for note in each.notes)
        by_marks: tuple[str, ...] = (*NEEDS_A_PERSON, SEALED) if world.airflow.has_marked or has_sealed else ()
        by_marks += (
            (*GONE, NOT_CLOSED, TOO_LATE, AGAIN_AND_AGAIN) if world.history.recreated or world.history.deleted else ()
        )
        is_by_gate = world.scene.is_gated and _is_refused(said)
        # A person closes what a rebuild names; till then, the close of a later day may find an earlier one open.
        is_by_hand = _is_by_hand(world) or world.to_be_closed or world.unanswered_rebuilds
        by_hand = (NOT_CLOSED,) if is_by_hand else ()
        needs = (
            HELD_BACK,
            FULL_TOO_LONG,
            *((FOLLOWS,) if any(FOLLOWS not in _last_note(other) for other in stuck) else ()),
            *by_marks,
            *by_hand,
            *(() if world.scene.is_patient else OUT_OF_TRIES),
        )
        if not was_marked and not is_by_gate and not any(text in said for text in needs):
            yield f"{task.key.task_id}[{task.key.map_index}] of {task.key.run_id} is {task.state}: {said}"


def _tell_what_a_person_knows(world: World) -> None:
    world.to_be_closed, world.unanswered_rebuilds = set(), 0
    for run in [each for each in world.runs if each not in world.airflow.queued]:
        for task in [each for key, each in world.airflow.tasks.items() if key.run_id == run]:
            names = set(task.key.task_id.split("-"))
            if names & world.changed_sources or task.key.task_id == CLOSE.name:
                world.airflow.clear_by_hand(run, task.key.task_id, task.key.map_index)


def _not_good(world: World) -> Iterator[str]:
    ledger, fork = world.history.ledger, _fork_of(world)
    lost_for_good = {fork.run} if fork is not None and _is_harmed(world, fork.run) else set()
    for partition in [each for each in ledger.current if each.run not in lost_for_good]:
        if ledger.runs()[partition.run].run_id not in world.history.deleted and not ledger.is_done(partition):
            yield f"{partition.id} of {partition.run} is not valid, or lost"


def _wrong(world: World) -> Iterator[str]:
    """Compare the published results with what the stages give."""
    expected = expected_contents(world)
    begun = [(key, each) for key, each in world.airflow.tasks.items() if key.run_id not in world.airflow.queued]
    for task in [each for key, each in begun if key.task_id == CLOSE.name]:
        epoch = epoch_of(world.airflow.request(task).interval[0])
        run = run_key(world.airflow.flow.name, epoch)
        for sink in world.history.topology_of(run).sinks:
            pointer = published(world.store, world.airflow.flow.name, sink, epoch)
            if pointer is None:
                yield f"{sink} of {epoch} is not published"
                continue
            for part in pointer.partitions:
                found = world.files.data.get(f"{part.folder}/part-0.bin", b"")[:64].decode()
                wanted = expected[Partition(run, PartitionId(sink, part.subtask, PLAIN.id))]
                if manifest_path(part.folder) not in world.files.data or wanted not in (None, found):
                    yield f"{sink}[{part.subtask}] of {epoch}: found {found or 'no file'}, expected {wanted}"


def expected_contents(world: World) -> dict[Partition, str | None]:
    """Return the content of all partitions in runs without faults, epoch by epoch; None if it is not deterministic.

    Restored results that were not recomputed since are given, and those of DagRuns that were deleted.
    """
    found: dict[Partition, str | None] = {}
    natures, epochs = world.scene.natures, world.history.epochs

    def own(stage: str) -> object:
        is_moody = natures.get(stage, Nature.FINE) is Nature.MOODY
        return UNKNOWN if is_moody else world.content.get(stage, 0) if stage in world.sources else None

    for run in sorted(world.history.ledger.runs()):
        topology = epochs.topology_of(run)
        for region in topology.region_ids():
            splits = world.history.ledger.splits
            copied = {
                stage.name: world.engine.made[attempt]
                for stage in topology.stages_of(region.name)
                if (attempt := copied_by(world.history, run, stage.name, region.subtask)) is not None
            }
            edits = {**_edits(world, run, region), **{name: made.edits[name] for name, made in copied.items()}}
            owns = partial(_own, copied, own)
            contents = contents_of(epochs, (run, region), natures, owns, found.__getitem__, edits, splits)
            found |= {Partition(run, each): contents[each.stage] for each in topology.outputs(region)}
            found |= _given(world, run, topology.outputs(region))
    return found


def _own(copied: Mapping[str, Made], own: Callable[[str], object], stage: str) -> object:
    """Return what a stage's content follows from besides its inputs: of a source what was copied of it."""
    return copied[stage].own[stage] if stage in copied else own(stage)


def _edits(world: World, run: str, region: RegionId) -> Mapping[str, int]:
    """Return the edits of the one code of a region's task."""
    history = world.history
    ledger, topology = history.ledger, history.topology_of(run)
    siblings = (each for each in topology.region_ids() if each.name == region.name)
    there = [Partition(run, each) for sibling in siblings for each in topology.outputs(sibling)]
    current = [each for each in there if each in ledger.current]
    made = [each for each in current if not ledger.attempts[ledger.current[each].attempt].is_restored]
    found = edits_of(history, run, region.name, made)
    is_mixed = found is None and ledger.runs()[run].run_id not in history.deleted  # nobody computes what is deleted
    require("a_stage_has_one_code", [f"{region.name} of {run} has several codes"] if is_mixed else [])
    return found or {}


def _given(world: World, run: str, outputs: Iterable[PartitionId]) -> dict[Partition, str | None]:
    found: dict[Partition, str | None] = {}
    is_deleted = world.history.ledger.runs()[run].run_id in world.history.deleted
    for partition in (Partition(run, each) for each in outputs):
        result = world.history.ledger.current.get(partition)
        if result is not None and (is_deleted or world.history.ledger.attempts[result.attempt].is_restored):
            found[partition] = world.engine.made[result.attempt].contents[result.stage]
    return found
