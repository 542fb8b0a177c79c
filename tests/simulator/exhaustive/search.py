"""A depth-first search through all schedules of a scope, which forks where it chooses: a fork is a copy of the world.

Invariant: each state is left by each choice once; a state that was seen before with as many preemptions left is cut.
The table of states is shared by all forks. One process runs at a time, and its parents wait.
"""

from __future__ import annotations

import gc
import mmap
import os
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.simulator.exhaustive.fingerprint import digest
from tests.simulator.exhaustive.scope import Choice, Play, Scope, choices_to_text
from tests.simulator.exhaustive.traffic import Traffic
from tests.simulator.observer import Broken, NeedsARestore
from tests.simulator.simulate import CRASHED

MOST_STATES: Final = 2**23
_SLOT: Final = struct.Struct("<QB")
_HEAD: Final = struct.Struct("<6Q")
_FOUND_AT: Final = 64
_TEXT: Final = 2**16
_TABLE_AT: Final = _FOUND_AT + _TEXT

SCHEDULES_BEFORE: Final = 8
"""Random schedules before the search, from which most conflicts are known."""

BOUNDS: Final = (0, 1, 2, 3, None)
"""Of preemptions."""

NO_BOUND: Final = 200
"""Preemptions that no schedule has."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to: the states it has visited, the schedules that ended, and whether these are all."""

    preemptions: int | None
    states: int
    steps: int
    schedules: int
    ends: int
    """Schedules that end in states that no other ends in: each of them was healed."""
    is_whole: bool
    finding: str
    seconds: float
    """Of processor time."""

    def __str__(self) -> str:
        bound = "any number of" if self.preemptions is None else f"at most {self.preemptions}"
        whole = "all of them" if self.is_whole else "not all of them"
        return (
            f"{bound} preemptions: {self.states} states, {self.steps} steps, {self.schedules} schedules with "
            f"{self.ends} different ends, {whole}, in {self.seconds:.0f} s of one core"
        )


class _Shared:
    """What all forks share: counters, the states that were seen, and the first finding."""

    def __init__(self, seconds: float) -> None:
        self._most = 1e6 * seconds
        self._memory = mmap.mmap(-1, _TABLE_AT + MOST_STATES * _SLOT.size)
        self._memory[: _HEAD.size] = bytes(_HEAD.size)

    def count(self, which: int, more: int = 1) -> None:
        at = 8 * which
        (number,) = struct.unpack_from("<Q", self._memory, at)
        struct.pack_into("<Q", self._memory, at, number + more)

    def counters(self) -> tuple[int, ...]:
        return _HEAD.unpack_from(self._memory, 0)

    def is_new(self, fingerprint: bytes, left: int, counter: int | None = None) -> bool:
        """Report whether a state was not seen with so many preemptions left; count one that was not seen at all."""
        key = int.from_bytes(fingerprint[:8], "little") or 1
        at = key % MOST_STATES
        while True:
            where = _TABLE_AT + at * _SLOT.size
            there, best = _SLOT.unpack_from(self._memory, where)
            if there == key and best > left:
                return False
            if there in (0, key):
                _SLOT.pack_into(self._memory, where, key, left + 1)
                if there == 0 and counter is not None:
                    self.count(counter)
                return True
            at = (at + 1) % MOST_STATES

    def is_late(self) -> bool:
        """Report whether time or the table is used up."""
        counters = self.counters()
        late = counters[SPENT] > self._most or counters[STATES] > MOST_STATES * 3 // 8
        if late:
            self.count(LATE)
        return late

    def note(self, text: str) -> None:
        data = text.encode()[: _TEXT - 1]
        self._memory[_FOUND_AT : _FOUND_AT + len(data)] = data

    @property
    def finding(self) -> str:
        return self._memory[_FOUND_AT:_TABLE_AT].rstrip(b"\0").decode(errors="replace")


STATES, STEPS, SCHEDULES, ENDS, LATE, SPENT = range(6)
"""The counters; what is spent is microseconds of processor time."""


def searches(scope: Scope, seconds: float, most: int | None = None) -> Iterator[Searched]:
    """Search with ever more preemptions, at last with any number, until one is not whole, or has found something."""
    traffic = Traffic()
    for bound in BOUNDS if most is None else BOUNDS[: most + 1]:
        again = True
        while again:  # conflicts that are new change what is a point to switch at
            conflicts = traffic.conflicts
            found = search(scope, bound, seconds, traffic)
            yield found
            seconds -= found.seconds
            again = not found.is_whole and not found.finding and seconds > 0 and traffic.conflicts > conflicts
        if not found.is_whole:
            return


