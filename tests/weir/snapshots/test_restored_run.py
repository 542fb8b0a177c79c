"""What the run of a restored epoch is pinned to: a form of the dataflow that sees in its files what was seen then."""

from dataclasses import replace

import pytest
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    checkpoints,
    go_on,
    keep_savepoints,
    restore,
    run_days,
    states_of,
)

from weir.dataflow import expectations, keyed_state
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import topology_of
from weir.recovery.adopt import adopt
from weir.snapshots.restored_run import topology_for
from weir.snapshots.source import read_checkpoint


def flow(ttl, **more):
    kept = keyed_state("history", key="k", schema="k BIGINT, n BIGINT", ttl=ttl)
    return aircraft(parallelism=1, states=(replace(kept, **more),), retained_checkpoints=10)


def test_a_run_that_has_rows_live_longer_by_now_is_pinned_to_what_the_checkpoint_says(world):
    """Otherwise the next epoch sees expired rows again, and resumes from digests without them."""
    world.airflow.deploy(flow("2 days"))
    run_days(world.airflow, 1, 2, 3)
    keep_savepoints(world, 3)
    world.airflow.deploy(flow("30 days"))
    run_days(world.airflow, 4)
    right = states_of(world, 4)
    adopt(world.services, f"ladder@{EPOCHS[2]}")
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    world.airflow.run_until_quiet()
    assert restore(world, "day3").is_repinned
    with world.ledger.transaction() as session:
        pinned = session.get_one(RunRow, f"ladder@{EPOCHS[2]}").pinned
    assert topology_of(pinned).dataflow.state("history").ttl == "2 days"
    world.airflow.clear_run_by_hand("scheduled__2013-01-04")
    go_on(world)
    assert set(world.airflow.states().values()) == {"success"}
    assert states_of(world, 4) == right


@pytest.mark.parametrize(
    ("present", "is_repinned"),
    [
        (flow("2 days"), False),
        (flow("2 days", quality=(expectations("history"),)), False),
        (flow("48 hours"), True),
        (flow("30 days"), True),
        (flow("2 days", schema="k BIGINT, n BIGINT, more STRING"), True),
    ],
)
def test_the_present_form_stays_where_it_declares_the_state_alike(world, present, is_repinned):
    world.airflow.deploy(flow("2 days"))
    run_days(world.airflow, 1)
    (number,) = checkpoints(world)
    made = read_checkpoint(world.services, "ladder", number).checkpoint
    found = topology_for(RunRow(pinned=present.to_json()), made, list(made.parts))
    assert (found[0].dataflow == present, found[1]) == (not is_repinned, is_repinned)
