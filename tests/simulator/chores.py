"""The processes of housekeeping, and those that a person starts on the command line or in a notebook.

Invariant: each may be killed, refused and suspended at any step, several at once; one that is killed cleans nothing up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from typing import Final

from tests.simulator.airflow import SimulatedAirflow
from tests.simulator.engine import meaning_of
from tests.simulator.events import Event, Verb
from tests.simulator.history.ledger_view import Attempt
from tests.simulator.observer import require
from tests.simulator.process import NO_FAULT, Process, ProcessFault
from tests.simulator.rows import applied, unpacked, visible, within
from tests.simulator.world import World

from weir.coordination.read_leases import claimed
from weir.coordination.run_records import write_records
from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.errors import LedgerBehind, WeirError
from weir.formats.checkpoint import KeyedSnapshot, StatePartition
from weir.integrity.scrub import scrub_dataflow
from weir.ledger.leases import drop_leases
from weir.ledger.runs import runs_of
from weir.rebuild.rebuild import rebuild
from weir.recovery.versions import declare_equal
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.sweep import sweep
from weir.retention.versions import expire_versions
from weir.snapshots.automatic import maintain_savepoints
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create, tidy
from weir.snapshots.seal import seal_plan, seal_run
from weir.snapshots.source import NotThere
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.engine import TAIL
from weir.upkeep import RESULTS, TARGETS, scrub_everywhere, settle_everywhere, sweep_everywhere

FORK: Final = "forked"
"""The dataflow that a fork begins."""


class Chore(Enum):
    """A chore of upkeep."""

    RELEASE = "release"
    SWEEP = "sweep"
    DRY_SWEEP = "dry sweep"
    CHECKPOINTS = "checkpoints"
    DELIVER = "deliver"
    RECORDS = "records"
    VERSIONS = "versions"
    SCRUB = "scrub"
    TARGETS = "targets"
    MINUTES = "minutes"
    """The whole task of every few minutes."""
    HOURLY = "hourly"
    DAILY = "daily"


COLLECTING: Final = (Chore.RELEASE, Chore.SWEEP, Chore.DRY_SWEEP, Chore.VERSIONS, Chore.MINUTES, Chore.HOURLY)


def upkeep_process(airflow: SimulatedAirflow, chore: Chore, *, is_reclaiming: bool = False) -> Process:
    """Return a process that does a chore; it has not begun."""
    return _process(airflow, lambda: _do(airflow, chore, is_reclaiming=is_reclaiming))


def upkeep(world: World, event: Event) -> None:
    """Do a chore; where nothing is collected, one that collects keeps only checkpoints."""
    chore = Chore(event.how or Chore.DELIVER.value)
    if chore in COLLECTING and not world.scene.collects:
        chore = Chore.CHECKPOINTS if world.scene.keeps_state else Chore.RECORDS
    world.run(upkeep_process(world.airflow, chore), event.fault)


def end_early_results(world: World) -> None:
    """Check that upkeep takes back what is shown early, now that all runs are closed, or found to be deleted."""
    if world.airflow.flow.publishes_early:
        world.run(upkeep_process(world.airflow, Chore.HOURLY), NO_FAULT)
        world.run(upkeep_process(world.airflow, Chore.TARGETS), NO_FAULT)
        require("no_provisional_rows_remain", sorted(world.history.published.provisional))


def collect(world: World, event: Event) -> None:
    """Release results that are no longer needed, or sweep the store."""
    if not world.scene.collects:
        if world.scene.keeps_state:
            world.run(upkeep_process(world.airflow, Chore.CHECKPOINTS), event.fault)
        return
    if event.how == "dry":
        before = world.ledger.connection.total_changes, set(world.files.data)
        process = upkeep_process(world.airflow, Chore.DRY_SWEEP, is_reclaiming=bool(event.number % 2))
        world.run(process, event.fault)
        # A ledger that has lost commits is marked by whoever finds out.
        changes = before[0] if world.is_lossy else world.ledger.connection.total_changes
        is_same = before == (changes, set(world.files.data))
        require("a_dry_sweep_changes_nothing", [] if is_same else ["the ledger or the store has changed"])
        return
    is_reclaiming = event.how == "pressed" or (event.how == "sweep" and event.number % 2 == 1)
    chore = Chore.SWEEP if event.how == "sweep" else Chore.RELEASE
    process = upkeep_process(world.airflow, chore, is_reclaiming=is_reclaiming)
    if is_reclaiming:
        world.pressed.add(process)
    world.run(process, event.fault)


def _do(airflow: SimulatedAirflow, chore: Chore, *, is_reclaiming: bool) -> None:
    if chore is Chore.RELEASE:
        airflow.collect(None, is_reclaiming=is_reclaiming)
    elif chore in _CHORES:
        _CHORES[chore](airflow.services, airflow)
    elif _has_begun(airflow):
        # Unknown folders of any age: a running attempt's folder is known.
        is_dry, none = chore is Chore.DRY_SWEEP, timedelta()
        sweep(
            airflow.services,
            airflow.flow.name,
            older_than=none,
            is_full=True,
            is_dry=is_dry,
            is_reclaiming=is_reclaiming,
        )


def _keep_snapshots(services: Services, airflow: SimulatedAirflow) -> None:
    maintain_checkpoints(services, airflow.flow.name, is_thorough=True)
    _keep_savepoints(services, airflow)


def _do_hourly(services: Services, airflow: SimulatedAirflow) -> None:
    _require_expected(airflow, sweep_everywhere(services, airflow))
    _keep_savepoints(services, airflow)


def _keep_savepoints(services: Services, airflow: SimulatedAirflow) -> None:
    """Create automatic savepoints, and drop old ones, where the dataflow declares any."""
    if airflow.flow.savepoint_every is not None:
        maintain_savepoints(services, airflow.flow.name, _counted)


_CHORES: Final[dict[Chore, Callable[[Services, SimulatedAirflow], object]]] = {
    Chore.CHECKPOINTS: _keep_snapshots,
    Chore.DELIVER: lambda _, airflow: _deliver(airflow),
    Chore.TARGETS: lambda services, airflow: _require_expected(airflow, settle_everywhere(services, TARGETS)),
    Chore.RECORDS: lambda services, airflow: write_records(services, airflow.flow.name),
    Chore.VERSIONS: lambda services, airflow: expire_versions(services, airflow.flow.name),
    Chore.SCRUB: lambda services, airflow: scrub_dataflow(services, airflow, airflow.flow.name),
    Chore.MINUTES: lambda services, airflow: _require_expected(airflow, settle_everywhere(services, RESULTS, TARGETS)),
    Chore.HOURLY: _do_hourly,
    Chore.DAILY: lambda services, airflow: _require_expected(airflow, scrub_everywhere(services, airflow)),
}


def _deliver(airflow: SimulatedAirflow) -> None:
    """Deliver clears, and notifications in a scene with receivers."""
    airflow.upkeep()
    if airflow.flow.notify:
        airflow.notify()


def _require_expected(airflow: SimulatedAirflow, kept: Settled) -> None:
    """Upkeep goes on after an error, and reports it."""
    for error in kept.failed.values():
        airflow.require_expected(error)


def _has_begun(airflow: SimulatedAirflow) -> bool:
    with airflow.services.ledger.transaction() as session:
        return airflow.flow.name in {row.dataflow for row in runs_of(session)}


# Readers


def read(world: World, event: Event) -> None:
    """Take a read lease on a result, as a notebook does."""
    there = sorted(result.id for result in world.history.ledger.current.values() if result.state == "finished")
    if there:
        wanted = [there[event.number % len(there)]]
        with suppress(LedgerBehind):
            with world.ledger.transaction(world.scene.flow.name) as session:
                claim = claimed(session, world.services, world.scene.flow.name, wanted, "notebook")
            world.notebooks.append(claim.holder)


def stop_reading(world: World, event: Event) -> None:
    """Drop a notebook's read lease."""
    if world.notebooks:
        holder = world.notebooks.pop(event.number % len(world.notebooks))
        with suppress(LedgerBehind), world.ledger.transaction(world.scene.flow.name) as session:
            drop_leases(session, holder)


