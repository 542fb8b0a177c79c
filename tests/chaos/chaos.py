"""`weir chaos`: a dataflow under faults at random times, and a comparison with a run without faults.

Invariant: it says that all is well only if every published row was compared with two other computations of it, and the
ledger is sound. However it ends, nothing that it started runs afterwards.
"""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from tests.chaos.data_faults import ChangeInput
from tests.chaos.field import CALM, DAG, FIRST_DAY, Field
from tests.chaos.plan import PlannedFault, planned_faults
from tests.chaos.report import InjectedFault, costs, print_costs, print_verdicts
from tests.chaos.verdict import broken_invariants, unsettled, verdict_of

from weir.errors import Misconfigured, Retryable, WeirError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console
    from tests.chaos.faults import Fault, Injection

    from weir.cli.progress import Progress


FIRST_DAYS: Final = 3

MOST_DAYS: Final = 6
"""With so many runs, the input of one is changed to have tasks to run."""

BUSY_RUNS: Final = 2

DWELL_MILLISECONDS: Final = 40
"""How long Spark dwells on each row of a stage, so that faults find running tasks: two seconds a task."""

POLL_SECONDS: Final = 0.25
LOOK_SECONDS: Final = 3.0
START_SECONDS: Final = 240.0

SETTLE_SECONDS: Final = 600.0
"""Upkeep, which delivers the clears that no task delivers, runs every three minutes."""

CALM_SECONDS: Final = 600.0

SHOWN: Final = 12
"""How many reasons are printed."""

TARGET_SECONDS: Final = 10.0
"""How long a fault waits for a target."""


def first_settings() -> dict[str, object]:
    """The control file at the beginning: each day adds to the totals so far, which are state."""
    shape = {"kept": True, "retained_checkpoints": MOST_DAYS}
    return {
        "dags": {DAG: shape, CALM: shape},
        "last_day": (FIRST_DAY + timedelta(days=FIRST_DAYS - 1)).isoformat(),
        "milliseconds_a_row": DWELL_MILLISECONDS,
        # A task is killed more often here than the default strategy forgives.
        "restart": {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 1000,
            "restart-strategy.fixed-delay.delay": "1 s",
        },
    }


