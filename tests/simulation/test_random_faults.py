"""Random losses, damage, kills, clears, full disks, changing sources, on real files and PostgreSQL: it comes out right.

The simulator (test_simulator.py) has many more seeds and faults, in memory; here files, databases and time limits are
real. A failure prints its seed: run `./weir test tests/simulation -k "[SEED]"` to see it again.
"""

import pytest
from tests.simulation.random_faults import SOURCES, Chaos, new_world, outcome


@pytest.mark.parametrize(
    ("seed", "acts"), [(0, 20), *(pytest.param(seed, 40, marks=pytest.mark.soak) for seed in (0, 1, 2, 3))]
)
def test_after_any_faults_the_outcome_is_that_of_a_run_without(tmp_path, seed, acts):
    check_any_faults(tmp_path, seed, acts)


@pytest.mark.parametrize(("seed", "acts"), [(20, 10), pytest.param(20, 40, marks=pytest.mark.soak)])
def test_after_any_faults_on_postgresql_too(tmp_path, seed, acts, empty_postgres_ledger):
    check_any_faults(tmp_path, seed, acts, empty_postgres_ledger)


def check_any_faults(tmp_path, seed, acts, empty_ledger=None):
    world = new_world(tmp_path / "faulty", empty_ledger)
    chaos = Chaos(world, tmp_path / "faulty", seed)
    for _ in range(acts):
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