# Savepoints, restores and forks


def make_savepoint(world: World, event: Event) -> None:
    """Make a savepoint of a retained checkpoint."""
    kept = sorted(row.number for row in world.history.snapshots.known.values() if row.is_retained)
    if kept:
        asked = SavepointRequest(world.airflow.flow.name, kept[event.number % len(kept)])
        run_by_hand(world, lambda: create(world.services, asked, _counted), event.fault)


def _counted(store: Store, state: KeyedSnapshot, part: StatePartition, expired_until: int | None) -> int:
    """Count the rows of a partition, whose files are no Parquet here. Raises NotThere."""
    rows: dict[int, str] = {}
    for file in part.files:
        try:
            changes = unpacked(store.read(file.path)[:-TAIL].decode())
        except (NotFound, ValueError) as error:
            raise NotThere(f"{file.path} of {state.state.name} cannot be counted: {error}") from error
        rows = applied(rows, within(changes, file.key_groups))
    return len(visible(rows, expired_until))


def go_back(world: World, event: Event) -> None:
    """Restore the dataflow, or begin a fork of it, from a checkpoint or savepoint."""
    kept = sorted(row.number for row in world.history.snapshots.known.values() if row.is_usable)
    if kept:
        fork = FORK if event.verb is Verb.FORK else None
        wish = RestoreRequest(world.airflow.flow.name, str(kept[event.number % len(kept)]), fork)
        run_by_hand(world, lambda: restore(world.services, wish), event.fault)


