"""Random dataflows, small enough to be run thousands of times, and scenes with quality gates and their suites.

Invariant: a dataflow is valid and publishes something; it can be printed, and read back as it was. A suite has one
expectation, which only bad rows violate; its name holds the inputs that it suspects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from tests.simulator.engine import EXPECTED, Nature
from tests.simulator.listings import FILES_OF, LISTED, SINCE
from tests.simulator.receiver import simulated_receiver

from weir.code.generation_rules import RepairCode
from weir.dataflow import (
    Dataflow,
    Exchange,
    Stage,
    State,
    blocking,
    cached,
    expectations,
    keyed_state,
    list_state,
    pipelined,
    previous,
    sink,
    source,
)
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.dataflow.quality import Gate, Policy
from weir.dataflow.stage import COPY, READY_MADE, DeliveryGuarantee, Reuse, StageKind
from weir.dataflow.state import Incremental, Replay, StateKind
from weir.errors import Misconfigured
from weir.quality.rules import input_names
from weir.topology.regions import Topology

NAME: Final = "simulated"
SPLITS: Final = "weir.testing.fakes.engine:splits_by_day"

KEEPS: Final = ("on_consumed", "on_consumed", "end_of_run", "1 run", "2 runs", "1 hour")
"""The retention of results in scenes that test it; in others nothing is collected."""

OF_STATE: Final = "_h"
"""In the names of all states, and of nothing else."""

TTLS: Final = (None, None, "1 day", "2 days")
SCHEMA: Final = "k bigint"

AS_IT_WAS: Final = 0.2
"""The share of scenes in which a person's clears run the code that computed what is there."""


class Modules(Enum):
    """The modules that the functions of the stages are in."""

    APART = "apart"
    """Each stage has its own, so that an edit is other code for one stage."""
    SHARED = "shared"
    """All are in one, so that an edit is other code for all stages."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The subject of a simulation: a dataflow, and the natures of its stages."""

    flow: Dataflow
    natures: dict[str, Nature]
    is_patient: bool
    """True if the restart strategy gives a task any number of tries."""
    largest_plan: float = 1.0
    modules: Modules | None = None
    """None: its tasks have no code, so that none can be edited."""

    @property
    def sources(self) -> list[str]:
        """Return the stages that read sources."""
        return [stage.name for stage in self.flow.stages if stage.kind is StageKind.SOURCE]

    @property
    def listed(self) -> list[str]:
        """Return the sources whose files are listed."""
        return [stage.name for stage in self.flow.stages if stage.resolve == LISTED]

    @property
    def going(self) -> list[str]:
        """Return the sources that go on."""
        return [stage.name for stage in self.flow.stages if stage.goes_on]

    @property
    def keeps_state(self) -> bool:
        """Report whether an epoch depends on the one before."""
        return any(exchange.is_previous for stage in self.flow.stages for exchange in stage.exchanges.values())

    @property
    def collects(self) -> bool:
        """Report whether results that are no longer needed are released and swept."""
        return self.flow.keep is not None

    @property
    def is_gated(self) -> bool:
        """Report whether rows are checked."""
        return any(stage.gates for stage in self.flow.stages)

    @property
    def is_windowed(self) -> bool:
        """Report whether its rows have times, and are aggregated by windows."""
        return Nature.EVENTS in self.natures.values()

    def __str__(self) -> str:
        tries = "any" if self.is_patient else "three"
        recovery = f"failover={self.flow.failover_strategy.value} consumers={self.flow.consumers.value}"
        said = {**_life(self.flow), **self._code()}
        life = "".join(f" {name}={text.replace(' ', '_')}" for name, text in said.items() if text)
        first = f"dataflow {recovery} tries={tries} largest_plan={self.largest_plan:g}{life}"
        stages = [stage for stage in self.flow.stages if stage.kind in (StageKind.SOURCE, StageKind.TRANSFORM)]
        return "\n".join([first, *(_described(stage, self.natures[stage.name]) for stage in stages)])

    def _code(self) -> dict[str, str | None]:
        repair = self.flow.repair_code
        return {
            "modules": self.modules and self.modules.value,
            "repair_code": None if repair is RepairCode.NEWEST else repair.value,
            "receivers": str(len(self.flow.notify)) if self.flow.notify else None,
            "replay": self.flow.replay.value if self.flow.replay is Replay.AUTOMATIC else None,
            "reuse": self.flow.reuse.value if self.flow.reuse is Reuse.EQUAL else None,
            "early": "sinks" if any(map(_is_early, self.flow.stages)) else None,
        }


