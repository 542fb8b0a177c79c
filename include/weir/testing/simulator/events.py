"""The events of a simulation, as data that can be printed, read back, and left out.

Invariant: an event is self-contained; in another world it does the nearest thing that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final

from weir.testing.simulator.process import NO_FAULT, FaultKind, ProcessFault


class Verb(Enum):
    """The kind of an event; its `number` selects the target among those that there are, modulo their count."""

    STEP = "step"
    """A task instance that may run is run by a new process; its worker may still have the `old` code of before the last
    edit. One that is to `close` runs a closing task, if one may run."""
    RESUME = "resume"
    """A suspended process is resumed."""
    BEAT = "beat"
    """A suspended process takes a heartbeat, in its second thread."""
    LOSE = "lose"
    """Airflow gets no heartbeat of a suspended process, and fails the try."""
    WAIT = "wait"
    """Minutes go by."""
    RUN = "run"
    """The DagRun of the next day starts."""
    DEPLOY = "deploy"
    """The DAG file changes: a region has one subtask more in runs that begin from now on."""
    RECREATE = "recreate"
    """A DagRun is deleted, and created again under its name."""
    CLEAR = "clear"
    """A person clears one task instance."""
    CLEAR_DOWN = "clear-with-downstream"
    CLEAR_RUN = "clear-run"
    SUCCEED = "mark-success"
    """A person marks a task instance a success."""
    FAIL = "mark-failed"
    SKIP = "mark-skipped"
    QUEUE = "queue"
    """The DagRun of the next day is queued."""
    START = "start"
    """A queued DagRun starts."""
    DELETE = "delete-run"
    """A DagRun is deleted."""
    AGAIN = "come-again"
    """A deleted DagRun is created again, under the `same` name or an`other` one."""
    UPKEEP = "upkeep"
    """Upkeep delivers pending clears, or does another of its chores."""
    TIDY = "tidy"
    """A person lists savepoints; those of killed processes are completed or abandoned."""
    REBUILD = "rebuild"
    """A person rebuilds the ledger of the dataflow from the store, though it is not lost."""
    SAME = "code-same"
    """A person declares two versions of code equal."""
    LOSE_COMMITS = "lose-commits"
    """The ledger loses its last commits: a replica without them is `promoted`, or a backup is `restored`."""
    FORGET = "airflow-forgets"
    """Airflow's database goes back by some tries, not beyond what a person did; processes run on."""
    CLOCK = "clock"
    """The clock of a machine is set, `right` or wrong; processes run on there."""
    DECIDE = "decide"
    """A commit whose answer was lost comes true; else it does before the next writing transaction."""
    AIRFLOW = "airflow"
    """Airflow's API is `up`, is `away`, loses its `answers`, or is `slow`."""
    DELIVER = "deliver"
    """The requests that a slow API has accepted are executed."""
    STORE = "store"
    """The store is `up`, is `away`, `full`, or `unmounted`."""
    DAMAGE = "damage"
    """A result is damaged: its `folder` is gone, its `manifest`, a `bit` is turned, or it is `cut`."""
    RESTORE = "restore"
    """The damage of a file is undone."""
    CHANGE = "change"
    """A source reads other rows from now on."""
    EDIT = "edit"
    """The function of a stage is edited, and deployed."""
    BREAK = "break"
    """The function of a stage is edited, and raises until it is edited again."""
    SPOIL = "spoil"
    """A source reads bad rows from now on, until its rows change again."""
    COLLECT = "collect"
    """Upkeep releases results that are not needed, or those that policies keep where space is needed; it may sweep the
    store, too; or it only plans that (dry)."""
    READ = "read"
    """A notebook claims a result to read it; the claim is not renewed."""
    LEAVE = "leave"
    """A notebook is closed."""
    SAVEPOINT = "savepoint"
    """A person makes a savepoint of a checkpoint."""
    GO_BACK = "go-back"
    """A person restores the dataflow from a checkpoint or a savepoint."""
    FORK = "fork"
    """A person begins a fork from one; it runs when all has recovered."""


