"""Draws schedules of events: what comes, how often, and which faults strike processes.

Invariant: a seed gives the same schedule each time. With the usual mix its meaning does not change; a drawn mix is each
seed's own: some verbs and faults never come in it, others come all the time (swarm testing: Groce et al., ISSTA 2012).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Final, TypeVar

from tests.simulator.events import CLOSE_FIRST, HOWS, MOST_LOST, OLD, Event, Verb
from tests.simulator.process import NO_FAULT, FaultKind, ProcessFault

_T = TypeVar("_T")

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

_AFTER_A_FILE: Final = (
    (),
    (Verb.STEP,),
    (Verb.CLEAR, Verb.STEP, Verb.STEP),
    (Verb.CLEAR_RUN, Verb.STEP, Verb.FILE, Verb.STEP),
    (Verb.LOSE, Verb.STEP, Verb.STEP),
    (Verb.RECREATE, Verb.STEP),
)
"""What is seen of a file that has changed, and by whom."""

_CORRECTIONS: Final = (Verb.CHANGE, Verb.CLEAR_RUN)

_LOST: Final = (1, 1, 2, 2, 3, 4, 5, 6, 8, MOST_LOST)

_LENGTH: Final = (12, 25)
_LENGTHS: Final = (_LENGTH, _LENGTH, (6, 12), (25, 45))
_FACTORS: Final = (0, 0.25, 1, 1, 4)


@dataclass(frozen=True, slots=True)
class Habits:
    """How often something follows, or comes with, something else."""

    closes: float = 0.5
    """Of the processes that are suspended at once on purpose, steps are those of closing tasks."""
    again: float = 0.3
    """A resumed process is suspended again."""
    pauses: float = 0.35
    """A suspension is at a read of the store."""
    waits: float = 0.4
    """Some time goes by after a clock was set wrong."""
    comes: float = 0.7
    """A deleted or queued DagRun comes again or starts."""
    late: float = 0.15
    """A commit of a chore or a command comes true late."""
    rescales: float = 0.3
    """A further run begins after a change of the DAG file."""
    saves: float = 0.6
    """A person makes a savepoint before a restore."""
    corrects: float = 0.8
    """Results are recomputed after a savepoint, so that a restore returns to a different past."""
    goes_back: float = 0.5
    """A person restores a snapshot in a schedule with further runs; some also make a savepoint, or a fork."""
    mended: float = 0.7
    """The rows of a bad source are repaired before a person reacts."""
    old: float = 0.12
    """A step's worker still has the code of before the last edit."""
    broken: float = 0.15
    """A function raises after an edit; most often another one mends it."""
    edited: float = 0.5
    """A person clears something after an edit."""
    declared: float = 0.2
    """A person declares versions equal after an edit."""
    beats: float = 0.5
    """A suspended process takes a heartbeat before it is resumed."""
    overlaps: float = 0.4
    """In a schedule, a process is suspended while others run and its inputs are damaged."""


