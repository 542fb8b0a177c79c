"""Short schedules of two processes: one is struck at any of its steps, another one does something, the first goes on.

The simulator's own schedules are long, and have many faults at once. In these nothing else happens, and the dataflow is
small, so that all pairs of a step and an event are met soon.
"""

from dataclasses import replace
from random import Random

from tests.simulator.dataflows import Scene, scene_from_text
from tests.simulator.events import Event, Verb
from tests.simulator.process import FaultKind, ProcessFault

STEPS = (45, 45, 90)
"""An attempt has about 32 steps; the close of a run has more, and what follows a commit of state."""

BEFORE = ((), (), (), (Verb.CLEAR,), (Verb.CHANGE, Verb.CLEAR), (Verb.DAMAGE, Verb.CLEAR))
MEANWHILE = (
    (Verb.CLEAR, Verb.STEP, Verb.STEP),
    (Verb.CHANGE, Verb.CLEAR, Verb.STEP, Verb.STEP),
    (Verb.CHANGE, Verb.CLEAR, Verb.STEP, Verb.COLLECT),
    (Verb.LOSE, Verb.STEP),
    (Verb.LOSE, Verb.STEP, Verb.STEP, Verb.COLLECT),
    (Verb.DAMAGE,),
    (Verb.DAMAGE, Verb.STEP, Verb.STEP),
    (Verb.COLLECT,),
    (Verb.WAIT, Verb.COLLECT),
    (Verb.EDIT, Verb.CLEAR, Verb.STEP),
    (Verb.RECREATE, Verb.STEP, Verb.STEP),
    (Verb.STEP, Verb.STEP, Verb.STEP),
)
OF_STATE = (
    (Verb.RUN, Verb.STEP, Verb.STEP, Verb.STEP, Verb.STEP),
    (Verb.COLLECT, Verb.COLLECT),
    (Verb.WAIT, Verb.COLLECT, Verb.COLLECT),
    (Verb.SAVEPOINT,),
    (Verb.GO_BACK,),
    (Verb.GO_BACK, Verb.STEP, Verb.COLLECT),
)

HOWS = {
    Verb.DAMAGE: ("folder", "manifest", "bit", "cut"),
    Verb.COLLECT: ("release", "pressed", "pressed", "sweep"),
}
WAITS = (1, 30, 70, 200)
"""Minutes: a lease lasts for an hour."""


def race(seed: int, stateful: float = 0.25) -> tuple[Scene, tuple[Event, ...]]:
    """Return the scene and the schedule of a seed."""
    random = Random(f"race {seed}")
    scene = _scene(random, keeps_state=random.random() < stateful)
    events = [_event(random, Verb.STEP) for _ in range(random.randrange(7))]
    for _ in range(random.choice([0, 1, 1, 2]) if scene.keeps_state else 0):
        events += [Event(Verb.RUN), *(_event(random, Verb.STEP) for _ in range(random.randrange(8)))]
    events += [_event(random, verb) for verb in random.choice(BEFORE)]
    events.append(_struck(random, keeps_state=scene.keeps_state))
    others = MEANWHILE + (2 * OF_STATE if scene.keeps_state else ())
    for _ in range(random.choice([1, 1, 2])):
        events += [_event(random, verb) for verb in random.choice(others)]
    if random.random() < 0.3:
        events.append(Event(Verb.BEAT))
    return scene, (*events, Event(Verb.RESUME))


def _scene(random: Random, *, keeps_state: bool) -> Scene:
    """Return a chain of two or three stages."""
    consumers = random.choice(["if_changed", "if_changed", "always"])
    life = f"retained_checkpoints={random.choice([1, 1, 2])}" if keeps_state else f"keep={_keep(random)}"
    first = f"dataflow failover=region consumers={consumers} tries=any largest_plan=1 {life} modules=apart"
    text = [first, f"stage s0 x{random.choice([1, 1, 2])} fine: source"]
    for number in range(1, random.choice([2, 2, 3])):
        kept = f" keeps=keyed/s{number}_h0/2" if keeps_state else ""
        nature, subtasks = random.choice(["fine", "fine", "coarse"]), random.choice([1, 1, 2])
        text.append(f"stage s{number} x{subtasks} {nature}{kept}: blocking s{number - 1} by k")
    return scene_from_text(text)


def _keep(random: Random) -> str:
    return random.choice(["on_consumed", "on_consumed", "end_of_run", "1_run"])


def _struck(random: Random, *, keeps_state: bool) -> Event:
    verbs = [Verb.STEP] * 4 + [Verb.COLLECT] + ([Verb.SAVEPOINT, Verb.GO_BACK, Verb.COLLECT] if keeps_state else [])
    kind = random.choice([FaultKind.SUSPEND] * 3 + [FaultKind.KILL] * 2 + [FaultKind.REFUSE])
    return replace(
        _event(random, random.choice(verbs)), fault=ProcessFault(kind, random.randint(1, random.choice(STEPS)))
    )


def _event(random: Random, verb: Verb) -> Event:
    number = random.choice(WAITS) if verb is Verb.WAIT else random.randrange(100)
    return Event(verb, number, random.choice(HOWS.get(verb, ("",))))
