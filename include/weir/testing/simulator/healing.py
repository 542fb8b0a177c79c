"""What is asked of a simulation when its faults are over: that it heals, and that nothing shows of them.

Invariant: nobody helps but where a person is really needed; what a person would know (that a source has changed, that
a published file may be damaged) is told by clears.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from weir.execution.run_state import CLOSE
from weir.formats.paths import MANIFEST
from weir.ledger.runs import epoch_of, run_key, runs_of
from weir.recovery.questions import Question, apply_answer, ask
from weir.retention.checkpoints import maintain_checkpoints
from weir.store.published import published
from weir.testing.fakes.dag import FakeTask
from weir.testing.simulator.actors import FORK, Chore, complete_savepoints, housekeeper, run_fork
from weir.testing.simulator.airflow import Api
from weir.testing.simulator.engine import Nature
from weir.testing.simulator.events import Event, Verb
from weir.testing.simulator.invariants.again import UNKNOWN, contents_of, day_of
from weir.testing.simulator.invariants.needs import left_over, unknown_files
from weir.testing.simulator.invariants.sight import Partition
from weir.testing.simulator.invariants.snapshots import unfinished
from weir.testing.simulator.process import NO_FATE
from weir.testing.simulator.store import Condition
from weir.testing.simulator.witness import Broken, require
from weir.testing.simulator.world import World
from weir.topology.partitions import PLAIN
from weir.topology.regions import PartitionId, region_compacted

MOST_TRIES: Final = 400

QUIET_MINUTES: Final = 150
"""As long as any claim lasts, and a closed run may be busy."""

MOST_WAITS: Final = 20
"""After so many looks in a row, at each of which a task had to wait, they are told to be waiting for a person."""

MOST_WORDS: Final = 12
"""How often a person may be needed: with failover="individual" for each loss that comes to light."""

NOT_CLOSED: Final = "checkpoints complete in the order of epochs, but run"
"""What is said where the closing task of an earlier run was marked: a person clears that, too."""

NEEDS_A_PERSON: Final = ("was skipped in Airflow", "but Airflow calls", "times backtrack since", NOT_CLOSED)
"""What is said of a task that a person has marked; and of one that reads it a day later, and has it cleared again."""

AT_FIRST: Final = ("cannot be used: expected a folder",)
"""What is said where the store cannot be used at the very first begin: its URL may be wrong."""

REFUSED: Final = "QualityFailed: "
"""What is said where a gate has refused rows, and no other try would mend them."""

HELD_BACK: Final = "nothing was restarted: "
"""What is said where a person has to carry the plan out."""

OUT_OF_TRIES: Final = ("allows no further one", "recovery is suppressed by")


def heal(world: World) -> None:
    """End all faults, and see what becomes of it. Raises Broken."""
    _end_faults(world)
    _run_until_well(world)
    while world.suspended:  # zombies, that nobody listens to any more
        world.run(world.suspended[0], NO_FATE)
        _run_until_well(world)
    _tell_what_a_person_knows(world)
    _run_until_well(world)
    require("nothing_is_owed_at_the_end", (row.reason for row in world.witness.sight.owed()))
    require("all_is_valid_at_the_end", _not_good(world))
    require("what_is_published_is_that_of_a_run_without_faults", _wrong(world))
    if world.scene.keeps_state:
        _keep_checkpoints(world)
        require("checkpoints_are_complete_at_the_end", unfinished(world.witness))
        _run_fork(world)
    if world.scene.collects:
        _collect_all(world)
        require("what_is_published_outlives_collection", _wrong(world))


def _keep_checkpoints(world: World) -> None:
    """As upkeep does, and a person who lists savepoints."""
    world.run(housekeeper(world.airflow, Chore.CHECKPOINTS), NO_FATE)
    complete_savepoints(world)


def _run_fork(world: World) -> None:
    """Two days of the dataflow that began with what another had kept; behind the first it needs nothing of it."""
    begun = next((row for row in world.witness.restores.known.values() if row.is_fork), None)
    if begun is None or _is_harmed(world, begun.run):
        return  # nobody can make again what a fork began with
    run_fork(world)
    for behind in (1, 2):
        world.airflow.dag_run(day_of(begun.run) + behind)
        _run_until_quiet(world)
        ill = _ill(world)
        require("a_fork_goes_on_from_what_was_kept", (f"{each.key} is {each.state}: {_said(each)}" for each in ill))
        require("what_a_fork_publishes_is_that_of_a_run_without_faults", _wrong(world))
        require("a_fork_is_full_once", _foreign(world, begun.run))
        for dataflow in (world.scene.flow.name, FORK):
            maintain_checkpoints(world.services, dataflow)
    require("all_is_valid_at_the_end", _not_good(world))


def _is_harmed(world: World, run: str) -> bool:
    witness = world.witness
    current = [result for partition, result in witness.sight.current.items() if partition.run == run]
    folders = {each.folder for each in current}
    folders |= {path.rpartition("/")[0] for each in current for path in witness.files_of(each)}
    return not folders.isdisjoint(witness.harmed)


def _foreign(world: World, begun: str) -> Iterator[str]:
    """What a fork still needs of its origin."""
    for result in world.witness.sight.current.values():
        if result.run.startswith(f"{FORK}@") and result.run != begun:
            for path in world.witness.files_of(result):
                if not path.startswith(f"{FORK}/"):
                    yield f"{result.partition.id} of {result.run} has {path}"
    if any(world.witness.restores.known[id_].is_fork for id_ in world.witness.restores.pins):
        yield "the restore is pinned though a full checkpoint is complete"


def _collect_all(world: World) -> None:
    """When all readers are gone, what a policy keeps is left; where room is needed, what is published."""
    world.airflow.wait(QUIET_MINUTES)
    world.collect(Event(Verb.COLLECT, how="release"))
    require("nothing_is_left_that_nobody_needs", left_over(world.witness, is_reclaiming=False))
    world.collect(Event(Verb.COLLECT, 1, "sweep"))
    require("nothing_is_left_that_nobody_needs", left_over(world.witness, is_reclaiming=True))
    require("all_that_is_left_is_known", unknown_files(world.witness))


def _end_faults(world: World) -> None:
    world.airflow.api, world.files.condition = Api.UP, Condition.UP
    for stage, content in world.content.items():
        if content < 0:
            world.content[stage] = abs(content) + 1
    world.airflow.deliver()
    for process in [each for each in world.suspended if each in world.airflow.owners.values()]:
        world.run(process, NO_FATE)


def _run_until_well(world: World) -> None:
    """Run all that may run; then a person clears what only a person can clear, and so on."""
    for _ in range(MOST_WORDS):
        _run_until_quiet(world)
        ill = _ill(world)
        if not ill:
            return
        stuck = [task for task in ill if task.state in ("failed", "skipped")]
        require("all_heals_without_a_person", _unneeded(world, stuck or ill))
        if any(HELD_BACK in _said(task) for task in stuck):
            _apply_plans(world)
        if any(REFUSED in _said(task) for task in stuck):
            stuck = list(world.airflow.tasks.values())  # a person knows no better than that some source was bad
        if any(NOT_CLOSED in _said(task) for task in stuck):
            stuck += [task for key, task in world.airflow.tasks.items() if key.task_id == CLOSE.name]
        for task in {task.key: task for task in stuck}.values():
            # Weir clears nothing that is skipped: it would be skipped again.
            if task.state == "skipped" or HELD_BACK not in _said(task):
                world.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)
    raise Broken("all_heals_in_the_end", f"a person has cleared again and again: {world.airflow.states()}")


def _ill(world: World) -> list[FakeTask]:
    """All that have not succeeded, but for compactions: as teardowns in Airflow they may fail, and no run does."""
    tasks = world.airflow.tasks.items()
    return [task for key, task in tasks if task.state != "success" and region_compacted(key.task_id) is None]


def _said(task: FakeTask) -> str:
    """Why it has failed, also where a process that nobody listens to has left a note since; else its last note."""
    if task.state == "failed" and task.failed_because:
        return task.failed_because
    return task.notes[-1] if task.notes else ""


def _apply_plans(world: World) -> None:
    """As `weir plan RUN --apply` does."""
    with world.ledger.transaction() as session:
        runs = [row.id for row in runs_of(session) if row.pinned is not None]
    for run in runs:
        apply_answer(world.services, ask(world.services, Question(run)))
    world.airflow.upkeep()


def _run_until_quiet(world: World) -> None:
    waits = 0
    for _ in range(MOST_TRIES * len(world.runs)):
        ready = world.airflow.ready()
        if not ready or waits > MOST_WAITS:
            world.airflow.upkeep()
            ready = world.airflow.ready()
        if not ready or (waits > MOST_WAITS and _is_waited_for(world)):
            return
        world.run(world.airflow.launch(ready[0]), NO_FATE)
        waits = waits + 1 if ready[0].state == "up_for_reschedule" else 0
    raise Broken("all_heals_in_the_end", f"no end after {MOST_TRIES} tries: {world.airflow.states()}")


def _is_waited_for(world: World) -> bool:
    """Whether those who only wait do so for a task of another run that a person has to mend."""
    return any(task.state in ("failed", "skipped") for task in _ill(world))


def _unneeded(world: World, stuck: list[FakeTask]) -> Iterator[str]:
    for task in stuck:
        said = _said(task)
        was_marked = task.key in world.airflow.marked
        by_marks = NEEDS_A_PERSON if world.airflow.marked else ()
        by_gates = (REFUSED,) if world.scene.is_gated else ()
        needs = (HELD_BACK, *AT_FIRST, *by_marks, *by_gates, *(() if world.scene.is_patient else OUT_OF_TRIES))
        if not was_marked and not any(text in said for text in needs):
            yield f"{task.key.task_id}[{task.key.map_index}] of {task.key.run_id} is {task.state}: {said}"


def _tell_what_a_person_knows(world: World) -> None:
    for run in world.runs:
        for task in [each for key, each in world.airflow.tasks.items() if key.run_id == run]:
            names = set(task.key.task_id.split("-"))
            if names & world.changed or task.key.task_id == CLOSE.name:
                world.airflow.clear_by_hand(run, task.key.task_id, task.key.map_index)


def _not_good(world: World) -> Iterator[str]:
    for partition in world.witness.sight.current:
        if not world.witness.sight.is_done(partition):
            yield f"{partition.id} of {partition.run} is not valid, or lost"


def _wrong(world: World) -> Iterator[str]:
    """Compare what a reader sees with what the stages give."""
    expected = expected_contents(world)
    for task in [each for key, each in world.airflow.tasks.items() if key.task_id == CLOSE.name]:
        epoch = epoch_of(world.airflow.request(task).interval[0])
        run = run_key(world.airflow.flow.name, epoch)
        for sink in world.witness.topology_of(run).sinks:
            pointer = published(world.store, world.airflow.flow.name, sink, epoch)
            if pointer is None:
                yield f"{sink} of {epoch} is not published"
                continue
            for part in pointer.partitions:
                found = world.files.data.get(f"{part.folder}/part-0.bin", b"")[:64].decode()
                wanted = expected[Partition(run, PartitionId(sink, part.subtask, PLAIN.id))]
                if f"{part.folder}/{MANIFEST}" not in world.files.data or wanted not in (None, found):
                    yield f"{sink}[{part.subtask}] of {epoch}: found {found or 'no file'}, expected {wanted}"


def expected_contents(world: World) -> dict[Partition, str | None]:
    """What each partition is in runs without faults, one epoch after the other; None for those that follow a mood.

    What was restored, and nothing has made anew since, is given.
    """
    found: dict[Partition, str | None] = {}
    natures, epochs = world.scene.natures, world.witness.epochs

    def own(stage: str) -> object:
        is_moody = natures.get(stage, Nature.FINE) is Nature.MOODY
        return UNKNOWN if is_moody else world.content.get(stage, 0) if stage in world.sources else None

    for run in sorted(world.witness.sight.runs()):
        topology = epochs.topology_of(run)
        for region in topology.region_ids():
            contents = contents_of(epochs, (run, region), natures, own, found.__getitem__)
            found |= {Partition(run, each): contents[each.stage] for each in topology.outputs(region)}
            found |= _restored(world, run, topology.outputs(region))
    return found


def _restored(world: World, run: str, outputs: Iterable[PartitionId]) -> dict[Partition, str | None]:
    found: dict[Partition, str | None] = {}
    for partition in (Partition(run, each) for each in outputs):
        result = world.witness.sight.current.get(partition)
        if result is not None and world.witness.sight.attempts[result.attempt].is_restored:
            found[partition] = world.engine.made[result.attempt].contents[result.stage]
    return found
