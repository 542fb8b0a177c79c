"""The events of a simulation, as data that can be printed, read back, and left out.

Invariant: an event is self-contained; in another world it does the nearest thing that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.simulator.listings import COMES, CORRECTED, GOES
from tests.simulator.process import NO_FAULT, FaultKind, ProcessFault


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
    FILE = "file"
    """A file of a source comes, goes, or is corrected: a source that is resolved from now on has other splits."""
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
    SEAL = "seal"
    """A person seals a day, so that later days go on without it, until somebody clears it."""
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
    Verb.FILE: (COMES, GOES, CORRECTED),
}

OLD: Final = "old"
"""A step whose worker still has the code of before the last edit."""

MOST_LOST: Final = 12
"""The commits that a ledger loses at most."""

FIRST_COMMITS: Final = 2
"""Commits that are never lost: of a dataflow that the ledger does not know, nobody finds out."""


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


def events_from_text(text: str) -> tuple[Event, ...]:
    """Read events, one a line; comments and the lines of a scene are passed over. Raises ValueError."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(Event.from_text(line) for line in lines if line and not line.startswith(("dataflow ", "stage ")))


def events_to_text(events: Iterable[Event]) -> str:
    """Return the text of events, as `events_from_text` reads it."""
    return "\n".join(str(event) for event in events)