def seal_day(world: World, event: Event) -> None:
    """Have later days go on without a day, where that is possible."""
    if world.runs:
        day = world.runs[event.number % len(world.runs)]
        run_by_hand(world, lambda: _seal(world, day), event.fault)


def _seal(world: World, day: str) -> None:
    plan = seal_plan(world.services, day)
    if not plan.impossible:
        seal_run(world.services, plan, world.airflow, "a person")


def tidy_savepoints(world: World, event: Event) -> None:
    """Complete or abandon the savepoints of processes that were killed long ago."""
    run_by_hand(world, lambda: tidy(world.services, world.airflow.flow.name), event.fault)


def complete_savepoints(world: World) -> None:
    """Complete or abandon the savepoints of processes that were killed, when these are old enough."""
    if any(row.is_savepoint and row.status == "pending" for row in world.history.snapshots.known.values()):
        world.airflow.wait((world.services.retention.orphan_age + world.history.slack) // timedelta(minutes=1))
        run_by_hand(world, lambda: tidy(world.services, world.airflow.flow.name), NO_FAULT)


# The ledger


def rebuild_ledger(world: World, event: Event) -> None:
    """Rebuild the ledger of the dataflow from the store; a person is told which runs are to be closed again."""
    process = _process(world.airflow, lambda: _rebuild(world))
    world.rebuilders.add(process)
    world.run(process, event.fault)


def _rebuild(world: World) -> None:
    world.unanswered_rebuilds += 1  # one that is killed tells nobody
    for built in rebuild(world.services, world.airflow.flow.name):
        world.to_be_closed |= {run.run_id for run in built.runs if run.is_outdated}
    world.unanswered_rebuilds -= 1


# Code


def declare_same(world: World, event: Event) -> None:
    """Declare two versions of a stage's code equal that are: a person knows what they give."""
    pairs = sorted(_same(world))
    if pairs:
        stage, old, new = pairs[event.number % len(pairs)]
        dataflow = world.airflow.flow.name
        run_by_hand(world, lambda: declare_equal(world.services, stage, old, new, "a person", dataflow), event.fault)


def _same(world: World) -> set[tuple[str, str, str]]:
    """Return stages, each with two versions of the code of its task that give the same."""
    history, found = world.history, set()
    rows = [row for row in history.ledger.attempts.values() if row.code and row.archive in history.archives]
    for row in rows:
        written = {each.stage for each in history.ledger.results.values() if each.attempt == row.id}
        others = [each for each in rows if each.region == row.region and (each.code or "") > (row.code or "")]
        for other in others:
            if _meaning(world, row) == _meaning(world, other):
                found |= {(stage, row.code or "", other.code or "") for stage in written}
    return found


def _meaning(world: World, row: Attempt) -> list[int]:
    """Return what the functions of a task give, in the code of an attempt."""
    edits = world.history.archives[row.archive or ""]
    stages = world.history.topology_of(row.run).stages_of(row.region)
    return [meaning_of(edits.get(stage.name, 0)) for stage in stages]


def run_by_hand(world: World, do: Callable[[], object], fault: ProcessFault) -> None:
    """Run a command in a process of its own."""
    world.run(_process(world.airflow, do), fault)


def _process(airflow: SimulatedAirflow, do: Callable[[], object]) -> Process:
    def work(_mine: Process) -> None:
        with suppress(Killed):
            try:
                do()
            except WeirError as error:
                airflow.require_expected(error)

    airflow.started += 1
    return airflow.new_process(airflow.started, work)
