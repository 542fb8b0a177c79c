"""Random faults of real files, of Airflow and of sources, drawn from a seed, for the simulations of this folder."""

import errno
import random
import shutil

from tests.weir.small_dataflow import World, ladder

from weir.ledger.database.tables import ResultRow
from weir.restarts.strategy import ExponentialDelay
from weir.store.catalogue import published
from weir.store.files import FreeSpace
from weir.store.local import LocalFiles
from weir.store.time_limit import SECONDS, TimeLimitedFiles
from weir.testing.fakes.airflow import Killed

SOURCES = (("raw-clean", 0), ("raw-clean", 1), ("weather", -1))
PATIENT = ExponentialDelay(attempts_before_reset=10_000)


def new_world(folder, empty_ledger=None):
    (folder / "store").mkdir(parents=True)
    world = World(folder, ladder(), empty_ledger)
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
