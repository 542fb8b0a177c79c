"""The bytes at rest in the store stay flat over thirty epochs, whatever happens in them."""

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from weir.assembly import coordinator_of
from weir.dataflow import Dataflow
from weir.dataflow.retention_settings import RetentionSettings
from weir.formats.manifest import RELEASED_NOTE
from weir.formats.paths import MANIFEST
from weir.restarts.strategy import RestartStrategy
from weir.store.walk import files_below
from weir.testing.fakes.airflow import Killed
from weir.upkeep import scrub_everywhere, sweep_everywhere

EPOCHS = 30
DAY = timedelta(days=1)
OFTEN = RestartStrategy.from_options(
    {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "1 s",
    }
)


def at_rest(world):
    """How many data files are in the store, by stage; and how many files that are not data, and their bytes."""
    data, records, record_bytes = Counter(), 0, 0
    for file in files_below(world.store, ["ladder", "_sinks"]):
        parts = file.path.split("/")
        if parts[0] == "ladder" and not parts[2].startswith("_") and parts[-1] not in {MANIFEST, RELEASED_NOTE}:
            data[parts[2]] += 1
        else:
            records += 1
            record_bytes += file.bytes
    return data, records, record_bytes


def a_day(world, day, fault=lambda _run: None):
    """One epoch: a DagRun, perhaps a fault in the middle of it, then what upkeep does in a day."""
    run = world.airflow.dag_run(day)
    fault(run)
    world.airflow.run_until_quiet()
    scrub_everywhere(world.services, world.airflow).require_whole()
    world.airflow.run_until_quiet()
    world.airflow.time += DAY
    sweep_everywhere(world.services, world.airflow).require_whole()
    assert set(world.airflow.states().values()) == {"success"}


@pytest.fixture
def keeping(world):
    def keep(policy, **settings):
        flow = world.airflow.flow
        world.airflow.flow = Dataflow(flow.name, flow.stages, keep=policy)
        services = replace(world.services, retention=RetentionSettings(**settings))
        world.services = world.airflow.services = services
        world.airflow.coordinator = coordinator_of(services)
        return world

    return keep


INTERMEDIATES = {"clean", "weather", "joined", "totals", "routes"}
OF_A_RUN = {"clean": 2, "weather": 1, "joined": 2, "totals": 2, "routes": 1}


@pytest.mark.parametrize(
    ("policy", "runs", "epochs"),
    [
        ("on_consumed", 0, 3),
        ("end_of_run", 0, 3),
        ("2 runs", 2, 4),
        ("3 days", 2, 5),  # a day ends with its run
        *(pytest.param(*each, EPOCHS, marks=pytest.mark.soak) for each in (("2 runs", 2), ("5 days", 4))),
    ],
)
def test_intermediates_at_rest_are_those_of_the_runs_that_are_kept(keeping, policy, runs, epochs):
    world = keeping(policy)
    for day in range(1, epochs + 1):
        a_day(world, day)
        data, _, _ = at_rest(world)
        published = data.pop("delays")
        assert published == day
        assert data == {stage: count * min(day, runs) for stage, count in OF_A_RUN.items() if runs}, day


@pytest.mark.parametrize(("days", "epochs"), [(3, 9), pytest.param(10, EPOCHS, marks=pytest.mark.soak)])
def test_records_and_versions_stay_flat_where_runs_expire(keeping, days, epochs):
    world = keeping("end_of_run", expire_runs=days * DAY, keep_published=days * DAY)
    seen = []
    for day in range(1, epochs + 1):
        a_day(world, day)
        data, records, size = at_rest(world)
        seen.append((sum(data.values()), records, size))
    assert len(set(seen[days + 2 :])) == 1, seen


class Saboteur:
    """Kills tasks, takes results away and clears finished ones, as a seed says."""

    def __init__(self, world, seed):
        self.world, self.dice = world, random.Random(seed)
        self.kills = 0
        world.airflow.during = self.perhaps_kill

    def perhaps_kill(self, _key):
        if self.kills < 3 and self.dice.random() < 0.2:
            self.kills += 1
            raise Killed

    def fault(self, run):
        """What happens in the middle of a day: to the run that has begun, or to one of the days before."""
        self.kills = 0
        airflow = self.world.airflow
        for _ in range(self.dice.randint(1, 8)):
            airflow.step(airflow._ready())
        others = sorted({key.run_id for key in airflow.tasks if key.run_id != run})[-3:]
        if not others:
            return
        key = self.dice.choice([key for key in airflow.tasks if key.run_id in others])
        if self.dice.random() < 0.5:
            self.take_away(key.run_id)
        airflow.clear_by_hand(key.run_id, key.task_id, key.map_index)

    def take_away(self, run_id):
        epoch = run_id[-10:].replace("-", "") + "T000000Z"
        files = [file for file in files_below(self.world.store, [f"ladder/{epoch}"]) if file.path.endswith(".bin")]
        for file in self.dice.sample(files, min(2, len(files))):
            self.world.store.delete(file.path)


@pytest.mark.parametrize(
    ("seed", "epochs"), [(1, 6), *(pytest.param(seed, 15, marks=pytest.mark.soak) for seed in (1, 2, 3))]
)
def test_kills_losses_and_clears_leave_nothing_behind(keeping, seed, epochs):
    world = keeping("end_of_run", orphan_age=timedelta(hours=1), scrub_share=1.0)
    world.airflow.strategy = OFTEN
    world.airflow.time = datetime.now(UTC)  # the store's files are as old as it says
    saboteur = Saboteur(world, seed)
    for day in range(1, epochs + 1):
        a_day(world, day, saboteur.fault)
        data, _, _ = at_rest(world)
        assert data == {"delays": day}, day