OTHER: Final = "other"
CLOSE_FIRST: Final = "close"
"""A step of a closing task, if one may run."""

HOWS: Final = {
    Verb.AIRFLOW: ("up", "away", "answers", "slow"),
    Verb.STORE: ("up", "away", "full", "unmounted"),
    Verb.DAMAGE: ("folder", "manifest", "bit", "cut"),
    Verb.COLLECT: ("release", "release", "pressed", "sweep", "sweep", "dry"),
    Verb.UPKEEP: ("deliver", "deliver", "records", "versions", "checkpoints", "scrub", "minutes", "hourly", "daily"),
    Verb.AGAIN: ("same", OTHER),
    Verb.CLOCK: ("right", "fast", "slow", "minutes-fast", "minutes-slow", *("hours-fast", "hours-slow") * 3),
    Verb.LOSE_COMMITS: ("promoted", "restored"),
}

_WEIGHTS: Final = {
    Verb.STEP: 50,
    Verb.RESUME: 7,
    Verb.LOSE: 3,
    Verb.WAIT: 2,
    Verb.RUN: 1,
    Verb.RECREATE: 1,
    Verb.CLEAR: 4,
    Verb.CLEAR_DOWN: 2,
    Verb.CLEAR_RUN: 1,
    Verb.SUCCEED: 2,
    Verb.FAIL: 1,
    Verb.SKIP: 1,
    Verb.UPKEEP: 1,
    Verb.AIRFLOW: 4,
    Verb.DELIVER: 2,
    Verb.STORE: 2,
    Verb.DAMAGE: 10,
    Verb.RESTORE: 2,
    Verb.CHANGE: 3,
    Verb.COLLECT: 4,
    Verb.READ: 3,
    Verb.LEAVE: 1,
}

_FAULTS: Final = {
    FaultKind.NONE: 54,
    FaultKind.KILL: 13,
    FaultKind.SUSPEND: 10,
    FaultKind.PAUSE: 5,
    FaultKind.REFUSE: 9,
    FaultKind.FAIL: 4,
    FaultKind.LATE: 5,
    FaultKind.BACK: 1,
}

_MOST_STEPS: Final = 32
"""About as many steps as an attempt has at which a fault can be injected."""

_MISHAPS: Final = (Verb.DAMAGE, Verb.DAMAGE, Verb.CLEAR, Verb.CHANGE, Verb.COLLECT, Verb.WAIT)

_MET: Final = (
    *(Verb.STEP, Verb.RESUME, Verb.COLLECT, Verb.UPKEEP, Verb.SAVEPOINT, Verb.GO_BACK, Verb.FORK),
    *(Verb.TIDY, Verb.SAME, Verb.REBUILD),
)
"""The events that run a process, into which a fault may be injected."""

_ACTORS: Final = {Verb.UPKEEP: 6, Verb.COLLECT: 4, Verb.STEP: 10, Verb.RESUME: 2, Verb.SAVEPOINT: 2, Verb.GO_BACK: 2}
"""The processes that are suspended at once on purpose."""

_CLOSES: Final = 0.5
"""The share of steps among them that are to be those of closing tasks."""

_AGAIN: Final = 0.3
"""The share of resumed processes that are suspended again."""

_PAUSES: Final = 0.35
"""The share of suspensions at a read of the store."""

_WAITS: Final = 0.4
"""The share of wrong clocks after which some time goes by."""

_COMES: Final = 0.7
"""The share of deleted or queued DagRuns after which one comes again or starts."""

_LATE: Final = 0.15
"""The share of chores and commands of which a commit comes true late."""

_RESCALES: Final = 0.3
"""The share of further runs that begin after a change of the DAG file."""

