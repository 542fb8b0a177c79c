"""Simulates a seed, a printed schedule, or many seeds on all cores; shrinks and reports what breaks an invariant.

Invariants: equal seeds and events have equal outcomes, however seeds are divided among processes. A shrunk schedule
(Zeller's delta debugging) breaks the same invariant as the original. A report has all that is needed to reproduce it.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from traceback import extract_tb
from typing import Final

from tests.simulator.actions import apply
from tests.simulator.chores import end_early_results
from tests.simulator.dataflows import (
    Scene,
    collecting_scene,
    copied_scene,
    early_scene,
    gated_scene,
    going_scene,
    listed_scene,
    random_scene,
    reading_scene,
    replaying_scene,
    reusing_scene,
    saving_scene,
    stateful_scene,
    told_scene,
    with_code,
    with_retained,
)
from tests.simulator.derived import WHAT_IS_DUE_IS_DECIDED
from tests.simulator.event_time.outcome import require_windows
from tests.simulator.event_time.scenes import windowed_scene
from tests.simulator.events import MOST_LOST, OLD, Event, Verb, events_to_text
from tests.simulator.healing import heal
from tests.simulator.observer import Broken, NeedsARestore
from tests.simulator.process import NO_FAULT
from tests.simulator.schedules import (
    Drawing,
    random_events,
    with_bad_rows,
    with_beats,
    with_clocks,
    with_dag_runs,
    with_edits,
    with_files,
    with_forgotten_tries,
    with_further_days,
    with_losses,
    with_meetings,
    with_rebuilds,
    with_runs,
    with_seals,
)
from tests.simulator.world import World

from weir.topology.regions import Topology


@dataclass(frozen=True, slots=True)
class Finding:
    """An invariant that does not hold: its name, what was found, and at which event (None: during recovery)."""

    invariant: str
    found: str
    event: int | None


CRASHED: Final = "a_scene_runs_to_its_end"


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of scenes and schedules that have something more; each is drawn by itself, so that all mix.

    Scenes that keep state cost several times as much as others.
    """

    stateful: float = 0.1
    gated: float = 0.15
    edited: float = 0.3
    collecting: float = 0.25
    """Results are released and swept."""
    crowded: float = 0.5
    """Several processes are suspended at once, and resumed in any order."""
    skewed: float = 0.25
    """Machines have clocks that are wrong."""
    deleted: float = 0.25
    """DagRuns are queued, deleted, and created again."""
    rebuilt: float = 0.08
    """The ledger is rebuilt, though it is not lost."""
    lossy: float = 0.05
    """The ledger loses its last commits; results are collected then, as upkeep is to find out."""
    forgotten: float = 0.05
    """Airflow's database goes back in time."""
    told: float = 0.1
    """Somebody receives notifications."""
    listed: float = 0.15
    """Files of sources come, go, and are corrected. Drawn last: the schedules of other seeds are as before it was."""
    windowed: float = 0.0
    """Rows have times, and come late for windows: all other seeds are as before it was."""


USUAL: Final = Shares()

WINDOWED: Final = Shares(windowed=1.0)

GOING: Final = 0.5
"""The share of scenes with files of sources in which these go on from epoch to epoch."""

COPIED: Final = 0.5
"""The share of scenes with files of sources, and without gates, in which what is read first is copied."""

REUSING: Final = 0.4
"""The share of scenes in which a task takes what another one has made of the same."""

REPLAYING: Final = 0.3
"""The share of scenes in which a state that is no longer retained is recomputed, however many epochs that takes."""

SAVING: Final = 0.3
"""The share of scenes with state in which upkeep creates savepoints."""

EARLY: Final = 0.3
"""The share of scenes whose sinks publish before their runs are closed, too."""

READING: Final = 0.3
"""The share of scenes with states in which another stage of the same task reads them, too."""

SEALING: Final = 0.3
"""The share of scenes whose days read the day before in which a person seals days."""

DRAWN: Final = None
"""Each seed draws its own shares, and how often verbs, faults and habits come in its schedule."""


