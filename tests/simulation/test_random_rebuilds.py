"""Ledgers that are lost and built again, and runs that move to another parallelism, in the middle of random faults."""

import pytest
from tests.simulation.random_faults import SOURCES, Chaos, new_world, outcome
from tests.weir.small_dataflow import ladder

from weir.ledger.database.tables import RunRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt

RUN = "ladder@20130101T000000Z"


class LosingChaos(Chaos):
    """Faults, and now and then the whole ledger is gone, or the DAG file changes."""

    def act(self):
        self.random.choice(
            [super().act, super().act, super().act, super().act, self.lose_ledger, self.rebuild, self.adopt]
        )()

    def lose_ledger(self):
        self.world.lose_ledger()
        self.rebuild()

    def rebuild(self):
        if (self.folder / "store/weir-store.json").exists():  # or nothing has begun yet
            rebuild(self.world.services)

    def adopt(self):
        self.files.is_full = False  # a person looks first whether there is room
        self.world.airflow.deploy(ladder(self.random.choice([2, 3, 4])))
        with self.world.ledger.transaction() as session:
            has_begun = session.get(RunRow, RUN) is not None
        if has_begun:
            adopt(self.world.services, RUN)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_after_lost_ledgers_and_adoptions_the_outcome_is_that_of_a_run_without(tmp_path, seed):
    check_lost_ledgers_and_adoptions(tmp_path, seed)


@pytest.mark.soak
def test_lost_ledgers_and_adoptions_on_postgresql(tmp_path, empty_postgres_ledger):
    check_lost_ledgers_and_adoptions(tmp_path, 16, empty_postgres_ledger)


def check_lost_ledgers_and_adoptions(tmp_path, seed, empty_ledger=None):
    world = new_world(tmp_path / "faulty", empty_ledger)
    chaos = LosingChaos(world, tmp_path / "faulty", seed)
    for _ in range(40):
        chaos.act()
    chaos.calm_down()
    world.airflow.run_until_quiet()
    if chaos.random.random() < 0.5:
        chaos.lose_ledger()
    world.airflow.clear_run_by_hand(chaos.run)
    world.airflow.run_until_quiet()
    assert {task.state for task in world.airflow.tasks.values()} <= {"success", "removed"}

    calm = new_world(tmp_path / "calm")
    calm.airflow.deploy(world.airflow.flow)
    calm.content.update(world.content)
    calm.airflow.dag_run()
    calm.airflow.run_until_quiet()
    assert outcome(world) == outcome(calm)


@pytest.mark.parametrize(
    ("seed", "acts"), [(8, 20), *(pytest.param(seed, 40, marks=pytest.mark.soak) for seed in (8, 9, 10))]
)
def test_closing_a_run_heals_what_a_lost_ledger_had_owed(tmp_path, seed, acts):
    """Nothing is cleared but the closing task, and the sources, whose changes only a person can know."""
    world = new_world(tmp_path / "faulty")
    chaos = LosingChaos(world, tmp_path / "faulty", seed)
    chaos.adopt = chaos.steps
    for _ in range(acts):
        chaos.act()
    chaos.lose_ledger()
    chaos.calm_down()
    for task_id, index in (*SOURCES, ("joined", 0), ("joined", 1)):
        world.airflow.clear_by_hand(chaos.run, task_id, index)
    for task in world.airflow.tasks.values():
        if task.state in ("failed", "upstream_failed"):
            world.airflow._clear(task)
    world.airflow.run_until_quiet()
    world.airflow.clear_by_hand(chaos.run, "weir_close")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}

    calm = new_world(tmp_path / "calm")
    calm.content.update(world.content)
    calm.airflow.dag_run()
    calm.airflow.run_until_quiet()
    assert outcome(world) == outcome(calm)
