"""A coordinator whose S3 loses, damages, refuses, forgets to answer and goes away: the outcome is right.

Begin, commit, loss, repair and close are those of the other simulations; here every one of their requests may fail.
"""

import pytest
from tests.servers.faulty_http import SLOW_DOWN, FaultyHttp
from tests.servers.s3 import options_of, running_s3
from tests.simulation.random_faults import PATIENT, SOURCES, Chaos, new_world, outcome
from tests.weir.small_dataflow import World, ladder

from weir.ledger.database.tables import ResultRow
from weir.store.errors import NotFound
from weir.store.store import Store

BUCKET = "weir-of-simulations"


class WorldOnS3(World):
    """The small dataflow, with its store elsewhere."""

    def __init__(self, folder, store):
        self.folder, self.store, self.content = folder, store, {}
        self._empty_ledger = self._empty_file
        self._open(ladder())


class ChaosOnS3(Chaos):
    """The faults of the other simulations, done to objects, and a store that goes away for a while."""

    def __init__(self, world, seed, proxy, store):
        on_s3 = world.store.files
        super().__init__(world, world.folder, seed)
        world.store.files = on_s3
        self.proxy, self.store = proxy, store

    def act(self):
        acts = [self.damage, self.damage, self.clear, self.change, self.go_away, self.steps, self.steps]
        self.random.choice(acts)()

    def fill(self):
        """S3 has no end."""

    def go_away(self):
        self.proxy.answer(SLOW_DOWN, times=self.random.randint(1, 12))
        self.steps()

    def damage(self):
        with self.world.ledger.transaction() as session:
            folders = [row.folder for row in session.query(ResultRow).filter(ResultRow.is_current)]
        if not folders:
            return
        folder, store = self.random.choice(sorted(folders)), self.store
        kind = self.random.randrange(3)
        try:
            if kind == 0:
                store.delete_folder(folder)
            elif kind == 1:
                store.delete(f"{folder}/manifest.json")
            else:
                data = bytearray(store.read(f"{folder}/part-0.bin"))
                data[self.random.randrange(len(data))] ^= 1
                store.replace(f"{folder}/part-0.bin", bytes(data))
        except NotFound:
            return


@pytest.fixture(scope="module")
def s3():
    with running_s3() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.mark.parametrize(
    ("seed", "acts"), [(0, 3), *(pytest.param(seed, 15, marks=pytest.mark.soak) for seed in (0, 1))]
)
def test_after_any_faults_on_s3_the_outcome_is_that_of_a_run_without(tmp_path, s3, seed, acts):
    with FaultyHttp(s3.url).running() as proxy:
        proxy.sometimes(seed, 0.03)
        (tmp_path / "faulty").mkdir()
        url = f"s3://{BUCKET}/{seed}"
        world = WorldOnS3(tmp_path / "faulty", Store.open(url, options_of(proxy.url) | {"timeout": 2}))
        world.airflow.strategy = PATIENT
        chaos = ChaosOnS3(world, seed, proxy, Store.open(url, s3.storage_options))
        for _ in range(acts):
            chaos.act()
        chaos.calm_down()
        world.airflow.run_until_quiet()
        for task_id, map_index in (*SOURCES, ("joined", 0), ("joined", 1)):
            world.airflow.clear_by_hand(chaos.run, task_id, map_index)
        world.airflow.run_until_quiet()
        assert set(world.airflow.states().values()) == {"success"}
        assert proxy.injected > 5
        world.store = chaos.store

    calm = new_world(tmp_path / "calm")
    calm.content.update(world.content)
    calm.airflow.dag_run()
    calm.airflow.run_until_quiet()
    assert outcome(world) == outcome(calm)