def scene_and_events(seed: int, shares: Shares | None = USUAL) -> tuple[Scene, tuple[Event, ...]]:
    """Return the scene and the events of a seed; without shares, of shares and a mix that it draws, too."""
    is_drawn = shares is DRAWN
    draw = Drawing(f"drawn {seed}" if is_drawn else seed)
    if shares is None:
        draw.draw_mix()
        shares = _drawn_shares(draw)
    is_windowed = Random(f"windows {seed}").random() < shares.windowed
    if is_windowed:
        scene, events = with_retained(draw, windowed_scene(draw)), with_runs(draw, random_events(draw))
        events = with_further_days(draw, events)
    elif draw.random() < shares.stateful:
        scene, events = with_retained(draw, stateful_scene(draw)), with_runs(draw, random_events(draw))
    else:
        scene, events = random_scene(draw), random_events(draw)
    if draw.random() < shares.collecting:
        scene = collecting_scene(draw, scene)
    if draw.random() < shares.gated:
        scene, events = gated_scene(draw, scene), with_bad_rows(draw, events)
    scene = with_code(draw, scene)
    more = (
        (shares.edited, with_edits),
        (shares.deleted, with_dag_runs),
        (shares.skewed, with_clocks),
        (shares.rebuilt, with_rebuilds),
        (shares.crowded, with_meetings),
    )
    for share, added in more:
        if draw.random() < share:
            events = added(draw, events)
    events = with_beats(draw, events)
    if draw.random() < shares.lossy:
        scene, events = scene if scene.collects else collecting_scene(draw, scene), with_losses(draw, events)
    if draw.random() < shares.forgotten:
        events = with_forgotten_tries(draw, events)
    if draw.random() < shares.told:
        scene = told_scene(scene)
    if draw.random() < (draw.random() ** 4 if is_drawn else shares.listed) and not is_windowed:
        scene, events = listed_scene(scene), with_files(draw, events)
        if draw.random() < GOING:
            scene, events = going_scene(scene), with_further_days(draw, events)
        if not scene.is_gated and draw.random() < COPIED:
            scene = copied_scene(scene)
    # Drawn apart: the schedules of all seeds are as before it was.
    scene = replaying_scene(scene) if Random(f"replay {seed}").random() < REPLAYING else scene
    if scene.flow.keeps_state and (apart := Random(f"savepoints {seed}")).random() < SAVING:
        scene = saving_scene(apart, scene)
    if Topology(scene.flow).reads_previous and (apart := Random(f"seal {seed}")).random() < SEALING:
        events = with_seals(apart, events)
    scene = reading_scene(scene) if Random(f"states {seed}").random() < READING else scene
    scene = early_scene(scene) if Random(f"early {seed}").random() < EARLY else scene
    return reusing_scene(scene) if Random(f"reuse {seed}").random() < REUSING else scene, events


def _drawn_shares(draw: Drawing) -> Shares:
    """Draw shares of a seed, without the last two: all of them are small in some seeds, and large in others."""
    exponent = draw.choice([0.5, 1, 2, 4])
    return Shares(*(draw.random() ** exponent for _ in fields(Shares)[:-2]))


def simulate(scene: Scene, events: Sequence[Event], *, heals: bool = True, derives: bool = False) -> Finding | None:
    """Apply the events, then let everything recover if it `heals`; return the first broken invariant.

    If it `derives`, it is also an invariant that what has to run again is decided after each transaction; this takes
    as long as all else.
    It ends early where a person would have to restore a checkpoint, and there is none. An error that nobody expects, of
    the product or of the simulator, is a finding, too.
    """
    is_lossy = any(event.verb is Verb.LOSE_COMMITS for event in events)
    world, number = World(scene, MOST_LOST if is_lossy else 0, derives=derives), None
    world.airflow.forgets = any(event.verb is Verb.FORGET for event in events)
    try:
        for number, event in enumerate(events):  # noqa: B007 - the finding names it
            apply(world, event)
        number = None
        if heals:
            heal(world)
            require_windows(world)
            end_early_results(world)
    except NeedsARestore:
        return None
    except Broken as broken:
        return Finding(broken.invariant, broken.found, number)
    except Exception as error:  # noqa: BLE001 - a sweep goes on, and its report names the seed
        return Finding(CRASHED, _where(error), number)
    finally:
        world.close()
    return None


def _where(error: Exception) -> str:
    frame = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


