"""What a search explores: a dataflow, what has happened before, and how many processes of each kind there may be.

Invariant: the same choices come to the same world. Time stands still during a schedule, except where a task waits.
"""

from __future__ import annotations

import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.simulator.actions import apply
from tests.simulator.chores import Chore, upkeep_process
from tests.simulator.dataflows import scene_from_text
from tests.simulator.events import events_from_text
from tests.simulator.exhaustive.fingerprint import Fingerprints, without_numbers
from tests.simulator.exhaustive.stepping import ONE_STEP, SteppedProcess
from tests.simulator.exhaustive.traffic import Traffic
from tests.simulator.healing import heal
from tests.simulator.process import FaultKind, ProcessFault
from tests.simulator.world import World

from weir.execution.run_state import CLOSE
from weir.testing.fakes.dag import FakeTask
from weir.topology.regions import region_compacted


@dataclass(frozen=True, slots=True)
class Scope:
    """A small dataflow, the events before the search, and how many of each kind may begin."""

    scene: str
    before: str = ""
    attempts: int = 2
    closes: int = 1
    sweeps: int = 1
    faults: int = 1
    """Kills, and processes that Airflow takes for dead while they run on."""
    waits: int = 2
    """Tries that are rescheduled may begin so often again."""
    person: str = ""
    """What a person does once, at any moment of a schedule: events."""


CHAIN: Final = """\
dataflow failover=region consumers=if_changed tries=any largest_plan=1 keep=on_consumed retained_checkpoints=1
stage s0 x1 fine: source
stage s1 x1 fine keeps=keyed/s1_h0/2: blocking s0 by k
"""

CHANGE: Final = "change 0\nclear 0"

SCOPES: Final = {
    "tries": Scope(CHAIN, "step 0", closes=0, sweeps=0),
    "successor": Scope(CHAIN, "step 0"),
    "cleared": Scope(CHAIN, f"step 0\nstep 0\n{CHANGE}"),
    "clears": Scope(CHAIN, "step 0", closes=0, sweeps=0, faults=0, person=CHANGE),
}
"""Two tries of the stage with a state, by themselves or with a closing task and a sweep; and a first stage that is
cleared and gives other rows, so that the second is run again, while the closing task may run, or while it runs."""


class Choice(NamedTuple):
    """What happens next: a process goes on to its next point, begins, is killed, or is lost sight of; a person acts."""

    verb: str
    name: str
    until: int | None = None
    """The number of the point at which it stops, 0 for its end; None: the next at which another one could tell."""

    def __str__(self) -> str:
        return f"{self.verb} {self.name}" + ("" if self.until is None else f" until {self.until or END}")


GO: Final = "go"
BEGIN: Final = "begin"
KILL: Final = "kill"
LOSE: Final = "lose"
SWEEP: Final = "sweep"
ACT: Final = Choice("act", "person")
END: Final = "its end"


def choices_to_text(choices: Iterable[Choice]) -> str:
    """Return a schedule as text: one line for each choice, of those in which one process goes on the last."""
    found = list[Choice]()
    for choice in choices:
        if found and choice.verb == GO and (found[-1].verb, found[-1].name) == (GO, choice.name):
            found.pop()
        found.append(choice)
    return "\n".join(map(str, found))