def search(scope: Scope, preemptions: int | None, seconds: float, traffic: Traffic | None = None) -> Searched:
    """Search with so many preemptions at most, for so many seconds of processor time.

    It forks: its process must have one thread.
    """
    shared, traffic = _Shared(seconds), traffic or Traffic()
    if not traffic.conflicts:
        _learn(scope, traffic, shared)
    conflicts = traffic.conflicts
    if not shared.finding:
        _fork(scope, traffic, shared, NO_BOUND if preemptions is None else preemptions)
    states, steps, schedules, ends, late, spent = shared.counters()
    is_whole = not late and not shared.finding and traffic.conflicts == conflicts
    return Searched(preemptions, states, steps, schedules, ends, is_whole, shared.finding, spent / 1e6)


def _fork(scope: Scope, traffic: Traffic, shared: _Shared, left: int) -> None:
    """Search in a fork, without collections of garbage, which would copy all pages."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        play = Play(scope, traffic)
        child = os.fork()
        if child == 0:
            _leave(_Search(shared, play, left))
        _, status = os.waitpid(child, 0)
        shared.count(LATE, status)
    finally:
        gc.enable()


def _learn(scope: Scope, traffic: Traffic, shared: _Shared) -> None:
    """Carry out random schedules: statements are compiled before the first fork, and most conflicts are met."""
    for seed in range(SCHEDULES_BEFORE):
        if not shared.finding:
            _Search(shared, Play(scope, traffic), NO_BOUND).go_anywhere(Random(seed))


def _leave(search: _Search) -> None:
    try:
        search.go_on()
    except BaseException as error:  # noqa: BLE001 - a fork must not return into what it is a copy of
        search.found(error)
    os._exit(1 if search.shared.finding else 0)


class _Search:
    """The search in one fork, from the state that it stands in."""

    def __init__(self, shared: _Shared, play: Play, left: int) -> None:
        self.shared, self._play, self._left = shared, play, left
        self._schedule: list[Choice] = []
        self._spent = time.process_time()

    def go_anywhere(self, random: Random) -> None:
        """Carry out one schedule to its end."""
        try:
            while found := self._play.choices():
                self._choose(random.choice(found))
            self._play.heal()
        except (Broken, NeedsARestore) as broken:
            self.found(broken)
        self._count_time()
        self._play.world.close()

    def go_on(self) -> None:
        """Explore all that follows."""
        while True:
            choices = self._choices()
            if not choices:
                self._end()
                return
            if not self._play.is_alone and not self._is_new():
                return
            if self.shared.is_late():
                return
            for choice in choices[:-1]:
                child = os.fork()
                if child == 0:
                    self._spent = 0.0
                    self._choose(choice)
                    break
                _, status = os.waitpid(child, 0)
                if status != 0:
                    self.shared.count(LATE)  # it has found something, or the system has ended it
                    return
            else:
                self._choose(choices[-1])

    def _is_new(self) -> bool:
        """Report whether nothing was explored yet that follows; with a bound that depends on who may go on, too."""
        fingerprint = self._play.fingerprint
        self.shared.is_new(digest(fingerprint), 0, STATES)
        last = "" if self._left == NO_BOUND else self._play.current
        return self.shared.is_new(digest(fingerprint, last), self._left)

    def _choices(self) -> list[Choice]:
        found = self._play.choices()
        may_preempt = self._left > 0
        return [choice for choice in found if may_preempt or not self._play.preempts(choice)]

    def _choose(self, choice: Choice) -> None:
        if self._left < NO_BOUND:
            self._left -= self._play.preempts(choice)
        self.shared.count(STEPS)
        self._count_time()
        self._schedule.append(choice._replace(until=0))  # if it breaks an invariant, before its next point
        self._schedule[-1] = self._play.choose(choice)

    def _count_time(self) -> None:
        now = time.process_time()
        self.shared.count(SPENT, int(1e6 * (now - self._spent)))
        self._spent = now

    def _end(self) -> None:
        self.shared.count(SCHEDULES)
        if self.shared.is_new(digest(self._play.fingerprint, "the end"), 0, ENDS):
            self._play.heal()
        self._count_time()

    def found(self, error: BaseException) -> None:
        """Note what breaks an invariant, and the schedule that leads there."""
        if isinstance(error, NeedsARestore):
            return
        if isinstance(error, Broken):
            what = f"{error.invariant.replace('_', ' ')}: {error.found}"
        else:
            what = f"{CRASHED.replace('_', ' ')}: {''.join(traceback.format_exception(error)[-3:])}"
        self.shared.note(f"# {what}\n{choices_to_text(self._schedule)}\n")