def random_scene(random: Random) -> Scene:
    """Draw three or four stages, one or two of them sources, of parallelism 1 to 3; leaves are published."""
    while True:
        stages: list[Stage] = []
        for number in range(random.choice([3, 3, 3, 4])):
            stages.append(_random_stage(random, f"s{number}", stages))
        natures = {stage.name: _random_nature(random, stage) for stage in stages}
        failover = random.choices(list(FailoverStrategy), [7, 2, 1])[0]
        consumers = random.choices(list(Consumers), [4, 1])[0]
        try:
            flow = new_flow(stages, failover, consumers, None, None)
        except Misconfigured:
            continue  # two tasks that would wait for each other
        return Scene(flow, natures, random.random() < 0.8, random.choice([1.0, 1.0, 0.5]))


def stateful_scene(random: Random) -> Scene:
    """Two or three stages, of which one or two keep state or read the epoch before."""
    while True:
        stages: list[Stage] = []
        for number in range(random.choice([2, 2, 3])):
            stages.append(_random_stage(random, f"s{number}", stages))
        natures = {stage.name: _random_nature(random, stage) for stage in stages}
        keepers = random.sample(range(len(stages)), k=random.choice([1, 1, 2]))
        for at in keepers:
            stages[at] = _keeping(random, stages[at], stages)
        failover = random.choices(list(FailoverStrategy), [6, 1, 1])[0]
        consumers = random.choices(list(Consumers), [5, 1])[0]
        try:
            flow = new_flow(stages, failover, consumers, None, None)
        except Misconfigured:
            continue  # two tasks that would wait for each other
        scene = Scene(flow, natures, random.random() < 0.8, random.choice([1.0, 1.0, 0.5]))
        if scene.keeps_state:
            return scene


def with_retained(random: Random, scene: Scene) -> Scene:
    """Return the same scene with a number of retained checkpoints; None is the default of 3."""
    retained = random.choice([None, 1, 1, 2, 3, 4, 5])
    return replace(scene, flow=_changed(scene.flow, retained_checkpoints=retained))


def collecting_scene(random: Random, scene: Scene) -> Scene:
    """Return the same scene with policies by which results are released and swept."""
    keep, keep_failed = random.choice(KEEPS), random.choice([None, None, "2 hours"])
    return replace(scene, flow=_changed(scene.flow, keep=keep, keep_failed=keep_failed))


def listed_scene(scene: Scene) -> Scene:
    """Return the same scene, in which sources with splits list files; all sources where none has any."""
    sliced = {stage.name for stage in scene.flow.stages if stage.resolve} or {*scene.sources}
    stages = [_listed(stage) if stage.name in sliced else stage for stage in scene.flow.stages]
    return replace(scene, flow=_changed(scene.flow, stages=stages))


def _listed(stage: Stage) -> Stage:
    return replace(stage, resolve=LISTED, options={FILES_OF: stage.name})


def going_scene(scene: Scene) -> Scene:
    """Return the same scene, in which sources that list files go on instead: files only come, and are read once."""
    stages = [_going(stage) if stage.resolve == LISTED else stage for stage in scene.flow.stages]
    return replace(scene, flow=_changed(scene.flow, stages=stages))


def _going(stage: Stage) -> Stage:
    return replace(stage, resolve=SINCE, goes_on=True, options={FILES_OF: stage.name})


def copied_scene(scene: Scene) -> Scene:
    """Return the same scene, in which sources that list files keep a copy of what is read first."""
    copied = {each.name for each in scene.flow.stages if each.resolve in (LISTED, SINCE) and not each.states}
    stages = [_copied(stage) if stage.name in copied else stage for stage in scene.flow.stages]
    return replace(scene, flow=_changed(scene.flow, stages=stages))


