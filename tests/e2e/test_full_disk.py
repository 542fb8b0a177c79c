"""A store on a disk that fills up, and one that hangs, under a running stack: tasks wait, and nothing is lost.

One stack and one small disk for all: each test leaves the run green. The one that hangs comes first: on a full disk,
what it hangs at is released.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ladder import expected_totals
from ladder_stack import LadderStack
from tests.servers.hung_file import hung_file
from tests.servers.small_disk import small_disk

from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import ResultEventRow, ResultRow
from weir_dev.stack.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

FLOWS = Path(__file__).parents[1] / "flows"
SECOND_DAY = "20240102T000000Z"
HUNG_SECONDS = 30
"""How long tasks wait for the store: long enough for a person to clear one that hangs."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    with small_disk(tmp_path_factory.mktemp("disk") / "store", megabytes=48) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def ladder(stack_request, disk, tmp_path_factory):
    """The stack, whose store is on the small disk; everything else of it is elsewhere."""
    control = tmp_path_factory.mktemp("ladder") / "control.json"
    control.write_text("{}")
    environment = {
        "WEIR_LADDER": str(control),
        "PYTHONPATH": str(FLOWS),
        "WEIR_STORE": f"file://{disk.path}",
        "WEIR_STORE_OPTIONS": f'{{"timeout": {HUNG_SECONDS}}}',
    }
    dags = shutil.copytree(FLOWS / "dags", control.parent / "dags")
    with Stack(stack_request(dags, environment=environment)) as stack:
        driver = LadderStack(stack, control)
        driver.wait(lambda: driver.api.has_dag("ladder"), "the DAG ladder")
        driver.api.unpause("ladder")
        yield driver
        driver.close()


@pytest.fixture
def green(ladder, disk):
    """The first day's run, green, and its tries."""
    run_id = ladder.run()
    ladder.await_green(run_id)
    yield ladder, run_id, ladder.tries(run_id)
    disk.make_room()
    ladder.let_go("doubled")


def failures(ladder, subtask, before):
    """The failures of `doubled` since `before`."""
    return ladder.failures_since("doubled", subtask, before[f"doubled[{subtask}]"])


def lost(ladder):
    """What was ever called lost; what a policy keeps may be released on a full disk."""
    with ladder.ledger.transaction() as session:
        return session.query(ResultEventRow).filter_by(state=PartitionState.LOST.value).count()


def test_a_task_that_hangs_can_be_cleared_gives_up_by_itself_and_goes_on_when_the_store_answers(green):
    ladder, run_id, before = green
    with hung_file(ladder.folder("numbers", 0) / "manifest.json"):
        ladder.clear(run_id, "doubled", 0)
        ladder.wait(lambda: states(ladder, before) == ["running"], "a try that hangs")
        assert ladder.api.clear("ladder", run_id, "doubled", 0, "cleared while it hangs", even_if_running=True)
        ladder.wait(lambda: "environment" in failures(ladder, 0, before), "a try that gives up")
        assert states(ladder, before)[0] == "fenced"
        assert lost(ladder) == 0
    ladder.await_green(run_id)
    assert set(ladder.again(run_id, before)) == {"doubled[0]"}
    assert ladder.totals() == expected_totals(ladder.settings())


def test_tasks_wait_for_room_on_a_disk_that_fills_up_and_the_outcome_is_the_same(green, disk):
    ladder, run_id, before = green
    ladder.hold("doubled")
    for subtask in (0, 1):
        ladder.clear(run_id, "doubled", subtask)
        ladder.await_reached("doubled", subtask)
    disk.fill()
    ladder.let_go("doubled")
    for subtask in (0, 1):
        failed = f"two failures of doubled[{subtask}]"
        ladder.wait(lambda at=subtask: failures(ladder, at, before).count("environment") >= 2, failed)
    assert lost(ladder) == 0
    disk.make_room()
    ladder.await_green(run_id)
    assert set(ladder.again(run_id, before)) == {"doubled[0]", "doubled[1]"}
    assert ladder.totals() == expected_totals(ladder.settings())
    for subtask in (0, 1):
        assert set(failures(ladder, subtask, before)) == {"environment", None}
        assert written(disk, "doubled", subtask) == committed(ladder, subtask)


def written(disk, stage, subtask):
    """The attempts of the first day that have left a result or a part of one."""
    return {folder.name for folder in disk.path.glob(f"ladder/20240101T000000Z/{stage}/*/{subtask}/*")}


def committed(ladder, subtask):
    """The attempts of the first day that have committed, whether their files are still there or not."""
    with ladder.ledger.transaction() as session:
        rows = session.query(ResultRow).filter_by(run="ladder@20240101T000000Z", stage="doubled", subtask=subtask)
        return {row.attempt for row in rows}


def test_a_run_that_begins_on_a_full_disk_goes_through_once_there_is_room(green, disk):
    ladder, _, _ = green
    disk.fill()
    ladder.change(last_day="2024-01-02")
    second = ladder.run("2024-01-02")
    ladder.wait(lambda: max(ladder.tries(second).values()) >= 2, "a second try on the full disk")
    assert "failed" not in ladder.states(second).values()
    disk.make_room()
    ladder.await_green(second)
    assert ladder.totals(SECOND_DAY) == expected_totals(ladder.settings())


def states(ladder, before):
    return [state for number, state, _ in ladder.attempts("doubled", 0) if number > before["doubled[0]"]]