@dataclasses.dataclass
class Chaos:
    """One chaos run on a stack that is up."""

    field: Field
    console: Console
    progress: Progress
    seed: int
    minutes: float
    faults: Sequence[Fault]
    injected: list[InjectedFault] = dataclasses.field(default_factory=list)
    open: list[tuple[str, Injection]] = dataclasses.field(default_factory=list)
    _looked_at: float = 0.0

    def run(self) -> bool:
        """Run the dataflow, inject faults, wait until it is green, compare; return whether all is right."""
        self._begin()
        try:
            with self.progress.phase(f"injecting faults for {self.minutes:g} minutes, seed {self.seed}"):
                self.inject_all()
        finally:
            self._undo_all()
        with self.progress.phase("waiting until all runs are green"):
            settled = self._await_green(DAG, SETTLE_SECONDS)
        broken = [] if settled else [f"not green {SETTLE_SECONDS:.0f} s after the last fault: {self._why(DAG)}"]
        with self.progress.phase("running the same days without faults"):
            self.field.change(milliseconds_a_row=0)
            self.field.api.unpause(CALM)
            if not self._await_green(CALM, CALM_SECONDS):
                broken.append(f"the run without faults is not green: {self._why(CALM)}")
        print_costs(self.console, self.injected, costs(self.field.ledger, DAG, self.injected))
        days = [verdict_of(self.field, day) for day in self.field.days()]
        return print_verdicts(self.console, days, [*broken, *self.broken()])

    def broken(self) -> list[str]:
        """Return what is wrong at the end, beside the rows."""
        return broken_invariants(self.field)

    def _begin(self) -> None:
        with self.progress.phase(f"starting the first runs of {DAG}"):
            for _ in _polling(f"the DAGs {DAG} and {CALM} to appear"):
                errors = self.field.api.import_errors()
                if errors:
                    raise Misconfigured(f"Airflow cannot import a DAG file: {errors[0]}")
                if self.field.api.has_dag(DAG) and self.field.api.has_dag(CALM):
                    break
            self.field.api.unpause(DAG)
            # So that there are results to lose and running tasks from the beginning.
            for _ in _polling("the first run to be green"):
                if any(run.state == "success" for run in self.field.dag_runs()):
                    break
                self.progress.say("the first run is on its way")

    def inject_all(self) -> None:
        """Inject faults at random times; the next often before the dataflow has recovered from the last."""
        end = time.monotonic() + 60 * self.minutes
        sequence = planned_faults(self.seed, self.faults)
        planned = next(sequence)
        due = time.monotonic() + planned.after
        while (now := time.monotonic()) < end:
            self.advance()
            if now >= due and (self.injects(planned) or now >= due + TARGET_SECONDS):
                planned = next(sequence)
                due = time.monotonic() + planned.after
            if now >= self._looked_at + LOOK_SECONDS:
                self._looked_at = now
                self._keep_busy(planned)
            time.sleep(POLL_SECONDS)

    def injects(self, planned: PlannedFault) -> bool:
        """Inject a fault and tell it; return whether there was something to inject it into."""
        at = datetime.now(UTC)
        try:
            injection = planned.fault.inject(self.field, planned.chance)
        except WeirError:
            return False  # another fault keeps this one from finding a target
        if injection is None:
            return False
        self.injected.append(InjectedFault(planned.fault.name, at))
        self.open.append((planned.fault.name, injection))
        self.console.print(
            f"[dim]{self.progress.elapsed():4.0f} s[/]  {at:%H:%M:%S}  "
            f"[bold red]fault {len(self.injected)}[/] {planned.fault.name}: {escape(injection.what)}",
            soft_wrap=True,
        )
        return True

    def advance(self) -> None:
        """Continue what takes time, and forget the faults that are over."""
        self.open = [(name, injection) for name, injection in self.open if not injection.is_over()]

    def _keep_busy(self, planned: PlannedFault) -> None:
        """Show the progress, and see to it that some runs have tasks to run."""
        runs = self.field.dag_runs()
        if not runs:
            self.progress.say("Airflow does not answer")
            return
        unfinished = [run for run in runs if run.state != "success"]
        under = f"; not over yet: {', '.join(name for name, _ in self.open)}" if self.open else ""
        self.progress.say(
            f"{len(self.injected)} faults; {len(runs) - len(unfinished)} of {len(runs)} runs are green{under}"
        )
        if len(unfinished) >= BUSY_RUNS or len(runs) < len(self.field.days()):
            return
        if len(runs) < MOST_DAYS:
            self.field.change(last_day=(self.field.days()[-1] + timedelta(days=1)).isoformat())
            return
        try:
            work = ChangeInput().inject(self.field, planned.chance)
        except WeirError:
            return
        if work is not None:
            self.open.append(("work", work))

    def _undo_all(self) -> None:
        for _, injection in self.open:
            injection.undo()

    def _await_green(self, dag: str, seconds: float) -> bool:
        """Wait until nothing is missing, twice in a row; false when time is up."""
        deadline, looks = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            self.advance()
            missing = self._missing(dag)
            looks = 0 if missing or self.open else looks + 1
            if looks == 2:
                return True
            self.progress.say(_first([*(f"{name} is not over" for name, _ in self.open), *missing]))
            time.sleep(1.0)
        return False

    def _missing(self, dag: str) -> list[str]:
        try:
            return unsettled(self.field, dag, self.field.days())
        except WeirError as error:
            return [str(error)]

    def _why(self, dag: str) -> str:
        return "; ".join([*(f"{name} is not over" for name, _ in self.open), *self._missing(dag)][:SHOWN])


def write_control(control: Path) -> None:
    """Put the control file where the stack's DAG file will look for it."""
    control.parent.mkdir(parents=True, exist_ok=True)
    control.write_text(json.dumps(first_settings()))


def _first(reasons: list[str]) -> str:
    if not reasons:
        return "green; looking once more"
    return f"{reasons[0]}{f' and {len(reasons) - 1} more' if len(reasons) > 1 else ''}"


def _polling(what: str) -> Iterator[None]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL_SECONDS)
    raise Retryable(f"waited {START_SECONDS:.0f} s for {what}: this machine may be too slow or too busy")
