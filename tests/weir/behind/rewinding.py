"""A ledger, and an Airflow, that go back in time: what they had committed since is lost, and the store stays."""

import copy
import itertools
import sqlite3
from contextlib import closing

from sqlalchemy import make_url, select
from sqlalchemy.pool import QueuePool
from tests.builders.ledgers import new_ledger, sharing_engine
from tests.weir.restoring import aircraft
from tests.weir.small_dataflow import World

from weir.coordination.settled import CLEARS
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.pointer import pointer_from_json
from weir.ledger.database.tables import CheckpointRow, PendingClearRow, ResultRow, RunRow
from weir.ledger.ledger import Ledger
from weir.settling import Settling
from weir.testing.fakes.airflow import FakeAirflow
from weir.upkeep import RESULTS, settle_everywhere, sweep_everywhere


class RewindingLedger(Ledger):
    """Keeps what it was before each writing transaction. `at` is called before each one, with its number."""

    def __init__(self, engine, path):
        super().__init__(engine)
        self.path, self.moments, self.number, self.at = path, None, 0, lambda _number: None

    def _begun(self, dataflow):
        if dataflow is not None:
            if self.moments is not None:
                self.moments.append(self.present())
            self.number += 1
            self.at(self.number)
        return super()._begun(dataflow)

    def present(self):
        """The whole database."""
        with closing(sqlite3.connect(self.path)) as found:
            data = bytearray(found.serialize())
        data[18:20] = b"\1\1"  # not in WAL mode, which memory does not have
        return bytes(data)

    def go_back(self, data):
        """Put the database back as it was."""
        with closing(sqlite3.connect(":memory:")) as before, closing(sqlite3.connect(self.path)) as found:
            before.deserialize(data)
            before.backup(found)

    def new_process(self):
        """Forget what this process has seen."""
        self._seen.clear()


class ProcessesAirflow(FakeAirflow):
    """Each try runs in a process of its own; `at` is called before each one, with its number."""

    def __init__(self, *given):
        super().__init__(*given)
        self.number, self.at, self.moments = 0, lambda _number: None, None
        self.ids, self._given = {}, itertools.count()

    def step(self, task):
        if self.moments is not None:
            self.moments.append(self.present())
        self.number += 1
        self.at(self.number)
        present = self.tasks.get(task.key)
        if present is None or present.state not in (None, "up_for_retry", "up_for_reschedule"):
            return  # the database was put back
        self.services.ledger.new_process()
        super().step(present)

    def ti_id(self, task):
        """Each try has an id of its own, the first one from the beginning."""
        key = (task.key, max(task.try_number, 1))
        return self.ids.setdefault(key, f"ti-{next(self._given)}")

    def present(self):
        """What Airflow's database has."""
        for task in self.tasks.values():
            self.ti_id(task)
        return copy.deepcopy(
            {name: getattr(self, name) for name in ("tasks", "clear_numbers", "queued", "marks", "ids")}
        )

    def go_back(self, before):
        """Put the database back as it was."""
        for name, value in copy.deepcopy(before).items():
            setattr(self, name, value)


