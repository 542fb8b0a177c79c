"""`weir chaos --ha`: a fault of a redundant stack each minute, and how long each takes to heal.

Invariant: the next fault comes when the last is over and healed, so that the seconds of each are its own.
"""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import date, timedelta
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from tests.chaos.chaos import LOOK_SECONDS, POLL_SECONDS, Chaos, first_settings
from tests.chaos.field import CALM, DAG, FIRST_DAY
from tests.chaos.healing import Healing
from tests.chaos.plan import planned_faults

from weir.formats.paths import checkpoint_number, checkpoints_folder, folder_of, name_of, pointer_folder
from weir.formats.pointer import Pointer, pointer_from_json
from weir.state.checkpoint_content import files_named, read_checkpoint
from weir.store.walk import files_in
from weir_dev.demo.evidence import epoch_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.chaos.field import Field


EVERY_SECONDS: Final = 60.0

HEALED_WITHIN_SECONDS: Final = 30.0

PATIENCE_SECONDS: Final = 180.0
"""How long the next fault waits for one that does not heal."""

LAST_DAY: Final = FIRST_DAY + timedelta(days=90)
"""More days than can run: there is always something to do."""

SPARE_DAYS: Final = timedelta(days=2)
DWELL_MILLISECONDS: Final = 100


def write_ha_control(control: Path) -> None:
    """Put the control file where the stack's DAG file will look for it: the ladder with keyed state."""
    shape = {"kept": True, "parallelism": {"numbers": 1, "totals": 1}}
    settings = {"dags": {DAG: shape, CALM: {**shape, "last_day": FIRST_DAY.isoformat()}}}
    more = {"last_day": LAST_DAY.isoformat(), "milliseconds_a_row": DWELL_MILLISECONDS}
    control.parent.mkdir(parents=True, exist_ok=True)
    control.write_text(json.dumps({**first_settings(), **settings, **more}))


@dataclasses.dataclass
class HighAvailability(Chaos):
    """One run on a redundant stack that is up."""

    _healed: list[tuple[str, float | None]] = dataclasses.field(default_factory=list)

    def inject_all(self) -> None:
        """Inject one fault a minute, and measure how long each takes to heal."""
        end = time.monotonic() + 60 * self.minutes
        for planned in planned_faults(self.seed, self.faults):
            if time.monotonic() >= end:
                break
            due = time.monotonic() + EVERY_SECONDS
            while not (is_injected := self.injects(planned)) and time.monotonic() < due:
                self.advance()
                time.sleep(POLL_SECONDS)
            if is_injected:
                self._await_healing(planned.fault.name, due)
        self._end_days()

    def broken(self) -> list[str]:
        """Return what is wrong at the end: faults that did not heal, what was published twice, files that are gone."""
        found = (slow_to_heal(self._healed), published_twice(self.field), missing_files(self.field))
        return [*chain.from_iterable(found), *super().broken()]

    def _await_healing(self, name: str, due: float) -> None:
        healing, given_up_at, is_told = Healing(self.field), time.monotonic() + PATIENCE_SECONDS, False
        try:
            while time.monotonic() < max(due, 0.0 if self._is_past(healing) else given_up_at):
                self.advance()
                if healing.seconds is not None and not is_told:
                    is_told = True
                    self.console.print(
                        f"[dim]{self.progress.elapsed():4.0f} s[/]  healed after {healing.seconds:.1f} s"
                    )
                self.progress.say(f"{len(self.injected)} faults; {name} is {'healed' if is_told else 'not healed yet'}")
                time.sleep(POLL_SECONDS)
        finally:
            healing.give_up()
        self._healed.append((name, healing.seconds))

    def _is_past(self, healing: Healing) -> bool:
        return healing.is_over() and not self.open

    def _end_days(self) -> None:
        """Let no run begin but those that have, and those that may until Airflow has read the DAG file again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (runs := self.field.dag_runs()) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        last = max((date.fromisoformat(run.start[:10]) for run in runs), default=FIRST_DAY) + SPARE_DAYS
        settings = self.field.settings()
        dags = {**settings["dags"], CALM: {**settings["dags"][CALM], "last_day": last.isoformat()}}
        self.field.change(last_day=last.isoformat(), dags=dags)


def slow_to_heal(healed: Sequence[tuple[str, float | None]]) -> Iterator[str]:
    """Return the faults that took too long; None are the seconds of one that did not heal while it was looked at."""
    for name, seconds in healed:
        if seconds is None:
            yield f"{name} was not healed within {PATIENCE_SECONDS:.0f} s"
        elif seconds > HEALED_WITHIN_SECONDS:
            yield f"{name} was healed after {seconds:.1f} s, not within {HEALED_WITHIN_SECONDS:.0f} s"


def published_twice(field: Field) -> Iterator[str]:
    """Return the versions that say again what the version before them says."""
    for day in field.days():
        for before, after in pairwise(_versions(field, day)):
            if _content(before) == _content(after):
                yield f"version {after.version} of {day} publishes again what version {before.version} has"


def missing_files(field: Field) -> Iterator[str]:
    """Return the files that a visible pointer or a checkpoint names, and that are not there."""
    for day in field.days():
        versions = _versions(field, day)
        for part in versions[-1].partitions if versions else ():
            names = files_in(field.store, part.folder)
            yield from (
                f"{part.folder}/{file}, which readers of {day} see, is gone" for file in part.files if file not in names
            )
    for name in files_in(field.store, checkpoints_folder(field.dag)):
        number = checkpoint_number(f"{checkpoints_folder(field.dag)}/{name}")
        checkpoint = None if number is None else read_checkpoint(field.store, field.dag, number)
        for path in () if checkpoint is None else files_named(checkpoint):
            if name_of(path) not in files_in(field.store, folder_of(path)):
                yield f"{path}, which checkpoint {number} names, is gone"


def _versions(field: Field, day: date) -> list[Pointer]:
    folder = pointer_folder(field.dag, field.sink, epoch_key(day))
    found = [pointer_from_json(field.store.read(f"{folder}/{name}")) for name in files_in(field.store, folder)]
    return sorted(found, key=lambda each: each.version)


def _content(pointer: Pointer) -> set[tuple[int, str]]:
    return {(part.subtask, part.digest) for part in pointer.partitions}
