"""A ledger that has lost commits of sources that go on has the ranges that the records in the store tell."""

import pytest
from tests.weir.behind.rewinding import RewindingWorld
from tests.weir.keeping import epoch
from tests.weir.ledger.test_sources_that_go_on import fail, flow, read, there

from weir.rebuild.catching_up import catch_up
from weir.rebuild.rebuild import rebuild
from weir.recovery import adopt as adopting
from weir.recovery import resolving
from weir.recovery.adopt import adopt
from weir.testing.fakes.airflow import Killed

__all__ = ["there"]


def of(day):
    return f"ladder@{epoch(day)}"


def every(world, *days):
    return [item for day in days for item in read(world, day) or ()]


def unpublished_days(world, there, *days):
    """Run days that compute what they read and publish nothing; two items come after each one. Answers their runs."""
    fail(world, "joined-delays")
    runs = []
    for day in days:
        runs.append(world.airflow.dag_run(day))
        world.airflow.run_until_quiet()
        there["items"] += 2
    fail(world)
    return runs


def compute_again(world, runs):
    for run in runs:
        world.airflow.clear_run_by_hand(run)
        world.airflow.run_until_quiet()


@pytest.mark.parametrize("enters", [lambda services: catch_up(services, "ladder"), rebuild])
def test_a_range_that_was_forgotten_and_that_others_had_gone_on_from_is_not_read_again(tmp_path, there, enters):
    world = RewindingWorld(tmp_path, flow())
    runs = unpublished_days(world, there, 1, 2, 3)
    before = world.ledger.present()
    for day in (3, 2, 1):
        adopt(world.services, of(day))
    world.airflow.clear_by_hand(runs[0], "numbers")
    world.airflow.step(world.airflow.task(runs[0], "numbers"))
    assert every(world, 1, 2, 3) == list(range(9))
    world.ledger.go_back(before)
    world.ledger.new_process()
    enters(world.services)
    compute_again(world, runs)
    assert set(world.airflow.states().values()) == {"success"}
    assert every(world, 1, 2, 3) == list(range(9))


def killed(*_):
    raise Killed


def test_a_record_is_written_after_those_of_later_epochs_which_forgot_their_ranges_before(world, there, monkeypatch):
    """A ledger that is lost in between would have later ranges that go on from none."""
    world.airflow.deploy(flow())
    runs = unpublished_days(world, there, 1, 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(adopting, "write_record", killed)
        for day in (3, 2):
            with pytest.raises(Killed):
                adopt(world.services, of(day))
    adopt(world.services, of(1))
    world.lose_ledger()
    rebuild(world.services)
    compute_again(world, runs)
    assert set(world.airflow.states().values()) == {"success"}
    assert every(world, 1, 2, 3) == list(range(9))


class ResolvedMeanwhile(list):
    """The questions to a resolver; `at` is called once, while the second day asks."""

    def __init__(self, at):
        super().__init__()
        self._at = [at]

    def append(self, ctx):
        super().append(ctx)
        while ctx.epoch == epoch(2) and self._at:
            self._at.pop()()


def test_an_epoch_goes_on_only_from_a_range_that_is_in_the_store(world, there, monkeypatch):
    """The epoch before is resolved anew meanwhile, to the same end, and killed before its record is written."""
    world.airflow.deploy(flow())
    fail(world, "numbers")
    first = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    world.airflow.clear_run_by_hand(first)
    second = world.airflow.dag_run(2)

    def resolve_first_anew():
        with monkeypatch.context() as patch:
            patch.setattr(resolving, "write_record", killed)
            world.airflow.step(world.airflow.task(first, "numbers"))
        there["items"] += 2

    fail(world)
    there["asked"] = ResolvedMeanwhile(resolve_first_anew)
    world.airflow.step(world.airflow.task(second, "numbers"))
    there["items"] += 2
    world.lose_ledger()
    rebuild(world.services)
    compute_again(world, (first, second))
    assert every(world, 1, 2) == list(range(5))