def choices_from_text(text: str) -> tuple[Choice, ...]:
    """Read a schedule as it is printed; comments are passed over."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(map(_choice_from_text, lines))


def _choice_from_text(line: str) -> Choice:
    choice, _, until = line.partition(" until ")
    verb, _, name = choice.partition(" ")
    return Choice(verb, name, None if not until else 0 if until == END else int(until))


class Play:
    """A world in which a schedule is carried out, choice by choice. Raises Broken where an invariant breaks."""

    def __init__(self, scope: Scope, traffic: Traffic) -> None:
        self.world = world = World(scene_from_text(scope.scene.splitlines()))
        self.current: str | None = None
        """The process that went on last, and may go on."""
        self._live: dict[str, SteppedProcess] = {}
        self._left = {"attempt": scope.attempts, "close": scope.closes, SWEEP: scope.sweeps, "fault": scope.faults}
        self._left |= {"wait": scope.waits, ACT.name: int(scope.person != "")}
        self._person = events_from_text(scope.person)
        self._fingerprints = Fingerprints(world)
        self.traffic = traffic
        self._drawn: Counter[int] = Counter()
        for event in events_from_text(scope.before):
            apply(world, event)
        world.new_uuid = self._new_uuid
        world.airflow.new_process = type("Process", (SteppedProcess,), {"around": self})
        world.ledger.connection.watch = self._answered

    def _new_uuid(self) -> uuid.UUID:
        """Return an id that does not depend on what other processes have drawn."""
        number = self.world.process.number
        self._drawn[number] += 1
        return uuid.UUID(int=((number << 6) + self._drawn[number]) << 96)

    def _answered(self, columns: list[str], rows: list[object]) -> None:
        process = self.world.process
        if process.depth > 0 and isinstance(process, SteppedProcess):
            process.answered(without_numbers(columns, rows))

    @property
    def fingerprint(self) -> bytes:
        """Return the fingerprint of all that decides what may happen."""
        return self._fingerprints.of_world(self._live.items(), sorted(self._left.items()))

    @property
    def is_alone(self) -> bool:
        """Report whether no other process can tell what the last one does next."""
        return self.current is not None and self._live[self.current].is_alone

    @property
    def may_be_killed(self) -> bool:
        """Report whether a kill may still come."""
        return self._left["fault"] > 0

    def seen_at(self, path: str) -> object:
        """Return what a process sees at a path of the store, or of Airflow at an empty one."""
        return self._fingerprints.of_store(path) if path else self._fingerprints.of_airflow()

    def rows_of_sources(self) -> object:
        """Return what sources give just now."""
        return sorted(self.world.content.items())

    def version(self) -> object:
        """Return what changes with each change of the ledger or of Airflow."""
        return self.world.ledger.connection.total_changes, self._fingerprints.of_airflow()

    def choices(self) -> list[Choice]:
        """Return what may happen next: first what needs no other process to begin."""
        faults = self._faults(self.current) if self.current is not None and self.may_be_killed else []
        if self.current is not None and self.is_alone:
            return [*faults, Choice(GO, self.current)]
        names = sorted(self._live, key=lambda name: (name != self.current, name))
        found = [*faults, *(Choice(GO, name) for name in names)]
        for task in self.world.airflow.ready():
            kind = self._kind(task)
            if kind is not None and self._left[kind] > 0:
                found.append(Choice(BEGIN, _name_of(task, len(task.runs) + 1)))
        if self._left[SWEEP] > 0:
            found.append(Choice(BEGIN, SWEEP))
        if self._left[ACT.name] > 0:
            found.append(ACT)
        return found

    def _faults(self, name: str) -> list[Choice]:
        """Return what may befall the process that went last: later it is the same, unless it has changed something."""
        process = self._live[name]
        kill = [Choice(KILL, name)] if process.has_changed else []
        return [*kill, Choice(LOSE, name)] if not process.is_alone and self._is_heard(name) else kill

    def preempts(self, choice: Choice) -> bool:
        """Report whether a choice has another process go on though the last one might."""
        return self.current is not None and choice.verb in (GO, BEGIN) and choice.name != self.current

    def choose(self, choice: Choice) -> Choice:
        """Let it happen; return it with the point at which the process stops."""
        if choice.verb == BEGIN:
            self._begin(choice)
        elif choice.verb == GO:
            self._run(choice, ONE_STEP)
        elif choice == ACT:
            self._left[ACT.name] -= 1
            for event in self._person:
                apply(self.world, event)
            return choice
        else:
            self._left["fault"] -= 1
            if choice.verb == KILL:
                self._run(choice, ProcessFault(FaultKind.KILL, 1))
            else:
                self.world.airflow.lose(self._live[choice.name])
                self.current = None
            return choice
        return choice._replace(until=self._live[choice.name].points if choice.name in self._live else 0)

    def _begin(self, choice: Choice) -> None:
        airflow, name = self.world.airflow, choice.name
        if name == SWEEP:
            process = upkeep_process(airflow, Chore.SWEEP)
            self._left[SWEEP] -= 1
        else:
            task = next(each for each in airflow.ready() if _name_of(each, len(each.runs) + 1) == name)
            self._left[self._kind(task) or ""] -= 1
            at = max(airflow.time, task.not_before or airflow.time)
            process = airflow.launch(task)
            airflow.time = at
        process.number = 1000 + zlib.crc32(name.encode()) % 2**20
        assert isinstance(process, SteppedProcess)
        self._live[name] = process
        self._run(choice, ONE_STEP)

    def _run(self, choice: Choice, fault: ProcessFault) -> None:
        name = self.current = choice.name
        process = self._live[name]
        process.until = choice.until
        self.world.run(process, fault)
        if process.is_over:
            del self._live[name]
            self.current = None

    def _is_heard(self, name: str) -> bool:
        airflow = self.world.airflow
        return any(
            owner is self._live[name] and airflow.tasks[key].state == "running" for key, owner in airflow.owners.items()
        )

    @staticmethod
    def _kind(task: FakeTask) -> str | None:
        """Return what a task counts as; compactions are left to the end."""
        if region_compacted(task.key.task_id) is not None:
            return None
        if task.state == "up_for_reschedule":
            return "wait"
        return "close" if task.key.task_id == CLOSE.name else "attempt"

    def heal(self) -> None:
        """Let all that is left run, and compare what is published with that of a run without faults."""
        self.world.ledger.connection.watch = None
        heal(self.world)


def _name_of(task: FakeTask, runs: int) -> str:
    index = "" if task.key.map_index < 0 else f"[{task.key.map_index}]"
    return f"{task.key.task_id}{index}#{runs}"


def replay(scope: Scope, choices: Sequence[Choice], *, heals: bool = True) -> Play:
    """Carry out a schedule. Raises Broken."""
    play = Play(scope, Traffic())
    for choice in choices:
        play.choose(choice)
    if heals:
        play.heal()
    return play
