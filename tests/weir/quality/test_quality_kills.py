"""A process is killed at any step of an evaluation: the next attempt completes or undoes it."""

from dataclasses import replace

import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.checking import NOT_NULL, attempts, checks, gated, results, use, with_suites, write_suite
from tests.weir.small_dataflow import Saved, World, ladder
from tests.weir.state.test_checkpoint_kills import DyingLedger, DyingStore, Fate

from weir.dataflow import expectations
from weir.quality.check_queries import suspected_inputs
from weir.testing.fakes.airflow import FakeAirflow, Killed
from weir.testing.fakes.engine import FakeEngine

RUN = "scheduled__2013-01-01"
POLICIES = ("fail", "backtrack")


class DyingLedgerAtVerdicts(DyingLedger):
    """A verdict is performed, not only begun: its process may be killed just before it, or just behind."""

    def perform(self, dataflow, work):
        with self.transaction(dataflow) as session:
            return work(session)


@pytest.fixture(scope="module")
def before_clean():
    """A run of which the checked stage comes next, for each policy."""
    with fast_folder() as folder:
        saved = {}
        for policy in POLICIES:
            (folder / policy / "store").mkdir(parents=True)
            world = World(folder / policy, ladder())
            write_suite(with_suites(world), "rows", (NOT_NULL, {"meta": {"blames": ["weather"]}}))
            world.airflow.deploy(gated(expectations("rows", policy=policy)))
            world.airflow.dag_run()
            while (ready := world.airflow._ready()).key.task_id != "clean":
                world.airflow.step(ready)
            saved[policy] = Saved(world, folder / f"{policy}-saved")
        yield saved


def doomed(world, nth):
    """The world as the process of the next try sees it, which is killed at its n-th change."""
    fate = Fate(nth)
    services = replace(
        world.services, ledger=DyingLedgerAtVerdicts(world.ledger, fate), store=DyingStore(world.store, fate)
    )
    airflow = FakeAirflow(services, FakeEngine(services.store, world.content), world.airflow.flow)
    for name in Saved.STATE:
        setattr(airflow, name, getattr(world.airflow, name))
    return airflow, fate


def step_bad_try(world, nth):
    """One try of the checked stage whose rows are bad, killed at its n-th change; whether it came to that."""
    airflow, fate = doomed(world, nth)
    airflow.engine.violated["clean"] = {NOT_NULL}
    task = airflow.task(RUN, "clean")
    try:
        airflow.step(task)
    except Killed:  # while its failure was booked
        task.state, task.not_before = "up_for_retry", airflow.time
    for name in Saved.STATE:
        setattr(world.airflow, name, getattr(airflow, name))
    return fate.left <= 0


@pytest.mark.parametrize("policy", POLICIES)
def test_bad_rows_are_never_current_whenever_their_try_was_killed(before_clean, policy):
    nth, endings = 0, set()
    while True:
        nth += 1
        with fast_folder() as folder:
            world = before_clean[policy].go_on(folder)
            use(world, replace(world.services, expectations=str(folder / "expectations")))
            if not step_bad_try(world, nth):
                break
            first = attempts(world, "clean")[:1]
            bad = [row for row in results(world, "clean") if [row.attempt] == [each.id for each in first]]
            assert all((row.state, row.is_current) == ("quarantined", False) for row in bad)
            told = [suspected_inputs(row) for row in checks(world)]
            world.airflow.run_until_quiet()
            endings.add(end_of(world, policy, [each for row in told for each in row]))
            current = [row for row in results(world, "clean") if row.is_current]
            assert not {row.attempt for row in current} & {row.attempt for row in bad}
            world.ledger.close()
    assert nth > 8  # registered, gathered, computed, written, judged, failed
    assert endings == {"success", "failed"}


def end_of(world, policy, blamed):
    """How the checked stage has ended, the rows of its next tries being good; and that what was owed was done."""
    task, weather = world.airflow.task(RUN, "clean"), world.airflow.task(RUN, "weather")
    if policy == "backtrack":
        assert len(weather.runs) == (2 if blamed else 1)
        assert (task.state == "failed") == bool(blamed)  # weather came out equal
    if task.state == "success":
        assert world.airflow.task(RUN, "weir_close").state == "success"
    return task.state