_SAVES: Final = 0.6
"""The share of these in which a person makes a savepoint before."""

_CORRECTIONS: Final = (Verb.CHANGE, Verb.CLEAR_RUN)
_CORRECTS: Final = 0.8
"""The share of savepoints after which results are recomputed, so that a restore returns to a different past."""

_GOES_BACK: Final = 0.5
"""The share of these schedules in which a person restores a snapshot; some also make a savepoint, or a fork."""

_MENDED: Final = 0.7
"""The share of bad sources whose rows are repaired before a person reacts."""

OLD: Final = "old"
_OLD: Final = 0.12
"""The share of steps whose worker still has the code of before the last edit."""

_BROKEN: Final = 0.15
"""The share of edits after which the function raises; most often another one mends it."""

_EDITED: Final = 0.5
"""The share of edits after which a person clears something."""

_DECLARED: Final = 0.2
"""The share of edits after which a person declares versions equal."""

MOST_LOST: Final = 12
"""The commits that a ledger loses at most."""

FIRST_COMMITS: Final = 2
"""Commits that are never lost: of a dataflow that the ledger does not know, nobody finds out."""

_LOST: Final = (1, 1, 2, 2, 3, 4, 5, 6, 8, MOST_LOST)

_BEATS: Final = 0.5
"""The share of suspended processes that take a heartbeat before they are resumed."""

_OVERLAPS: Final = 0.4
"""The share of schedules in which a process is suspended while others run and its inputs are damaged."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens. As text: `step 3 kill@17`, `damage 5 bit`, `upkeep`."""

    verb: Verb
    number: int = 0
    how: str = ""
    fault: ProcessFault = NO_FAULT

    def __str__(self) -> str:
        fault = f"{self.fault.kind.value}@{self.fault.at}" if self.fault.kind is not FaultKind.NONE else ""
        return " ".join(text for text in (self.verb.value, str(self.number), self.how, fault) if text)

    @classmethod
    def from_text(cls, text: str) -> Event:
        """Read an event as it is printed. Raises ValueError."""
        verb, _, rest = text.strip().partition(" ")
        number, *more = rest.split() or ["0"]
        injected = next((each.split("@") for each in more if "@" in each), None)
        fault = ProcessFault(FaultKind(injected[0]), int(injected[1])) if injected else NO_FAULT
        return cls(Verb(verb), int(number), next((each for each in more if "@" not in each), ""), fault)


