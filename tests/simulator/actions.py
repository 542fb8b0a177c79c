"""Applies the events of a simulation to its world: to processes, Airflow, the store, sources, snapshots and readers.

Invariant: an action that finds nothing to act on does nothing; each raises Broken when an invariant breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from tests.simulator.airflow import Api, SimulatedAirflow
from tests.simulator.chores import (
    FORK,
    collect,
    declare_same,
    go_back,
    make_savepoint,
    read,
    rebuild_ledger,
    seal_day,
    stop_reading,
    tidy_savepoints,
    upkeep,
)
from tests.simulator.dataflows import rescaled
from tests.simulator.events import CLOSE_FIRST, FIRST_COMMITS, MOST_LOST, OLD, OTHER, Event, Verb
from tests.simulator.store import Condition
from tests.simulator.world import World

from weir.execution.run_state import CLOSE
from weir.formats.paths import folder_of
from weir.testing.fakes.dag import FakeTask
from weir.topology.regions import Topology

MOST_RUNS: Final = 3

CLOCKS: Final = {
    "right": timedelta(),
    "fast": timedelta(seconds=40),
    "slow": timedelta(seconds=-40),
    "minutes-fast": timedelta(minutes=10),
    "minutes-slow": timedelta(minutes=-10),
    "hours-fast": timedelta(hours=3),
    "hours-slow": timedelta(hours=-3),
}


def apply(world: World, event: Event) -> None:
    """Let one event happen. Raises Broken."""
    _ACTIONS[event.verb](world, event)


# Processes


def _step(world: World, event: Event) -> None:
    """Run a task instance in a new process."""
    ready = world.airflow.ready()
    closing = [task for task in ready if event.how == CLOSE_FIRST and task.key.task_id == CLOSE.name]
    ready = closing or ready
    if ready:
        launched = world.airflow.launch(ready[event.number % len(ready)], is_old=event.how == OLD)
        world.run(launched, event.fault)


def _resume(world: World, event: Event) -> None:
    """Run a suspended process on."""
    if world.suspended:
        world.run(world.suspended[event.number % len(world.suspended)], event.fault)


def _beat(world: World, event: Event) -> None:
    """Let a suspended process take a heartbeat."""
    if world.suspended:
        world.beat(world.suspended[event.number % len(world.suspended)])


def _lose(world: World, event: Event) -> None:
    """Have Airflow miss the heartbeats of a suspended process."""
    if world.suspended:
        world.airflow.lose(world.suspended[event.number % len(world.suspended)])


# Airflow and its users


def _wait(world: World, event: Event) -> None:
    world.airflow.wait(event.number)


def _start_run(world: World, event: Event) -> None:
    """Start or queue the DagRun of the next day."""
    if world.days < MOST_RUNS:
        world.days += 1
        world.runs.append(world.airflow.dag_run(world.days, is_queued=event.verb is Verb.QUEUE))


def _start_queued(world: World, event: Event) -> None:
    """Start a queued DagRun."""
    queued = sorted(world.airflow.queued)
    if queued:
        world.airflow.start("dag", queued[event.number % len(queued)])


def _delete_run(world: World, event: Event) -> None:
    """Delete a DagRun."""
    if world.runs:
        run = world.runs.pop(event.number % len(world.runs))
        world.history.deleted.add(run)
        world.airflow.remove(run)


def _come_again(world: World, event: Event) -> None:
    """Create a deleted DagRun again, under its name or another one."""
    gone = sorted(world.history.deleted)
    if not gone:
        return
    run = gone[event.number % len(gone)]
    if any(each[-10:] == run[-10:] for each in world.runs):
        return  # its day has another one
    kind = "manual" if event.how == OTHER else run.partition("__")[0]
    world.runs.append(world.airflow.dag_run(int(run[-2:]), kind=kind))
    world.history.deleted.discard(world.runs[-1])
    world.history.recreated.add(world.runs[-1])


def _deploy(world: World, event: Event) -> None:
    """Give a region one subtask more in runs that begin from now on."""
    flow = rescaled(world.airflow.flow, event.number)
    if flow is not None:
        world.history.epochs.deploy(Topology(flow))
        world.airflow.deploy(flow)


def _recreate(world: World, event: Event) -> None:
    """Delete a DagRun, and make it again under its name."""
    if world.runs:
        run = world.runs[event.number % len(world.runs)]
        world.history.recreated.add(run)
        world.airflow.recreate(run)


def _task(world: World, event: Event) -> FakeTask | None:
    tasks = sorted(
        world.airflow.tasks.values(), key=lambda task: (task.key.run_id, task.key.task_id, task.key.map_index)
    )
    return tasks[event.number % len(tasks)] if tasks else None


def _clear(world: World, event: Event) -> None:
    """Clear a task instance that has run."""
    task = _task(world, event)
    if task is not None and task.try_number:
        world.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)


def _clear_downstream(world: World, event: Event) -> None:
    task = _task(world, event)
    if task is not None:
        world.airflow.clear_with_downstream(task)


def _clear_run(world: World, event: Event) -> None:
    if world.runs:
        world.airflow.clear_run_by_hand(world.runs[event.number % len(world.runs)])


def _mark(world: World, event: Event) -> None:
    """Mark a task instance as a person does."""
    state = {Verb.SUCCEED: "success", Verb.FAIL: "failed", Verb.SKIP: "skipped"}[event.verb]
    task = _task(world, event)
    if task is not None:
        world.airflow.mark(task, state)


def _change_airflow(world: World, event: Event) -> None:
    world.airflow.api = Api(event.how)


def _deliver(world: World, event: Event) -> None:
    """Carry out the requests that a slow API has taken."""
    del event
    world.airflow.deliver()


# Clocks, and the server of the ledger


def _set_clock(world: World, event: Event) -> None:
    """Set the clock of a machine."""
    world.set_clock(event.number, CLOCKS[event.how or "right"])


def _lose_commits(world: World, event: Event) -> None:
    """Have the ledger go back in time, by at least one commit."""
    most = world.ledger.kept_commits - FIRST_COMMITS
    free = world.observer.free_files()
    if most > 0 and world.ledger.go_back(min(event.number % MOST_LOST + 1, most), is_promoted=event.how == "promoted"):
        for process in world.suspended:
            process.may_delete |= free
        world.observer.ledger_went_back()


def _forget(world: World, event: Event) -> None:
    """Have Airflow's database go back in time."""
    world.airflow.go_back(event.number)


