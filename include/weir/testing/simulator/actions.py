"""Applies the events of a simulation to its world: to processes, Airflow, the store, sources, snapshots and readers.

Invariant: an action that finds nothing to act on does nothing; each raises Broken when an invariant breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import Final

from weir.coordination.read_leases import claimed
from weir.errors import Misconfigured, WeirError
from weir.formats.paths import folder_of
from weir.ledger.leases import drop_leases
from weir.ledger.runs import runs_of
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.sweep import sweep
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create, tidy
from weir.store.store import Store
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.dag import FakeTask
from weir.testing.simulator.airflow import Api, SimulatedAirflow
from weir.testing.simulator.dataflows import rescaled
from weir.testing.simulator.events import OLD, Event, Verb
from weir.testing.simulator.observer import require
from weir.testing.simulator.process import NO_FAULT, Process, ProcessFault
from weir.testing.simulator.store import Condition
from weir.testing.simulator.world import World
from weir.topology.regions import Topology

MOST_RUNS: Final = 3

FORK: Final = "forked"
"""The dataflow that a fork begins."""


def apply(world: World, event: Event) -> None:
    """Let one event happen. Raises Broken."""
    _ACTIONS[event.verb](world, event)


# Processes


def _step(world: World, event: Event) -> None:
    """Run a task instance in a new process."""
    ready = world.airflow.ready()
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
    """Start the DagRun of the next day."""
    del event
    if len(world.runs) < MOST_RUNS:
        world.runs.append(world.airflow.dag_run(len(world.runs) + 1))


def _deploy(world: World, event: Event) -> None:
    """Give a region one subtask more in runs that begin from now on."""
    flow = rescaled(world.airflow.flow, event.number)
    if flow is not None:
        world.history.epochs.deploy(Topology(flow))
        world.airflow.deploy(flow)


def _recreate(world: World, event: Event) -> None:
    """Delete a DagRun, and make it again under its name."""
    run = world.runs[event.number % len(world.runs)]
    world.history.recreated.add(run)
    world.airflow.recreate(run)


def _task(world: World, event: Event) -> FakeTask:
    tasks = sorted(
        world.airflow.tasks.values(), key=lambda task: (task.key.run_id, task.key.task_id, task.key.map_index)
    )
    return tasks[event.number % len(tasks)]


def _clear(world: World, event: Event) -> None:
    """Clear a task instance that has run."""
    task = _task(world, event)
    if task.try_number:
        world.airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)


def _clear_downstream(world: World, event: Event) -> None:
    world.airflow.clear_with_downstream(_task(world, event))


def _clear_run(world: World, event: Event) -> None:
    world.airflow.clear_run_by_hand(world.runs[event.number % len(world.runs)])


def _mark(world: World, event: Event) -> None:
    """Mark a task instance as a person does."""
    state = {Verb.SUCCEED: "success", Verb.FAIL: "failed", Verb.SKIP: "skipped"}[event.verb]
    world.airflow.mark(_task(world, event), state)


def _upkeep(world: World, event: Event) -> None:
    """Deliver pending clears."""
    del event
    world.airflow.upkeep()


def _change_airflow(world: World, event: Event) -> None:
    world.airflow.api = Api(event.how)


def _deliver(world: World, event: Event) -> None:
    """Carry out the requests that a slow API has taken."""
    del event
    world.airflow.deliver()


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


# Code


def _edit(world: World, event: Event) -> None:
    """Edit the function of a stage."""
    stages = [stage.name for stage in world.scene.flow.stages if stage.function]
    world.airflow.edit(stages[event.number % len(stages)], breaks=event.verb is Verb.BREAK)


# Upkeep


class Chore(Enum):
    """A chore of upkeep."""

    RELEASE = "release"
    SWEEP = "sweep"
    DRY_SWEEP = "dry sweep"
    CHECKPOINTS = "checkpoints"


def upkeep_process(airflow: SimulatedAirflow, chore: Chore, *, is_reclaiming: bool = False) -> Process:
    """Return a process that does a chore; it has not begun."""
    return _process(airflow, lambda: _do(airflow, chore, is_reclaiming=is_reclaiming))


def collect(world: World, event: Event) -> None:
    """Release results that are no longer needed, or sweep the store."""
    if not world.scene.collects:
        if world.scene.keeps_state:
            world.run(upkeep_process(world.airflow, Chore.CHECKPOINTS), event.fault)
        return
    if event.how == "dry":
        before = world.ledger.connection.total_changes, set(world.files.data)
        world.run(upkeep_process(world.airflow, Chore.DRY_SWEEP, is_reclaiming=bool(event.number % 2)), NO_FAULT)
        is_same = before == (world.ledger.connection.total_changes, set(world.files.data))
        require("a_dry_sweep_changes_nothing", [] if is_same else ["the ledger or the store has changed"])
        return
    is_reclaiming = event.how == "pressed" or (event.how == "sweep" and event.number % 2 == 1)
    chore = Chore.SWEEP if event.how == "sweep" else Chore.RELEASE
    process = upkeep_process(world.airflow, chore, is_reclaiming=is_reclaiming)
    if is_reclaiming:
        world.pressed.add(process)
    world.run(process, event.fault)


def _do(airflow: SimulatedAirflow, chore: Chore, *, is_reclaiming: bool) -> None:
    if chore is Chore.RELEASE:
        airflow.collect(None, is_reclaiming=is_reclaiming)
    elif chore is Chore.CHECKPOINTS:
        maintain_checkpoints(airflow.services, airflow.flow.name)
    elif _has_begun(airflow):
        # Unknown folders of any age: a running attempt's folder is known.
        is_dry, none = chore is Chore.DRY_SWEEP, timedelta()
        sweep(
            airflow.services,
            airflow.flow.name,
            older_than=none,
            is_full=True,
            is_dry=is_dry,
            is_reclaiming=is_reclaiming,
        )


def _has_begun(airflow: SimulatedAirflow) -> bool:
    with airflow.services.ledger.transaction() as session:
        return airflow.flow.name in {row.dataflow for row in runs_of(session)}


# Readers


def _read(world: World, event: Event) -> None:
    """Take a read lease on a result, as a notebook does."""
    there = sorted(result.id for result in world.history.ledger.current.values() if result.state == "finished")
    if there:
        wanted = [there[event.number % len(there)]]
        with world.ledger.transaction(world.scene.flow.name) as session:
            claim = claimed(session, world.services, world.scene.flow.name, wanted, "notebook")
        world.notebooks.append(claim.holder)


def _stop_reading(world: World, event: Event) -> None:
    """Drop a notebook's read lease."""
    if world.notebooks:
        holder = world.notebooks.pop(event.number % len(world.notebooks))
        with world.ledger.transaction(world.scene.flow.name) as session:
            drop_leases(session, holder)