CHUNK = 20
"""Seeds that a process is given at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """A seed that breaks an invariant."""

    seed: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Swept:
    """The outcome of many seeds; `seeds` is the number simulated."""

    seeds: int
    findings: tuple[Found, ...]
    seconds: float


def sweep(
    seeds: Iterable[int],
    *,
    processes: int | None = None,
    most: int = 5,
    shares: Shares | None = USUAL,
    derives: bool = False,
) -> Swept:
    """Simulate seeds until all are done, or `most` have broken an invariant."""
    began = time.monotonic()
    done, findings = 0, list[Found]()
    # Not forked: the caller may have threads, and SQLite connections must not cross a fork.
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for chunk, found in pool.map(partial(_simulated, shares=shares, derives=derives), list(_chunks(seeds))):
            done += chunk
            findings += found
            if len(findings) >= most:
                pool.shutdown(cancel_futures=True)
                break
    return Swept(done, tuple(findings[:most]), time.monotonic() - began)


def _chunks(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    rest = iter(seeds)
    while chunk := tuple(islice(rest, CHUNK)):
        yield chunk


def _simulated(seeds: tuple[int, ...], shares: Shares | None, *, derives: bool) -> tuple[int, list[Found]]:
    gc.set_threshold(100_000, 20, 100)  # a simulation makes much that incarnations as long as it does
    findings = []
    for seed in seeds:
        finding = simulate(*scene_and_events(seed, shares), derives=derives)
        if finding is not None:
            findings.append(Found(seed, finding))
    return len(seeds), findings


Breaks = Callable[[Sequence[Event]], bool]


def shrunk(events: Sequence[Event], breaks: Breaks) -> tuple[Event, ...]:
    """Return as few events, with as few faults of processes, as still break the invariant."""
    found = _without_parts(tuple(events), breaks)
    while True:
        simpler = _simplified(found, breaks)
        if simpler == found:
            return found
        found = _without_parts(simpler, breaks)


def _without_parts(events: tuple[Event, ...], breaks: Breaks) -> tuple[Event, ...]:
    size = len(events)
    while size:
        events = _without(events, size, breaks)
        size //= 2
    return events


def _without(events: tuple[Event, ...], size: int, breaks: Breaks) -> tuple[Event, ...]:
    """Leave out each part of `size` events that nothing depends on."""
    at = 0
    while at < len(events):
        fewer = events[:at] + events[at + size :]
        if breaks(fewer):
            events = fewer
        else:
            at += size
    return events


def _simplified(events: tuple[Event, ...], breaks: Breaks) -> tuple[Event, ...]:
    for at in range(len(events)):
        for event in _simpler(events[at]):
            other = (*events[:at], event, *events[at + 1 :])
            if breaks(other):
                events = other
                break
    return events


def _simpler(event: Event) -> Iterator[Event]:
    if event.how == OLD:
        yield replace(event, how="")
    if event.fault != NO_FAULT:
        yield Event(event.verb, event.number, event.how)
    if event.number:
        yield Event(event.verb, 0, event.how, event.fault)


def report_of(seed: int, finding: Finding, *, shrink: bool = True, shares: Shares | None = USUAL) -> str:
    """Return the seed, the broken invariant, the dataflow, and the events that lead there."""
    scene, events = scene_and_events(seed, shares)
    derives = finding.invariant == WHAT_IS_DUE_IS_DECIDED
    if shrink:
        at, invariant = finding.event, finding.invariant
        events = events if at is None else events[: at + 1]
        events = shrunk(events, lambda fewer: _breaks(scene, fewer, invariant, heals=at is None))
        finding = simulate(scene, events, derives=derives) or finding
    when = "during recovery" if finding.event is None else f"at event {finding.event + 1}"
    again = f"python -m tests.simulator --seed {seed}{_as(shares)}{' --derive' if derives else ''}"
    return "\n".join(
        [
            f"# seed {seed}: {finding.invariant.replace('_', ' ')}",
            f"# {' '.join(finding.found.split())} ({when})",
            str(scene),
            events_to_text(events),
            f"# reproduce: {again} (or --replay a file with these lines)",
            "",
        ]
    )


def _as(shares: Shares | None) -> str:
    if shares is None:
        return " --draw-shares"
    if shares == USUAL:
        return ""
    return "".join(f" --{each.name} {getattr(shares, each.name):g}" for each in fields(Shares))


def _breaks(scene: Scene, events: Sequence[Event], invariant: str, *, heals: bool) -> bool:
    finding = simulate(scene, events, heals=heals, derives=invariant == WHAT_IS_DUE_IS_DECIDED)
    return finding is not None and finding.invariant == invariant