class Drawing(Random):
    """The draws of a seed, and its mix: how often each verb, fault and habit comes."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        self.verbs: Mapping[Verb, float] = _WEIGHTS
        self.faults: Mapping[FaultKind, float] = _FAULTS
        self.habits = Habits()
        self.length = _LENGTH

    def draw_mix(self) -> None:
        """Draw the mix of this seed: each weight is nothing, small, as usual, or large; steps and no fault remain."""
        self.verbs = self._drawn(_WEIGHTS, Verb.STEP)
        self.faults = self._drawn(_FAULTS, FaultKind.NONE)
        self.habits = Habits(*(self.random() for _ in fields(Habits)))
        self.length = self.choice(_LENGTHS)

    def _drawn(self, usual: Mapping[_T, float], kept: _T) -> dict[_T, float]:
        drawn = {each: weight * self.choice(_FACTORS) for each, weight in usual.items()}
        return {**drawn, kept: usual[kept] * self.choice(_FACTORS[1:])}

    def weighted(self, weights: Mapping[_T, float], k: int = 1) -> list[_T]:
        """Draw by weights."""
        return self.choices(list(weights), list(weights.values()), k=k)

    def happens(self, habit: str) -> bool:
        """Draw whether something happens."""
        happens: float = getattr(self.habits, habit)
        return self.random() < happens


def random_events(draw: Drawing) -> tuple[Event, ...]:
    """Return a schedule of 12 to 25 events; of fewer or more where the mix is drawn."""
    events = [_event(draw, verb) for verb in draw.weighted(draw.verbs, draw.randint(*draw.length))]
    if draw.happens("overlaps"):
        overlap, at = _overlap(draw), draw.randrange(len(events) // 2)
        events[at : at + len(overlap)] = overlap
    return tuple(events)


def with_runs(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two further runs, each after some steps; perhaps of more subtasks."""
    found = list(events)
    for _ in range(draw.choice([1, 2, 2])):
        steps = [Event(Verb.STEP, draw.randrange(100)) for _ in range(draw.randrange(8))]
        deploy = [Event(Verb.DEPLOY, draw.randrange(100))] if draw.happens("rescales") else []
        at = draw.randrange(len(found) // 2 + 1)
        found[at:at] = [*steps, *deploy, Event(Verb.RUN)]
    if draw.happens("goes_back"):
        back, at = _going_back(draw), draw.randrange(len(found) // 2, len(found) + 1)
        found[at:at] = back
    return tuple(found)


def with_further_days(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with further DagRuns, which resolve their sources at once with earlier ones."""
    found = list(events)
    for _ in range(draw.choice([1, 2, 2, 3])):
        steps = [Event(Verb.STEP, draw.randrange(100), fault=random_fault(draw)) for _ in range(draw.randrange(6))]
        files = [_event(draw, Verb.FILE) for _ in range(draw.randrange(3))]
        deploy = [Event(Verb.DEPLOY, draw.randrange(100))] if draw.happens("rescales") else []
        at = draw.randrange(len(found) * 2 // 3 + 1)
        found[at:at] = [*steps, *files, *deploy, Event(draw.choice([Verb.RUN, Verb.RUN, Verb.QUEUE])), *files[:1]]
    return tuple(found)


def with_bad_rows(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with a source that turns bad once or twice; most often it is repaired some steps later."""
    found = list(events)
    for _ in range(draw.choice([1, 1, 2])):
        number, steps = draw.randrange(100), range(draw.randrange(12))
        spoilt = [Event(Verb.SPOIL, number), *(_event(draw, Verb.STEP) for _ in steps)]
        at = draw.randrange(len(found) // 2 + 1)
        found[at:at] = [*spoilt, *([Event(Verb.CHANGE, number)] if draw.happens("mended") else [])]
    return tuple(found)


def with_edits(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with edits of functions, at any time; a person may clear something then."""
    found = [replace(event, how=OLD) if event.verb is Verb.STEP and draw.happens("old") else event for event in events]
    for _ in range(draw.choice([1, 1, 2, 2, 3, 4])):
        edit = [Event(Verb.BREAK if draw.happens("broken") else Verb.EDIT, draw.randrange(100))]
        if draw.happens("edited"):
            edit += [Event(Verb.EDIT, edit[0].number)] if draw.happens("edited") else []
            edit += [Event(Verb.CLEAR, draw.randrange(100)), *(_event(draw, Verb.STEP) for _ in range(2))]
        edit += [_event(draw, Verb.SAME)] if draw.happens("declared") else []
        at = draw.randrange(len(found) + 1)
        found[at:at] = edit
    return tuple(found)


def with_meetings(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with processes that are suspended at once, and resumed in any order."""
    found = list(events)
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(len(found) // 3, len(found) + 1)
        found[at:at] = _meeting(draw)
    return tuple(found)


def _meeting(draw: Drawing) -> list[Event]:
    """Return steps, two to four actors that are suspended, mishaps and steps, and the resumption of all."""
    steps = [Event(Verb.STEP, draw.randrange(100)) for _ in range(draw.randrange(8))]
    actors = [_actor(draw) for _ in range(draw.choice([2, 2, 3, 4]))]
    between = [_event(draw, draw.choice([*_MISHAPS, Verb.STEP])) for _ in range(draw.randrange(4))]
    resumed = []
    for _ in range(len(actors) + draw.choice([0, 0, 1, 2])):
        fault = _suspension(draw) if draw.happens("again") else NO_FAULT
        resumed.append(Event(Verb.RESUME, draw.randrange(100), fault=fault))
    mixed = [*actors[1:], *between]
    draw.shuffle(mixed)
    return [*steps, actors[0], *mixed, *resumed]


def _actor(draw: Drawing) -> Event:
    (verb,) = draw.weighted(_ACTORS)
    how = CLOSE_FIRST if verb is Verb.STEP and draw.happens("closes") else ""
    event = _event(draw, verb)
    return replace(event, how=how or event.how, fault=_suspension(draw))


def _suspension(draw: Drawing) -> ProcessFault:
    """Return a suspension, at any step or any read of the store; the first ones are more frequent."""
    kind = FaultKind.PAUSE if draw.happens("pauses") else FaultKind.SUSPEND
    return ProcessFault(kind, draw.randint(1, draw.choice([8, _MOST_STEPS, 2 * _MOST_STEPS])))


def with_clocks(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with clocks that are wrong, from the beginning or from some event on."""
    found = list(events)
    for _ in range(draw.randint(1, 4)):
        at = draw.choice([0, draw.randrange(len(found) + 1)])
        found.insert(at, _event(draw, Verb.CLOCK))
        if draw.happens("waits"):
            found.insert(draw.randrange(at, len(found)) + 1, Event(Verb.WAIT, draw.choice([1, 15, 61, 150, 200])))
    return tuple(found)


def with_dag_runs(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with DagRuns that are queued, deleted, and created again."""
    found = list(events)
    for _ in range(draw.choice([1, 2, 2, 3])):
        at, number = draw.randrange(len(found) + 1), draw.randrange(100)
        added = [Event(draw.choice([Verb.QUEUE, Verb.RUN, Verb.DELETE, Verb.DELETE, Verb.RECREATE]), number)]
        found[at:at] = added
        if draw.happens("comes"):
            later = draw.randrange(at, len(found)) + 1
            found.insert(later, _event(draw, draw.choice([Verb.AGAIN, Verb.AGAIN, Verb.START])))
    return tuple(found)


def with_rebuilds(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two rebuilds of the ledger."""
    found = list(events)
    for _ in range(draw.choice([1, 1, 2])):
        found.insert(draw.randrange(len(found) // 3, len(found) + 1), _event(draw, Verb.REBUILD))
    return tuple(found)


def with_losses(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two losses of commits."""
    found = list(events)
    for _ in range(draw.choice([1, 1, 2])):
        lost = replace(_event(draw, Verb.LOSE_COMMITS), number=draw.choice(_LOST) - 1)
        found.insert(draw.randrange(len(found) // 4, len(found) + 1), lost)
    return tuple(found)


def with_forgotten_tries(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with one or two losses of what Airflow had last committed."""
    found = list(events)
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(len(found) // 4, len(found) + 1)
        found.insert(at, Event(Verb.FORGET, draw.choice([1, 1, 2, 2, 3, 4, 6])))
    return tuple(found)


def with_files(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with files of sources that come, go and are corrected, also between two tries of a source."""
    found = list(events)
    for _ in range(draw.choice([1, 2, 3, 4])):
        before = [Event(Verb.STEP, draw.randrange(100), fault=random_fault(draw)) for _ in range(draw.randrange(4))]
        after = [_event(draw, verb) for verb in draw.choice(_AFTER_A_FILE)]
        at = draw.randrange(len(found) * 2 // 3 + 1)
        found[at:at] = [*before, _event(draw, Verb.FILE), *after]
    return tuple(found)


def with_seals(draw: Random, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with days that a person seals, often once their tasks have run, and clears later."""
    found = list(events)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at, number = draw.randrange(len(found) // 4, len(found) + 1), draw.randrange(100)
        found.insert(at, Event(Verb.SEAL, number))
        if draw.random() < 0.5:
            found.insert(draw.randrange(at, len(found)) + 1, Event(Verb.CLEAR_RUN, number))
    return tuple(found)


def with_beats(draw: Drawing, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the schedule with heartbeats of processes that it resumes."""
    found: list[Event] = []
    for event in events:
        if event.verb is Verb.RESUME and draw.happens("beats"):
            found.append(Event(Verb.BEAT, event.number))
        found.append(event)
    return tuple(found)


def _going_back(draw: Drawing) -> list[Event]:
    """Return steps that complete checkpoints, then one or two restores of them, each with further steps."""
    events = [Event(Verb.STEP, draw.randrange(100)) for _ in range(draw.randrange(4, 16))]
    for _ in range(draw.choice([1, 1, 2])):
        if draw.happens("saves"):
            events.append(_event(draw, Verb.SAVEPOINT))
            events += [_event(draw, verb) for verb in _CORRECTIONS if draw.happens("corrects")]
            events += [Event(Verb.STEP, draw.randrange(100)) for _ in range(draw.randrange(2, 10))]
        events.append(_event(draw, draw.choices([Verb.GO_BACK, Verb.FORK], [4, 1])[0]))
        events += [_event(draw, Verb.STEP) for _ in range(draw.randrange(5))]
    return events


def _overlap(draw: Drawing) -> list[Event]:
    """Return steps with a suspended one, a mishap, steps of other tasks, and the resumption."""
    steps = [Event(Verb.STEP, draw.randrange(100)) for _ in range(draw.randint(3, 7))]
    steps[draw.randrange(len(steps) - 1)] = Event(
        Verb.STEP, draw.randrange(100), fault=ProcessFault(FaultKind.SUSPEND, draw.randint(3, _MOST_STEPS))
    )
    others = [Event(Verb.STEP, draw.randrange(100)) for _ in range(draw.randint(1, 3))]
    return [*steps, _event(draw, draw.choice(_MISHAPS)), *others, Event(Verb.RESUME)]


def _event(draw: Drawing, verb: Verb) -> Event:
    how = draw.choice(HOWS.get(verb, ("",)))
    fault = random_fault(draw) if verb in _MET else NO_FAULT
    if verb in _MET[2:] and draw.happens("late"):
        fault = ProcessFault(FaultKind.LATE, draw.randint(1, _MOST_STEPS))
    return Event(verb, draw.randrange(100), how, fault)


def random_fault(draw: Drawing) -> ProcessFault:
    """Return a random fault of one process; most often none."""
    (kind,) = draw.weighted(draw.faults)
    return ProcessFault(kind, draw.randint(1, _MOST_STEPS)) if kind is not FaultKind.NONE else NO_FAULT
