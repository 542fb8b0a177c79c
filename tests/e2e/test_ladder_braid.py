"""Strands that read each other index by index, on a running stack: strand 3 failing or backtracking holds no other.

One DagRun for all; the tests run in order, and each leaves it green.
"""

import shutil

import pytest
from ladder_stack import LadderStack, declare

pytestmark = pytest.mark.e2e

ALL = {f"{task}[{strand}]" for task in ("numbers", "doubled") for strand in range(4)} | {"totals-sums", "weir_close"}


@pytest.fixture(scope="module")
def braid(stack, control):
    """The shared stack, and its braided dataflow."""
    declare(control, {"dags": {}})
    braid = LadderStack(stack, control, "braid")
    braid.wait(lambda: braid.api.has_dag("braid"), "the DAG braid")
    yield braid
    braid.close()


@pytest.mark.soak
def test_a_strand_that_fails_again_and_again_holds_no_other(braid):
    from braid import expected_totals

    failing = braid.control.parent / "fail-numbers"
    failing.touch()
    braid.api.unpause("braid")
    run_id = braid.run()
    for strand in range(3):
        braid.await_state(run_id, f"doubled[{strand}]", "success")
    braid.wait(lambda: braid.tries(run_id)["numbers[3]"] > 1, "strand 3 to have failed")
    states = braid.states(run_id)
    assert states["numbers[3]"] != "success"
    assert (states["doubled[3]"], states["totals-sums"]) == (None, None)
    failing.unlink()
    braid.await_green(run_id)
    tries = braid.tries(run_id)
    assert set(tries) == ALL
    assert {task for task, count in tries.items() if count > 1} == {"numbers[3]"}
    assert braid.totals() == expected_totals([0, 0, 0, 0])


@pytest.mark.soak
def test_a_strand_that_backtracks_holds_no_other(braid):
    from braid import expected_totals

    braid.api.unpause("braid")
    run_id = braid.run()
    braid.await_green(run_id)
    before = braid.tries(run_id)
    shutil.rmtree(braid.folder("numbers", 3))
    braid.hold("numbers")
    braid.clear(run_id, "doubled", 3)
    braid.await_reached("numbers", 3)
    braid.change(add=7)
    braid.clear(run_id, "numbers", 0)
    braid.wait(lambda: braid.tries(run_id)["doubled[0]"] > before["doubled[0]"], "strand 0 to be at its end again")
    braid.await_state(run_id, "doubled[0]", "success")
    states = braid.states(run_id)
    assert states["numbers[3]"] == "running"
    assert states["doubled[3]"] in {"up_for_retry", "up_for_reschedule", "deferred", None}
    braid.let_go("numbers")
    braid.await_green(run_id)
    again = braid.again(run_id, before)
    assert set(again) == {"numbers[0]", "doubled[0]", "numbers[3]", "doubled[3]", "totals-sums", "weir_close"}
    assert again["numbers[3]"] == 1
    assert braid.totals() == expected_totals([7, 0, 0, 0])