# Savepoints, restores and forks, by processes that may be killed


def _make_savepoint(world: World, event: Event) -> None:
    """Make a savepoint of a retained checkpoint."""
    kept = sorted(row.number for row in world.history.snapshots.known.values() if row.is_retained)
    if kept:
        asked = SavepointRequest(world.airflow.flow.name, kept[event.number % len(kept)])
        _run_by_hand(world, lambda: create(world.services, asked, _elsewhere), event.fault)


def _restore(world: World, event: Event) -> None:
    """Restore the dataflow, or begin a fork of it, from a checkpoint or savepoint."""
    kept = sorted(row.number for row in world.history.snapshots.known.values() if row.is_usable)
    if kept:
        fork = FORK if event.verb is Verb.FORK else None
        wish = RestoreRequest(world.airflow.flow.name, str(kept[event.number % len(kept)]), fork)
        _run_by_hand(world, lambda: restore(world.services, wish, _elsewhere), event.fault)


def complete_savepoints(world: World) -> None:
    """Complete or abandon the savepoints of processes that were killed, when these are old enough."""
    if any(row.is_savepoint and row.status == "pending" for row in world.history.snapshots.known.values()):
        world.airflow.wait(world.services.retention.orphan_age // timedelta(minutes=1))
        _run_by_hand(world, lambda: tidy(world.services, world.airflow.flow.name, _elsewhere), NO_FAULT)


def run_fork(world: World) -> None:
    """From now on schedule the DAG of the fork."""
    before = world.airflow
    airflow = SimulatedAirflow(world.services, world.engine, replace(before.flow, name=FORK))
    airflow.collects, airflow.strategy, airflow.time = False, before.strategy, before.time
    airflow.has_code, airflow.edits, airflow.archives = before.has_code, before.edits, before.archives
    airflow.cleared = before.cleared
    world.airflow = airflow


def _run_by_hand(world: World, do: Callable[[], object], fault: ProcessFault) -> None:
    world.run(_process(world.airflow, do), fault)


def _process(airflow: SimulatedAirflow, do: Callable[[], object]) -> Process:
    def work(_mine: Process) -> None:
        with suppress(Killed):
            try:
                do()
            except WeirError as error:
                airflow.require_expected(error)

    airflow.started += 1
    return Process(airflow.started, work)


def _elsewhere(url: str) -> Store:
    raise Misconfigured(f"a simulation has one store, and {url} is not in it")


_ACTIONS: Final[dict[Verb, Callable[[World, Event], None]]] = {
    Verb.STEP: _step,
    Verb.RESUME: _resume,
    Verb.BEAT: _beat,
    Verb.LOSE: _lose,
    Verb.WAIT: _wait,
    Verb.RUN: _start_run,
    Verb.DEPLOY: _deploy,
    Verb.RECREATE: _recreate,
    Verb.CLEAR: _clear,
    Verb.CLEAR_DOWN: _clear_downstream,
    Verb.CLEAR_RUN: _clear_run,
    Verb.SUCCEED: _mark,
    Verb.FAIL: _mark,
    Verb.SKIP: _mark,
    Verb.UPKEEP: _upkeep,
    Verb.AIRFLOW: _change_airflow,
    Verb.DELIVER: _deliver,
    Verb.STORE: _change_store,
    Verb.DAMAGE: _damage,
    Verb.RESTORE: _undo_damage,
    Verb.CHANGE: _change_source,
    Verb.SPOIL: _spoil_source,
    Verb.EDIT: _edit,
    Verb.BREAK: _edit,
    Verb.COLLECT: collect,
    Verb.READ: _read,
    Verb.LEAVE: _stop_reading,
    Verb.SAVEPOINT: _make_savepoint,
    Verb.GO_BACK: _restore,
    Verb.FORK: _restore,
}
