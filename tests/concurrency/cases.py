"""Cases of two operations, and what was found in each: what is broken at once, and what the world did not heal from."""

from dataclasses import dataclass, field

from tests.concurrency.operations import FORK, asked_of, is_expected
from tests.concurrency.outcome import broken, fork_goes_on, heal, outcome, signature
from tests.concurrency.pair import settle

_ANSWERS = ("read ", "size ", "entries ", "modified ", "flush ", "free_space ")
_CHANGES = ("create ", "replace ", "delete ", "delete_folder ")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What came of two operations; worlds of equal `signature` cannot be told apart."""

    first: object
    second: object
    at: str
    was_blocked: bool
    signature: str
    broken: tuple


@dataclass
class Cases:
    """All cases begin in the same world; what a world comes to is looked at once for all cases that end alike."""

    template: object
    pair: object
    server: object
    expected: dict = field(default_factory=dict)
    healed: dict = field(default_factory=dict)

    def learn(self):
        """Find out what the world comes to if nothing is done to it."""
        world = self.template.begin()
        heal(world)
        self.expected = outcome(world)
        assert set(self.expected["tasks"].values()) == {"success"}
        assert (self.expected["owed"], self.expected["pending"], broken(world)) == (0, [], [])

    def points_of(self, first):
        """The points of an operation beside which nothing is performed."""
        world = self.template.begin()
        done = self.pair.perform(world, self.template.place(world), asked_of(world, *first), None)
        assert is_expected(done.first, first[0]), done.first
        return done.first.points

    def perform(self, first, second, stop_at=None, *, heals=True):
        """Perform `first`, a kind and which, and `second`, while that stands at its point `stop_at`; then heal."""
        world, found = self.template.begin(), []
        place = self.template.place(world)
        asked = [asked_of(world, *each) for each in (first, second)]
        done = self.pair.perform(
            world, place, *asked, stop_at=stop_at, between=lambda: found.extend(broken(world, while_read=True))
        )
        for one, ended in zip(asked, (done.first, done.second), strict=True):
            settle(world.airflow, one, ended)
            if not is_expected(ended, one.kind):
                found.append(f"{one.kind} {ended.how}: {ended.kinds[:1]} {ended.said}")
            found += [f"{one.kind} {each} of another dataflow" for each in ended.strange_rows]
        found += broken(world)
        told = signature(world)
        if heals and told not in self.healed:
            self.healed[told] = tuple(self._heal(world, FORK in (first, second)))
        found += self.healed.get(told, ())
        return Case(
            first=done.first,
            second=done.second,
            at=done.at,
            was_blocked=done.was_blocked,
            signature=told,
            broken=tuple(dict.fromkeys(found)),
        )

    def _heal(self, world, is_forked):
        heal(world)
        found = outcome(world)
        for name, expected in self.expected.items():
            if found[name] != expected:
                yield f"healed, {name} differ: {_difference(found[name], expected)}"
        yield from (f"healed, {each}" for each in broken(world))
        if is_forked and (state := fork_goes_on(world)):
            mine = {key: self.expected["contents"]["ladder@20130102T000000Z", *key] for key in state}
            if state != mine:
                yield f"the fork came to {_difference(state, mine)}"

    def deadlocks(self):
        """How many deadlocks the server has ever found."""
        with self.server.connect() as connection:
            return int(connection.exec_driver_sql("SELECT sum(deadlocks) FROM pg_stat_database").scalar())


def _difference(found, expected):
    if not isinstance(found, dict):
        return f"{found}, not {expected}"
    return {key: (found.get(key), expected.get(key)) for key in found | expected if found.get(key) != expected.get(key)}


def points_that_differ(first, second):
    """The points of one operation at which it matters whether another is performed: by number, from 1.

    Before a question to the store about something that the other does not change it does not, nor before a change of
    something that the other does not look at: the next point is as good. All others are kept.
    """
    asked, changed = _paths(second, (*_ANSWERS, *_CHANGES)), _paths(second, _CHANGES)
    for number, point in enumerate(first, start=1):
        if point.startswith(_ANSWERS) and not _meet(point, changed):
            continue
        if point.startswith(_CHANGES) and not _meet(point, asked):
            continue
        yield number


def _paths(points, kinds):
    return {point.partition(" ")[2] for point in points if point.startswith(kinds)}


def _meet(point, paths):
    mine = point.partition(" ")[2]
    return any(f"{each}/".startswith(f"{mine}/") or f"{mine}/".startswith(f"{each}/") for each in paths)