def _copied(stage: Stage) -> Stage:
    return replace(stage, function=f"{READY_MADE}simulated:{stage.name}", options={**stage.options, "keep": COPY})


def reusing_scene(scene: Scene) -> Scene:
    """Return the same scene with tasks that take what others have made of the same."""
    return replace(scene, flow=_changed(scene.flow, reuse=Reuse.EQUAL))


def early_scene(scene: Scene) -> Scene:
    """Return the same scene with sinks that publish before their runs are closed, too."""
    return replace(scene, flow=_changed(scene.flow, stages=[_shown_early(stage) for stage in scene.flow.stages]))


def _is_early(stage: Stage) -> bool:
    return stage.kind is StageKind.SINK and stage.delivery is DeliveryGuarantee.AT_LEAST_ONCE


def _shown_early(stage: Stage) -> Stage:
    is_sink = stage.kind is StageKind.SINK
    return replace(stage, delivery=DeliveryGuarantee.AT_LEAST_ONCE) if is_sink else stage


def reading_scene(scene: Scene) -> Scene:
    """Return the same scene in which another stage of the task that keeps states reads them, too."""
    flow = scene.flow
    keeper = next((each for each in flow.stages if each.states), None)
    if keeper is None or scene.is_windowed:
        return scene
    name = f"s{len(scene.natures)}"
    inputs = {keeper.name: pipelined(keeper), **{f"before_{each.name}": previous(each.name) for each in keeper.states}}
    reader = Stage(name, f"simulated:{name}", inputs, keeper.parallelism)
    stages = [*(each for each in flow.stages if each.kind in (StageKind.SOURCE, StageKind.TRANSFORM)), reader]
    found = replace(
        scene,
        flow=_changed(flow, stages=[*stages, *_sinks(stages)]),
        natures={**scene.natures, name: Nature.FINE},
    )
    return found if scene.modules is None else _with_modules(found, scene.modules)


def replaying_scene(scene: Scene) -> Scene:
    """Return the same scene with states that are recomputed, however many epochs that takes."""
    return replace(scene, flow=_changed(scene.flow, replay=Replay.AUTOMATIC))


def saving_scene(random: Random, scene: Scene) -> Scene:
    """Return the same scene with automatic savepoints."""
    every, retained = random.choice([1, 1, 2, 3]), random.choice([1, 1, 2])
    return replace(scene, flow=_changed(scene.flow, savepoint_every=every, retained_savepoints=retained))


def told_scene(scene: Scene) -> Scene:
    """Return the same scene with a receiver of notifications."""
    return replace(scene, flow=_changed(scene.flow, notify=(simulated_receiver(),)))


def with_code(random: Random, scene: Scene) -> Scene:
    """Return the same scene with functions that can be edited."""
    repair = RepairCode.AS_IT_WAS if random.random() < AS_IT_WAS else RepairCode.NEWEST
    return _with_modules(replace(scene, flow=_changed(scene.flow, repair_code=repair)), random.choice(list(Modules)))


def _with_modules(scene: Scene, modules: Modules) -> Scene:
    flow = scene.flow
    if modules is Modules.APART:
        stages = [
            replace(each, function=f"simulated_{each.name}:{each.name}")
            if each.function and not each.keeps_copy
            else each
            for each in flow.stages
        ]
        flow = _changed(flow, stages=stages)
    return replace(scene, flow=flow, modules=modules)


def _keeping(random: Random, stage: Stage, stages: list[Stage]) -> Stage:
    """Return the same stage with state, or with a result of the previous epoch as an input."""
    if stage.kind is StageKind.TRANSFORM and random.random() < 0.25:
        before = random.choice(stages)
        is_keyed = random.random() < 0.5
        read = previous(before, by="k" if is_keyed else (), broadcast=not is_keyed, schema=SCHEMA)
        return replace(stage, inputs={**stage.exchanges, f"before_{before.name}": read})
    states = [_random_state(random, f"{stage.name}{OF_STATE}{number}") for number in range(random.choice([1, 1, 1, 2]))]
    return replace(stage, state=states)


