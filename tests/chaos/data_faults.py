"""Faults of data, and actions of people: results lost or damaged, tasks cleared, an input that changes.

Invariant: a damaged result is also read again, as by a person who opens it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.faults import Injection
from tests.chaos.field import Task, day_of

from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import MANIFEST

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.field import Field, RunView

    from weir.execution.run_state import CurrentResult


NOTE = "cleared by weir chaos"


class DamageKind(Enum):
    """A kind of damage to a result."""

    LOST = "lost"
    CUT = "cut"
    BIT = "bit"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class Damage:
    """A current result that is no state is lost or damaged, and its readers are cleared."""

    kind: DamageKind

    @property
    def name(self) -> str:
        """The name of the fault in `--faults`."""
        return self.kind.value

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Damage one current result of any run."""
        found = [
            (run, result)
            for run in field.runs()
            for result in run.results
            if result.state is PartitionState.FINISHED and result.partition.stage not in run.state.topology.states
        ]
        if not found:
            return None
        run, result = chance.choice(found)
        done = damage_result(Path(field.stack.store_url.removeprefix("file://")) / result.folder, self.kind, chance)
        if done is None:
            return None  # another fault or another attempt was faster
        readers = _readers(run, result)
        label = f"{result.partition.stage}[{result.partition.subtask}] of {day_of(run.epoch)}"
        names = ", ".join(str(task.name).partition(" ")[0] for task in readers)
        return Injection(f"{label}: {done}; cleared: {names}", lambda: field.deliver(readers, NOTE))


@dataclass(frozen=True, slots=True)
class DamageState:
    """A file of keyed state is lost or cut short, of any epoch, and the tasks that may have read it are cleared."""

    name: str = "state"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Damage one file of a current state of any run; None where no dataflow keeps state."""
        runs = field.runs()
        found = [
            (at, result)
            for at, run in enumerate(runs)
            for result in run.results
            if result.state is PartitionState.FINISHED and result.partition.stage in run.state.topology.states
        ]
        if not found:
            return None
        at, result = chance.choice(found)
        done = damage_state(Path(field.stack.store_url.removeprefix("file://")), result.folder, chance)
        if done is None:
            return None
        state = f"{result.partition.stage}[{result.partition.subtask}]"
        readers = [task for run in runs[at:] for task in _updaters(run, result.partition.stage)]
        names = ", ".join(sorted({str(task.name).partition(" ")[0] for task in readers}))
        label = f"{state} of {day_of(runs[at].epoch)}: {done}; cleared: {names}"
        return Injection(label, lambda: field.deliver(readers, NOTE))


@dataclass(frozen=True, slots=True)
class ClearFinished:
    """A person clears a task instance that has finished."""

    name: str = "clear-finished"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Clear one that has a current result."""
        running = {work.task for work in field.running_tasks()}
        found = [
            run.tasks[run.state.topology.producer(result.partition)] for run in field.runs() for result in run.results
        ]
        return _cleared(field, [task for task in found if task not in running], chance)


@dataclass(frozen=True, slots=True)
class ClearRunning:
    """A person clears a task instance that is running."""

    name: str = "clear-running"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Clear one."""
        return _cleared(field, [work.task for work in field.running_tasks()], chance)


@dataclass(frozen=True, slots=True)
class ChangeInput:
    """A source's input changes, and a person clears the source."""

    name: str = "input"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Change the input of one run."""
        runs = field.runs()
        if not runs:
            return None
        run = chance.choice(runs)
        add, count = chance.randrange(1000), chance.randrange(60, 140)
        field.change_epoch(run.epoch, add=add, count=count)
        sources = [task for region, task in sorted(run.tasks.items()) if region.name == "numbers"]
        what = f"the input of {day_of(run.epoch)} is {add} .. {add + count - 1} now; cleared: numbers"
        return Injection(what, lambda: field.deliver(sources, NOTE))


def _cleared(field: Field, tasks: list[Task], chance: Random) -> Injection | None:
    if not tasks:
        return None
    task = chance.choice(tasks)
    clears = [task]
    return Injection(f"{task.name} cleared in Airflow", lambda: field.deliver(clears, NOTE))


def _readers(run: RunView, result: CurrentResult) -> list[Task]:
    """Return all tasks that read the result: one alone might not read the damaged bytes."""
    topology = run.state.topology
    readers = [run.tasks[region] for region in topology.consumers(result.partition)]
    if result.partition.stage in topology.sinks:
        readers.append(_closing_task(run))
    return readers


def _updaters(run: RunView, state: str) -> list[Task]:
    """Return the tasks that update a state in a run: they read that of the epoch before."""
    topology = run.state.topology
    if state not in topology.states:
        return []
    return [run.tasks[region] for region in topology.logical_region_of(state).ids()]


def _closing_task(run: RunView) -> Task:
    prefix = next(iter(run.tasks.values())).task_id.removesuffix(next(iter(run.tasks)).name)
    return Task(run.run_id, f"{prefix}{CLOSE.name}", -1, f"{CLOSE.name} of {day_of(run.epoch)}")


def damage_state(store: Path, folder: str, chance: Random) -> str | None:
    """Damage a file of the state in a folder of the store; return what was done, None if nothing was."""
    try:
        state = from_json(Manifest, (store / folder / MANIFEST).read_bytes()).state
        file = chance.choice(() if state is None else state.files)
        path, kind = store / file.path, chance.choice([DamageKind.LOST, DamageKind.CUT])
        if kind is DamageKind.CUT:
            os.truncate(path, chance.randrange(path.stat().st_size))
            return f"the file that {file.epoch} wrote is cut short"
        path.unlink()
    except (OSError, IndexError, ValueError):  # it is gone, or nothing has changed so far
        return None
    return f"the file that {file.epoch} wrote is lost"


def damage_result(folder: Path, kind: DamageKind, chance: Random) -> str | None:
    """Damage the result in a folder; return what was done, None if nothing was."""
    try:
        if kind is DamageKind.LOST:
            shutil.rmtree(folder)
            return "folder lost"
        if kind is DamageKind.MANIFEST:
            (folder / "manifest.json").unlink()
            return "manifest lost"
        file = chance.choice(sorted(folder.glob("*.parquet")))
        with file.open("r+b") as data:
            size = file.stat().st_size
            if kind is DamageKind.CUT:
                data.truncate(chance.randrange(size))
                return "file cut short"
            at, bit = chance.randrange(size), chance.randrange(8)
            data.seek(at)
            byte = data.read(1)[0]
            data.seek(at)
            data.write(bytes([byte ^ (1 << bit)]))
            return f"bit {bit} of byte {at} of {size} flipped"
    except (OSError, IndexError, ValueError):  # it was gone, or nothing of it was left
        return None