def random_events(random: Random) -> tuple[Event, ...]:
    """Return a schedule of 12 to 25 events."""
    verbs, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    events = [_event(random, verb) for verb in random.choices(verbs, weights, k=random.randint(12, 25))]
    if random.random() < _OVERLAPS:
        overlap, at = _overlap(random), random.randrange(len(events) // 2)
        events[at : at + len(overlap)] = overlap
    return tuple(events)


def with_runs(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two further runs, each after some steps; perhaps of more subtasks."""
    found = list(events)
    for _ in range(random.choice([1, 2, 2])):
        steps = [Event(Verb.STEP, random.randrange(100)) for _ in range(random.randrange(8))]
        deploy = [Event(Verb.DEPLOY, random.randrange(100))] if random.random() < _RESCALES else []
        at = random.randrange(len(found) // 2 + 1)
        found[at:at] = [*steps, *deploy, Event(Verb.RUN)]
    if random.random() < _GOES_BACK:
        back, at = _going_back(random), random.randrange(len(found) // 2, len(found) + 1)
        found[at:at] = back
    return tuple(found)


def with_bad_rows(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with a source that turns bad once or twice; most often it is repaired some steps later."""
    found = list(events)
    for _ in range(random.choice([1, 1, 2])):
        number, steps = random.randrange(100), range(random.randrange(12))
        spoilt = [Event(Verb.SPOIL, number), *(_event(random, Verb.STEP) for _ in steps)]
        at = random.randrange(len(found) // 2 + 1)
        found[at:at] = [*spoilt, *([Event(Verb.CHANGE, number)] if random.random() < _MENDED else [])]
    return tuple(found)


def with_edits(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with edits of functions, at any time; a person may clear something then."""
    found = [
        replace(event, how=OLD) if event.verb is Verb.STEP and random.random() < _OLD else event for event in events
    ]
    for _ in range(random.choice([1, 1, 2, 2, 3, 4])):
        edit = [Event(Verb.BREAK if random.random() < _BROKEN else Verb.EDIT, random.randrange(100))]
        if random.random() < _EDITED:
            edit += [Event(Verb.EDIT, edit[0].number)] if random.random() < _EDITED else []
            edit += [Event(Verb.CLEAR, random.randrange(100)), *(_event(random, Verb.STEP) for _ in range(2))]
        edit += [_event(random, Verb.SAME)] if random.random() < _DECLARED else []
        at = random.randrange(len(found) + 1)
        found[at:at] = edit
    return tuple(found)


def with_meetings(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with processes that are suspended at once, and resumed in any order."""
    found = list(events)
    for _ in range(random.choice([1, 1, 2])):
        at = random.randrange(len(found) // 3, len(found) + 1)
        found[at:at] = _meeting(random)
    return tuple(found)


def _meeting(random: Random) -> list[Event]:
    """Return steps, two to four actors that are suspended, mishaps and steps, and the resumption of all."""
    steps = [Event(Verb.STEP, random.randrange(100)) for _ in range(random.randrange(8))]
    actors = [_actor(random) for _ in range(random.choice([2, 2, 3, 4]))]
    between = [_event(random, random.choice([*_MISHAPS, Verb.STEP])) for _ in range(random.randrange(4))]
    resumed = []
    for _ in range(len(actors) + random.choice([0, 0, 1, 2])):
        fault = _suspension(random) if random.random() < _AGAIN else NO_FAULT
        resumed.append(Event(Verb.RESUME, random.randrange(100), fault=fault))
    mixed = [*actors[1:], *between]
    random.shuffle(mixed)
    return [*steps, actors[0], *mixed, *resumed]


def _actor(random: Random) -> Event:
    (verb,) = random.choices(list(_ACTORS), list(_ACTORS.values()))
    how = CLOSE_FIRST if verb is Verb.STEP and random.random() < _CLOSES else ""
    event = _event(random, verb)
    return replace(event, how=how or event.how, fault=_suspension(random))


def _suspension(random: Random) -> ProcessFault:
    """Return a suspension, at any step or any read of the store; the first ones are more frequent."""
    kind = FaultKind.PAUSE if random.random() < _PAUSES else FaultKind.SUSPEND
    return ProcessFault(kind, random.randint(1, random.choice([8, _MOST_STEPS, 2 * _MOST_STEPS])))


def with_clocks(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with clocks that are wrong, from the beginning or from some event on."""
    found = list(events)
    for _ in range(random.randint(1, 4)):
        at = random.choice([0, random.randrange(len(found) + 1)])
        found.insert(at, _event(random, Verb.CLOCK))
        if random.random() < _WAITS:
            found.insert(random.randrange(at, len(found)) + 1, Event(Verb.WAIT, random.choice([1, 15, 61, 150, 200])))
    return tuple(found)


def with_dag_runs(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with DagRuns that are queued, deleted, and created again."""
    found = list(events)
    for _ in range(random.choice([1, 2, 2, 3])):
        at, number = random.randrange(len(found) + 1), random.randrange(100)
        added = [Event(random.choice([Verb.QUEUE, Verb.RUN, Verb.DELETE, Verb.DELETE, Verb.RECREATE]), number)]
        found[at:at] = added
        if random.random() < _COMES:
            later = random.randrange(at, len(found)) + 1
            found.insert(later, _event(random, random.choice([Verb.AGAIN, Verb.AGAIN, Verb.START])))
    return tuple(found)


def with_rebuilds(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two rebuilds of the ledger."""
    found = list(events)
    for _ in range(random.choice([1, 1, 2])):
        found.insert(random.randrange(len(found) // 3, len(found) + 1), _event(random, Verb.REBUILD))
    return tuple(found)


def with_losses(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two losses of commits."""
    found = list(events)
    for _ in range(random.choice([1, 1, 2])):
        lost = replace(_event(random, Verb.LOSE_COMMITS), number=random.choice(_LOST) - 1)
        found.insert(random.randrange(len(found) // 4, len(found) + 1), lost)
    return tuple(found)


def with_forgotten_tries(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two losses of what Airflow had last committed."""
    found = list(events)
    for _ in range(random.choice([1, 1, 2])):
        at = random.randrange(len(found) // 4, len(found) + 1)
        found.insert(at, Event(Verb.FORGET, random.choice([1, 1, 2, 2, 3, 4, 6])))
    return tuple(found)


def with_beats(random: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with heartbeats of processes that it resumes."""
    found: list[Event] = []
    for event in events:
        if event.verb is Verb.RESUME and random.random() < _BEATS:
            found.append(Event(Verb.BEAT, event.number))
        found.append(event)
    return tuple(found)


def _going_back(random: Random) -> list[Event]:
    """Return steps that complete checkpoints, then one or two restores of them, each with further steps."""
    events = [Event(Verb.STEP, random.randrange(100)) for _ in range(random.randrange(4, 16))]
    for _ in range(random.choice([1, 1, 2])):
        if random.random() < _SAVES:
            events.append(_event(random, Verb.SAVEPOINT))
            events += [_event(random, verb) for verb in _CORRECTIONS if random.random() < _CORRECTS]
            events += [Event(Verb.STEP, random.randrange(100)) for _ in range(random.randrange(2, 10))]
        events.append(_event(random, random.choices([Verb.GO_BACK, Verb.FORK], [4, 1])[0]))
        events += [_event(random, Verb.STEP) for _ in range(random.randrange(5))]
    return events


def _overlap(random: Random) -> list[Event]:
    """Return steps with a suspended one, a mishap, steps of other tasks, and the resumption."""
    steps = [Event(Verb.STEP, random.randrange(100)) for _ in range(random.randint(3, 7))]
    steps[random.randrange(len(steps) - 1)] = Event(
        Verb.STEP, random.randrange(100), fault=ProcessFault(FaultKind.SUSPEND, random.randint(3, _MOST_STEPS))
    )
    others = [Event(Verb.STEP, random.randrange(100)) for _ in range(random.randint(1, 3))]
    return [*steps, _event(random, random.choice(_MISHAPS)), *others, Event(Verb.RESUME)]


def _event(random: Random, verb: Verb) -> Event:
    how = random.choice(HOWS.get(verb, ("",)))
    fault = random_fault(random) if verb in _MET else NO_FAULT
    if verb in _MET[2:] and random.random() < _LATE:
        fault = ProcessFault(FaultKind.LATE, random.randint(1, _MOST_STEPS))
    return Event(verb, random.randrange(100), how, fault)


def random_fault(random: Random) -> ProcessFault:
    """Return a random fault of one process; most often none."""
    (kind,) = random.choices(list(_FAULTS), list(_FAULTS.values()))
    return ProcessFault(kind, random.randint(1, _MOST_STEPS)) if kind is not FaultKind.NONE else NO_FAULT


def events_from_text(text: str) -> tuple[Event, ...]:
    """Read events, one a line; comments and the lines of a scene are passed over. Raises ValueError."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(Event.from_text(line) for line in lines if line and not line.startswith(("dataflow ", "stage ")))


def events_to_text(events: Iterable[Event]) -> str:
    """Return the text of events, as `events_from_text` reads it."""
    return "\n".join(str(event) for event in events)