def _decide(world: World, event: Event) -> None:
    """Let the commit come true whose answer was lost."""
    del event
    world.ledger.decide()


# The store and the files of current results


def _change_store(world: World, event: Event) -> None:
    world.files.condition = Condition(event.how)


def _damage(world: World, event: Event) -> None:
    """Delete or change files of a current result; of one that is being read, for odd numbers."""
    folders = sorted({folder_of(path) for path in world.history.current_files()})
    if not folders:
        return
    leased = sorted(world.history.ledger.leased()) if event.number % 2 else []
    world.history.damaged.add(folder := (leased or folders)[event.number % len(leased or folders)])
    file, manifest = f"{folder}/part-0.bin", f"{folder}/manifest.json"
    for path in {"folder": (file, manifest), "manifest": (manifest,)}.get(event.how, (file,)):
        _damage_file(world, path, event)


def _damage_file(world: World, path: str, event: Event) -> None:
    data = world.files.data.get(path)
    if data is None:
        return
    world.damaged_files.setdefault(path, data)
    if event.how in ("folder", "manifest"):
        del world.files.data[path]
    elif event.how == "cut":
        world.files.data[path] = data[: len(data) // 2]
    else:
        at = event.number % len(data)
        world.files.data[path] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _undo_damage(world: World, event: Event) -> None:
    """Write a lost or damaged file as it was before."""
    if world.damaged_files:
        path = sorted(world.damaged_files)[event.number % len(world.damaged_files)]
        world.files.data[path] = world.damaged_files.pop(path)


# Sources


def _change_source(world: World, event: Event) -> None:
    """Let a source read other rows from now on."""
    stage = world.sources[event.number % len(world.sources)]
    world.content[stage] = abs(world.content.get(stage, 0)) + 1
    world.changed_sources.add(stage)


def _spoil_source(world: World, event: Event) -> None:
    """Let a source read bad rows from now on."""
    _change_source(world, event)
    stage = world.sources[event.number % len(world.sources)]
    world.content[stage] *= -1


def _change_listing(world: World, event: Event) -> None:
    """Let a file of a source come, go, or be corrected."""
    sources = world.listings.sources
    if sources:
        world.listings.change(sources[event.number % len(sources)], event.number // len(sources), event.how)


# Code


def _edit(world: World, event: Event) -> None:
    """Edit the function of a stage."""
    stages = [stage.name for stage in world.scene.flow.stages if stage.function]
    world.airflow.edit(stages[event.number % len(stages)], breaks=event.verb is Verb.BREAK)


def run_fork(world: World) -> None:
    """From now on schedule the DAG of the fork."""
    before = world.airflow
    airflow = SimulatedAirflow(world.services, world.engine, replace(before.flow, name=FORK, is_record=True))
    airflow.collects, airflow.strategy, airflow.time = False, before.strategy, before.time
    airflow.has_code, airflow.edits, airflow.archives = before.has_code, before.edits, before.archives
    airflow.cleared = before.cleared
    world.airflow = airflow


_ACTIONS: Final[dict[Verb, Callable[[World, Event], None]]] = {
    Verb.STEP: _step,
    Verb.RESUME: _resume,
    Verb.BEAT: _beat,
    Verb.LOSE: _lose,
    Verb.WAIT: _wait,
    Verb.RUN: _start_run,
    Verb.QUEUE: _start_run,
    Verb.START: _start_queued,
    Verb.DELETE: _delete_run,
    Verb.AGAIN: _come_again,
    Verb.DEPLOY: _deploy,
    Verb.RECREATE: _recreate,
    Verb.CLEAR: _clear,
    Verb.CLEAR_DOWN: _clear_downstream,
    Verb.CLEAR_RUN: _clear_run,
    Verb.SUCCEED: _mark,
    Verb.FAIL: _mark,
    Verb.SKIP: _mark,
    Verb.UPKEEP: upkeep,
    Verb.AIRFLOW: _change_airflow,
    Verb.DELIVER: _deliver,
    Verb.STORE: _change_store,
    Verb.DAMAGE: _damage,
    Verb.RESTORE: _undo_damage,
    Verb.CHANGE: _change_source,
    Verb.SPOIL: _spoil_source,
    Verb.FILE: _change_listing,
    Verb.EDIT: _edit,
    Verb.BREAK: _edit,
    Verb.COLLECT: collect,
    Verb.TIDY: tidy_savepoints,
    Verb.SAME: declare_same,
    Verb.REBUILD: rebuild_ledger,
    Verb.CLOCK: _set_clock,
    Verb.DECIDE: _decide,
    Verb.LOSE_COMMITS: _lose_commits,
    Verb.FORGET: _forget,
    Verb.READ: read,
    Verb.LEAVE: stop_reading,
    Verb.SAVEPOINT: make_savepoint,
    Verb.GO_BACK: go_back,
    Verb.SEAL: seal_day,
    Verb.FORK: go_back,
}