def rescaled(flow: Dataflow, number: int) -> Dataflow | None:
    """Return the same dataflow with one subtask more in a region; None where that would not be valid.

    A region with one subtask is left as it is: its task would become another one in runs that know it by its name. So
    is one with a source that goes on and is copied, which is not divided anew.
    """
    bound = {each.name for each in flow.stages if each.goes_on and each.keeps_copy}
    regions = [each for each in Topology(flow).regions if each.parallelism > 1 and bound.isdisjoint(each.stages)]
    if not regions:
        return None
    grown = regions[number % len(regions)].stages
    stages = [replace(each, parallelism=each.parallelism + (each.name in grown)) for each in flow.stages]
    try:
        return _changed(flow, stages=stages)
    except Misconfigured:
        return None


def _random_state(random: Random, name: str) -> State:
    if random.random() < 0.15:
        return list_state(name, union=random.random() < 0.5)
    ttl, runs, kind = random.choice(TTLS), random.choice([2, 2, 8]), random.random()
    incremental = Incremental.NEVER if kind < 0.15 else Incremental.AUTO if kind < 0.3 else Incremental.ALWAYS
    return keyed_state(name, key="k", schema=SCHEMA, ttl=ttl, runs=runs, incremental=_ARGUMENTS[incremental])


_WORDS = {"full": Incremental.NEVER, "auto": Incremental.AUTO}
"""The words of a scene's text."""

_ARGUMENTS: dict[Incremental, bool | Literal["auto"]] = {
    Incremental.ALWAYS: True,
    Incremental.NEVER: False,
    Incremental.AUTO: "auto",
}


def new_flow(
    stages: list[Stage],
    failover: FailoverStrategy,
    consumers: Consumers,
    keep: str | None,
    keep_failed: str | None,
) -> Dataflow:
    """Return a dataflow of some stages, whose leaves are published."""
    return Dataflow(
        NAME,
        [*stages, *_sinks(stages)],
        failover=failover,
        consumers=consumers,
        keep=keep,
        keep_failed=keep_failed,
        is_record=True,
    )


def _sinks(stages: list[Stage]) -> list[Stage]:
    """Return a sink for each leaf."""
    exchanges = [exchange for stage in stages for exchange in stage.exchanges.values()]
    read = {exchange.stage for exchange in exchanges if not exchange.is_previous}
    return [sink(stage, f"set_{stage.name}") for stage in stages if stage.name not in read]


def _changed(flow: Dataflow, **settings: Any) -> Dataflow:
    """Return the dataflow with other settings; a record, since scenes have keyed states that no input is divided as."""
    return replace(flow, **settings, is_record=True)


def _life(flow: Dataflow) -> dict[str, str | None]:
    retained = None if flow.retained_checkpoints is None else str(flow.retained_checkpoints)
    saved = None if flow.savepoint_every is None else f"{flow.savepoint_every}/{flow.retained_savepoints}"
    return {"keep": flow.keep, "keep_failed": flow.keep_failed, "retained_checkpoints": retained, "savepoints": saved}


def _random_stage(random: Random, name: str, before: list[Stage]) -> Stage:
    if not before or (len(before) == 1 and random.random() < 0.4):
        parallelism = random.choice([1, 1, 1, 2, 2, 3])
        return source(name, f"simulated:{name}", parallelism=parallelism, resolve=random.choice([None, SPLITS]))
    first = before[-1] if random.random() < 0.7 else random.choice(before)
    if random.random() < 0.2:
        join = random.choice([pipelined, cached])
        return Stage(name, f"simulated:{name}", [join(first)], parallelism=first.parallelism)
    others = [stage for stage in before if stage is not first]
    read = [first, *random.sample(others, k=min(len(others), random.choice([0, 0, 1, 1, 2])))]
    parallelism = random.choice([1, 1, 1, 2, 2, 3])
    exchanges = [_boundary(random, each, parallelism) for each in read]
    return Stage(name, f"simulated:{name}", exchanges, parallelism, deterministic=random.random() > 0.08)