class RewindingWorld(World):
    """A world on such a ledger, under such an Airflow."""

    def __init__(self, folder, flow):

        def empty():
            path = folder / "ledger.db"
            new_ledger(path).close()

            return RewindingLedger(sharing_engine(make_url(f"sqlite:///{path}"), QueuePool), path)

        super().__init__(folder, flow, empty)

    def _open(self, flow):
        super()._open(flow)
        self.airflow = ProcessesAirflow(self.services, self.airflow.engine, flow)

    def upkeep(self):
        """One pass of every job of upkeep, in a process of its own."""
        self.ledger.new_process()
        settle_everywhere(self.services, RESULTS).require_whole()
        sweep_everywhere(self.services, self.airflow).require_whole()
        Settling(self.airflow.services, lambda: self.airflow).settle(None, CLEARS).require_whole()

    def heal(self):
        """Let everything happen that happens by itself; time passes, so that what is not needed is deleted."""
        for _ in range(3):
            self.airflow.run_until_quiet()
            self.upkeep()
        self.airflow.run_until_quiet()

    def published(self):
        """The digests of all versions, by sink, epoch and version."""
        found = {}
        for path in sorted((self.folder / "store/_sinks").glob("*/*/*/*.json")):
            pointer = pointer_from_json(path.read_bytes())
            found[pointer.sink, pointer.epoch, pointer.version] = [part.digest for part in pointer.partitions]
        return found

    def outcome(self):
        """What readers see: the digests of the highest version of each sink and epoch."""
        return {key[:2]: digests for key, digests in self.published().items()}

    def states(self):
        """The digests of the current results, by run, stage and subtask."""
        with self.ledger.transaction() as session:
            rows = session.scalars(select(ResultRow).where(ResultRow.is_current))
            return {(row.run, row.stage, row.subtask, row.layout): row.digest for row in rows}

    def wrong(self):
        """What should not be, after all has healed."""
        tasks = {name: state for name, state in self.airflow.states().items() if state != "success"}
        found = [f"{name} is {state}" for name, state in tasks.items()]
        with self.ledger.transaction() as session:
            rows = list(session.scalars(select(ResultRow).where(ResultRow.is_current, ResultRow.state == "finished")))
            found += [f"{row.id} is open" for row in session.scalars(select(RunRow).where(RunRow.closed_at.is_(None)))]
            pending = select(PendingClearRow).where(PendingClearRow.settled_at.is_(None))
            found += [f"a clear of {row.task_id} is pending" for row in session.scalars(pending)]
            live = select(CheckpointRow).where(CheckpointRow.status == "completed", CheckpointRow.subsumed_at.is_(None))
            numbers = [row.number for row in session.scalars(live)]
        for row in rows:
            manifest = from_json(Manifest, self.store.read(f"{row.folder}/manifest.json"))
            found += [
                f"{row.folder}/{file.name} is gone"
                for file in manifest.files
                if not (self.folder / "store" / row.folder / file.name).exists()
            ]
        for number in numbers:
            (path,) = (self.folder / "store").glob(f"*/_checkpoints/{number:08d}*")
            checkpoint = from_json(Checkpoint, path.read_bytes())
            found += [f"{file} is gone" for file in checkpoint.files if not (self.folder / "store" / file).exists()]
        digests = {}
        for (sink, epoch, version), parts in self.published().items():
            if digests.setdefault((sink, epoch), parts) != parts:
                found.append(f"version {version} of {sink} of {epoch} differs")
        return found


def days(world, *numbers):
    """Run days, each with a process of upkeep after it; the scheduler creates what is not there, oldest first."""
    for number in numbers:
        for each in range(1, number + 1):
            world.airflow.dag_run(each)
        world.airflow.run_until_quiet()
        world.upkeep()


def flow(**more):
    """State, a checkpoint and a sink each day; no result stays that is not needed, nor any older checkpoint."""
    return aircraft(parallelism=1, **{"retained_checkpoints": 1, "keep": "on_consumed", **more})


def undisturbed(folder, last, **more):
    """What these days come to if nothing goes back: the outcome, the states, and the numbers of moments."""
    world = RewindingWorld(folder, flow(**more))
    days(world, *range(1, last + 1))
    days(world, last)
    world.heal()
    assert world.wrong() == []
    return world.outcome(), world.states(), world.ledger.number, world.airflow.number


def check(world, last, expected):
    """Let the days run that are left, and all heal; then it is as if nothing had gone back."""
    days(world, *range(1, last + 1))
    days(world, last)  # Airflow may have lost runs by then: the scheduler creates them again
    world.heal()
    assert world.wrong() == []
    assert world.outcome() == expected[0]
    assert world.states() == expected[1]
    assert len(world.published()) == len(expected[0])
