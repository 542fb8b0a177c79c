"""Random losses, damage, kills, clears, full disks, changing sources, on real files and PostgreSQL: it comes out right.

The simulator (test_simulator.py) has many more seeds and faults, in memory; here files, databases and time limits are
real. A failure prints its seed: run `./weir test tests/simulation -k "[SEED]"` to see it again.
"""

import errno
import importlib.util
import random
import shutil
from pathlib import Path

import pytest

from weir.ledger.database.tables import ResultRow
from weir.restarts.strategy import ExponentialDelay
from weir.store.files import FreeSpace
from weir.store.local import LocalFiles
from weir.store.published import published
from weir.store.time_limit import SECONDS, TimeLimitedFiles
from weir.testing.fakes.airflow import Killed

_spec = importlib.util.spec_from_file_location("small_dataflow", Path(__file__).parents[1] / "weir/conftest.py")
small = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(small)

SOURCES = (("raw-clean", 0), ("raw-clean", 1), ("weather", -1))
PATIENT = ExponentialDelay(attempts_before_reset=10_000)


def new_world(folder, empty_ledger=None):
    (folder / "store").mkdir(parents=True)
    world = small.World(folder, small.ladder(), empty_ledger)
    world.airflow.strategy = PATIENT
    return world


def outcome(world):
    found = published(world.store, "ladder", "delays", "20130101T000000Z")
    return [(part.subtask, part.digest) for part in found.partitions]


class FillingFiles(TimeLimitedFiles):
    """Files on a disk that is full at times: what is there can be read and deleted, and nothing is added."""

    is_full = False

    def create(self, path, data):
        self._require_room()
        super().create(path, data)

    def replace(self, path, data):
        self._require_room()
        super().replace(path, data)

    def free_space(self):
        return FreeSpace(0, 2**30) if self.is_full else super().free_space()

    def _require_room(self):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


class Chaos:
    """One seed's faults."""

    def __init__(self, world, folder, seed):
        self.world, self.folder, self.random = world, folder, random.Random(seed)
        self.run = world.airflow.dag_run()
        self.faulty = True
        world.store.files = self.files = FillingFiles(LocalFiles(folder / "store"), SECONDS)
        world.airflow.during = lambda _key: self.maybe_kill(0.05)
        world.airflow.after_commit = lambda _key: self.maybe_kill(0.05)

    def maybe_kill(self, probability):
        if self.faulty and self.random.random() < 0.3:
            self.random.choice([self.damage, self.fill, self.clear, self.clear])()
        if self.faulty and self.random.random() < probability:
            raise Killed

    def act(self):
        acts = [self.damage, self.clear, self.change, self.cut_off, self.fill, self.steps, self.steps, self.steps]
        self.random.choice(acts)()

    def steps(self):
        for _ in range(self.random.randint(1, 12)):
            ready = self.world.airflow._ready()
            if ready is None:
                return
            self.world.airflow.time = max(self.world.airflow.time, ready.not_before or self.world.airflow.time)
            self.world.airflow.step(ready)

    def damage(self):
        with self.world.ledger.transaction() as session:
            folders = [row.folder for row in session.query(ResultRow).filter(ResultRow.is_current)]
        if not folders:
            return
        folder = self.folder / "store" / self.random.choice(sorted(folders))
        file = folder / "part-0.bin"
        kind = self.random.randrange(4)
        if kind == 0:
            shutil.rmtree(folder, ignore_errors=True)
        elif kind == 1:
            (folder / "manifest.json").unlink(missing_ok=True)
        elif file.exists():
            data = bytearray(file.read_bytes())
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            file.write_bytes(bytes(data[: len(data) // 2]) if kind == 2 else bytes(data))

    def clear(self):
        task = self.random.choice(list(self.world.airflow.tasks.values()))
        if task.state in ("success", "failed", "up_for_retry", "up_for_reschedule"):
            self.world.airflow._clear(task)

    def change(self):
        stage = self.random.choice(["raw", "weather", "joined"])
        self.world.content[stage] = self.random.randrange(3)

    def calm_down(self):
        self.faulty, self.world.airflow.reachable, self.files.is_full = False, True, False

    def fill(self):
        self.files.is_full = not self.files.is_full

    def cut_off(self):
        self.world.airflow.reachable = not self.world.airflow.reachable


@pytest.mark.parametrize("seed", range(4))
def test_after_any_faults_the_outcome_is_that_of_a_run_without(tmp_path, seed):
    check_any_faults(tmp_path, seed)


@pytest.mark.parametrize("seed", range(20, 21))
def test_after_any_faults_on_postgresql_too(tmp_path, seed, empty_postgres_ledger):
    check_any_faults(tmp_path, seed, empty_postgres_ledger)


def check_any_faults(tmp_path, seed, empty_ledger=None):
    world = new_world(tmp_path / "faulty", empty_ledger)
    chaos = Chaos(world, tmp_path / "faulty", seed)
    for _ in range(40):
        chaos.act()
    chaos.calm_down()
    world.airflow.run_until_quiet()
    # Stages whose function changed are re-run by a person; all else follows by itself.
    for task_id, map_index in (*SOURCES, ("joined", 0), ("joined", 1)):
        world.airflow.clear_by_hand(chaos.run, task_id, map_index)
    for task in world.airflow.tasks.values():
        if task.state in ("failed", "upstream_failed"):
            world.airflow._clear(task)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}

    calm = new_world(tmp_path / "calm")
    calm.content.update(world.content)
    calm.airflow.dag_run()
    calm.airflow.run_until_quiet()
    assert outcome(world) == outcome(calm)