def _boundary(random: Random, producer: Stage, parallelism: int) -> Exchange:
    possible = [blocking(producer, by="k")]
    if parallelism == producer.parallelism > 1:
        possible += [blocking(producer, pointwise=True)] * 2
    possible.append(blocking(producer, broadcast=True) if parallelism > 1 else blocking(producer))
    return random.choice(possible)


def _random_nature(random: Random, stage: Stage) -> Nature:
    if not stage.exchanges:
        return Nature.FINE
    return random.choices([Nature.FINE, Nature.COARSE, Nature.MOODY], [6, 3, 1])[0]


# As text


def _described(stage: Stage, nature: Nature) -> str:
    kind = "" if stage.deterministic else " chancy"
    kind += {None: "", LISTED: " listed", SINCE: " going"}.get(stage.resolve, " sliced")
    kind += " copied" if stage.keeps_copy else ""
    kind += "".join(f" keeps={_kept(state)}" for state in stage.states)
    kind += "".join(f" gate={gate.suite}/{gate.when.value}/{gate.policy.value}" for gate in stage.gates)
    states = {state.name for state in stage.states}
    exchanges = [exchange for name, exchange in stage.exchanges.items() if name not in states]
    reads = ", ".join(_read(exchange) for exchange in exchanges) or "source"
    return f"stage {stage.name} x{stage.parallelism} {nature.value}{kind}: {reads}"


def _read(exchange: Exchange) -> str:
    how = " pointwise" if exchange.pointwise else " broadcast" if exchange.broadcast else ""
    return f"{exchange.kind.value} {exchange.stage}{how}{' by k' if exchange.keys else ''}"


def _kept(state: State) -> str:
    more = [state.ttl.replace(" ", "_")] if state.ttl else []
    more += [word for word, incremental in _WORDS.items() if state.incremental is incremental]
    runs = [str(state.runs)] if state.kind is StateKind.KEYED else []
    return "/".join([state.kind.value, state.name, *runs, *more])


def _state_from_text(text: str) -> State:
    kind, name, *runs_and_more = text.split("/")
    if StateKind(kind) is not StateKind.KEYED:
        return list_state(name, union=StateKind(kind) is StateKind.UNION)
    runs, *more = runs_and_more
    given = next((incremental for word, incremental in _WORDS.items() if word in more), Incremental.ALWAYS)
    ttl = next((each.replace("_", " ") for each in more if each not in _WORDS), None)
    return keyed_state(name, key="k", schema=SCHEMA, ttl=ttl, runs=int(runs), incremental=_ARGUMENTS[given])


def scene_from_text(lines: Iterable[str]) -> Scene:
    """Read a scene as it is printed. Raises ValueError."""
    first, *others = [line for line in lines if line.startswith(("dataflow ", "stage "))]
    said = dict(each.split("=") for each in first.split()[1:])
    stages, natures = [], {}
    for line in others:
        (_, name, parallelism, nature, *more), reads = line.partition(":")[0].split(), line.partition(": ")[2]
        natures[name] = Nature(nature)
        exchanges = [_exchange_from_text(each) for each in reads.split(", ")] if reads != "source" else []
        stages.append(_stage_from_text(name, int(parallelism[1:]), exchanges, more))
    keep, keep_failed = (said[name].replace("_", " ") if name in said else None for name in ("keep", "keep_failed"))
    keep = said["keep"] if keep is not None and said["keep"] in KEEPS else keep
    flow = new_flow(stages, FailoverStrategy(said["failover"]), Consumers(said["consumers"]), keep, keep_failed)
    if "retained_checkpoints" in said:
        flow = _changed(flow, retained_checkpoints=int(said["retained_checkpoints"]))
    if "savepoints" in said:
        every, kept = map(int, said["savepoints"].split("/"))
        flow = _changed(flow, savepoint_every=every, retained_savepoints=kept)
    if "repair_code" in said:
        flow = _changed(flow, repair_code=RepairCode(said["repair_code"]))
    scene = Scene(flow, natures, said["tries"] == "any", float(said["largest_plan"]))
    scene = told_scene(scene) if "receivers" in said else scene
    scene = reusing_scene(scene) if "reuse" in said else scene
    scene = early_scene(scene) if "early" in said else scene
    scene = replaying_scene(scene) if "replay" in said else scene
    return _with_modules(scene, Modules(said["modules"])) if "modules" in said else scene


def _stage_from_text(name: str, parallelism: int, exchanges: list[Exchange], more: list[str]) -> Stage:
    function, deterministic = f"simulated:{name}", "chancy" not in more
    states = [_state_from_text(each.removeprefix("keeps=")) for each in more if each.startswith("keeps=")]
    gates = [_gate_from_text(each.removeprefix("gate=")) for each in more if each.startswith("gate=")]
    if not exchanges:
        resolve = SPLITS if "sliced" in more else None
        found = source(
            name,
            function,
            parallelism=parallelism,
            resolve=resolve,
            deterministic=deterministic,
            state=states,
            quality=gates,
        )
        found = _listed(found) if "listed" in more else _going(found) if "going" in more else found
        return _copied(found) if "copied" in more else found
    inputs = {("before_" if each.is_previous else "") + each.stage: each for each in exchanges}
    return Stage(name, function, inputs, parallelism, deterministic=deterministic, state=states, quality=gates)


def _gate_from_text(text: str) -> Gate:
    suite, when, policy = text.split("/")
    return expectations(suite, when=when, policy=policy)


def _exchange_from_text(text: str) -> Exchange:
    kind, stage, *how = text.split()
    if kind in ("pipelined", "cached"):
        return pipelined(stage) if kind == "pipelined" else cached(stage)
    by = "k" if "by" in how else ()
    if kind == "previous" and OF_STATE in stage:
        return previous(stage)
    if kind == "previous":
        return previous(stage, by=by, broadcast="broadcast" in how, schema=SCHEMA)
    if kind != "blocking":
        raise ValueError(f"there is no exchange {kind!r}")
    return blocking(stage, by=by, broadcast="broadcast" in how, pointwise="pointwise" in how)


BLAMES: Final = "blames-"
AND: Final = "-and-"
WHENS: Final = ("always", "always", "always", "restored")
POLICIES: Final = ("backtrack", "backtrack", "backtrack", "fail", "retry", "warn")

ANY_ROWS: Final = "rows"
"""The suite that suspects no input; the names of others hold the inputs that they suspect."""


def gated_scene(random: Random, scene: Scene) -> Scene:
    """Return the same scene with checks of the rows of one or two stages."""
    stages = list(scene.flow.stages)
    may_have = [at for at, each in enumerate(stages) if each.kind in (StageKind.SOURCE, StageKind.TRANSFORM)]
    for at in random.sample(may_have, k=min(len(may_have), random.choice([1, 1, 2]))):
        stages[at] = replace(stages[at], quality=_random_gate(random, scene.flow, stages[at]))
    # A person has to end tries that come to the same each time.
    is_patient = scene.is_patient and not any(gate.policy is Policy.RETRY for each in stages for gate in each.gates)
    return replace(scene, flow=_changed(scene.flow, stages=stages), is_patient=is_patient)


def _random_gate(random: Random, flow: Dataflow, stage: Stage) -> Gate:
    blamed = [name for name in input_names(flow, stage.name) if name in stage.exchanges]
    some = random.sample(blamed, k=random.randint(1, len(blamed))) if blamed and random.random() < 0.85 else []
    suite = f"{BLAMES}{AND.join(some)}" if some else ANY_ROWS
    return expectations(suite, when=random.choice(WHENS), policy=random.choice(POLICIES))


def suite_folder(scene: Scene) -> TemporaryDirectory[str] | None:
    """Return a folder with the suites that a scene's stages name, None if they name none."""
    names = {gate.suite for stage in scene.flow.stages for gate in stage.gates}
    if not names:
        return None
    folder = TemporaryDirectory(prefix="weir-suites-")
    for name in names:
        Path(folder.name, f"{name}.json").write_text(json.dumps({"expectations": [_expectation(name)]}))
    return folder


def _expectation(suite: str) -> dict[str, object]:
    blames = [] if suite == ANY_ROWS else suite.removeprefix(BLAMES).split(AND)
    return {"type": EXPECTED, "kwargs": {"column": "k"}, "meta": {"blames": blames}}
