"""What `weir chaos --ha` does to a redundant stack, and what it looks for in the store afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import date
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace

import psutil
import pytest
from tests.chaos.field import Field
from tests.chaos.ha import missing_files, published_twice, slow_to_heal, write_ha_control
from tests.chaos.ha_faults import LoseComponent, LosePrimary, LoseReplica, Work, ha_faults
from tests.chaos.plan import planned_faults

from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path, pointer_path
from weir.formats.pointer import Pointer, PublishedPartition
from weir.state.checkpoint_content import files_named
from weir.store.store import Store
from weir_dev.stack.processes import record
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase, StackRequest, StackState, write_state

DAY = date(2024, 1, 1)
EPOCH = "20240101T000000Z"


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Faults


def test_each_server_is_killed_and_frozen_before_any_is_again_and_commits_are_lost_once():
    faults = ha_faults(None)
    names = {planned.fault.name for planned in islice(planned_faults(3, faults), len(faults))}
    servers = {"scheduler", "api-server", "dag-processor", "triggerer", "primary", "replica"}
    assert names == {*servers, *(f"{name}-freeze" for name in servers), "primary-loss"}


@pytest.fixture
def field(tmp_path):
    """A stack of two schedulers that sleep, each with a child, as the keeper records it."""
    stack = Stack(StackRequest(folder=tmp_path / "stack", dags=(tmp_path,), plugins=tmp_path, cache=tmp_path))
    stack.folder.mkdir()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with ExitStack() as ends:
        started = {}
        for name in ("scheduler", "scheduler-2"):
            process = ends.enter_context(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
            ends.callback(end, psutil.Process(process.pid))
            started[name] = record(name, process.pid)
            wait_for(lambda pid=process.pid: psutil.Process(pid).children())
        write_state(stack.folder, StackState(phase=Phase.UP, processes=tuple(started.values()), ready=tuple(started)))
        yield SimpleNamespace(stack=stack)


def end(process):
    for each in [*process.children(recursive=True), process]:
        each.kill()


SCHEDULERS = ("scheduler", "scheduler-2")


def states(field):
    return [one.is_alive() and psutil.Process(one.pid).status() for one in field.stack.state.processes]


def test_a_killed_component_is_gone_with_its_children_and_the_other_goes_on(field):
    children = [psutil.Process(one.pid).children()[0] for one in field.stack.state.processes]
    injection = LoseComponent("scheduler", SCHEDULERS, is_frozen=False).inject(field, Random(1))
    injection.undo()
    wait_for(lambda: states(field).count(False) == 1)
    lost = states(field).index(False)
    wait_for(lambda: not children[lost].is_running() or children[lost].status() == psutil.STATUS_ZOMBIE)
    assert children[1 - lost].is_running()
    assert f"SIGKILL to {SCHEDULERS[lost]}" in injection.what
    assert not injection.is_over()  # until the keeper has started another
    state = field.stack.state
    write_state(field.stack.folder, StackState(phase=Phase.UP, processes=state.processes[1 - lost :][:1]))
    assert LoseComponent("scheduler", SCHEDULERS, is_frozen=False).inject(field, Random(1)) is None


def test_a_frozen_component_is_killed_when_it_is_undone_at_the_latest(field):
    injection = LoseComponent("scheduler-freeze", SCHEDULERS, is_frozen=True).inject(field, Random(1))
    wait_for(lambda: psutil.STATUS_STOPPED in states(field))
    injection.undo()
    wait_for(lambda: states(field).count(False) == 1)


class Pair:
    """A pair of servers that notes what is done to it."""

    def __init__(self):
        self.done = []
        self.primary = SimpleNamespace(
            **{what: lambda what=what: self.done.append(what) for what in ("kill", "freeze")}
        )
        self.replica = self.primary

    def __getattr__(self, name):
        return lambda: self.done.append(name)


@pytest.mark.parametrize(
    ("fault", "done"),
    [
        (LosePrimary("primary", Pair()), ["kill", "fail_over", "add_replica"]),
        (LosePrimary("primary", Pair(), is_frozen=True), ["freeze", "fail_over", "add_replica"]),
        (LoseReplica("replica", Pair()), ["kill", "lose_replica", "add_replica"]),
        (LoseReplica("replica", Pair(), is_frozen=True), ["freeze", "lose_replica", "add_replica"]),
    ],
)
def test_after_each_fault_of_a_database_there_is_a_primary_with_a_replica(fault, done):
    injection = fault.inject(None, Random(1))
    injection.undo()
    assert injection.is_over()
    assert fault.pair.done == done


def test_work_that_fails_is_said_where_it_is_waited_for():
    def fail():
        raise AssertionError("no replica could be made")

    work = Work(0.0, fail)
    work.finish()
    with pytest.raises(AssertionError, match="no replica"):
        work.is_over()


def test_a_fault_that_takes_too_long_to_heal_or_does_not_is_told():
    told = list(slow_to_heal([("primary", 29.9), ("scheduler", 30.5), ("replica", None)]))
    assert told == ["scheduler was healed after 30.5 s, not within 30 s", "replica was not healed within 180 s"]


def test_what_is_expected_of_kept_state_is_the_sum_of_all_days_so_far(tmp_path):
    write_ha_control(tmp_path / "control.json")
    stack = SimpleNamespace(store_url=str(tmp_path), ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    field = Field(stack, tmp_path / "control.json")
    first, third = (field.expected(f"2024010{day}T000000Z") for day in (1, 3))
    assert [row["total"] for row in third] == [3 * row["total"] for row in first]
    field.ledger.close()


# What is in the store


@pytest.fixture
def view(tmp_path):
    """A store in which readers see one day, and one checkpoint: all that they name is there."""
    found = SimpleNamespace(
        store=Store.open(str(tmp_path)), dag="ladder", sink="sums", days=lambda: [DAY], folder=tmp_path
    )
    publish(found, 1, "d1")
    write(found, "ladder/r/part.parquet")
    data = (Path(__file__).parents[1] / "golden" / "checkpoint-v1.json").read_bytes()
    write(found, checkpoint_path("ladder", 7), data)
    for path in files_named(from_json(Checkpoint, data)):
        write(found, path)
    return found


def write(view, path, data=b"x"):
    (view.folder / path).parent.mkdir(parents=True, exist_ok=True)
    (view.folder / path).write_bytes(data)


def publish(view, version, digest):
    part = PublishedPartition(0, "ladder/r", ("part.parquet",), 1, digest)
    pointer = Pointer(
        dataflow="ladder",
        sink="sums",
        epoch=EPOCH,
        version=version,
        attempt="a",
        spark_schema="n int",
        partitions=(part,),
        published_at="2024-01-02T00:00:00+00:00",
        ledger="",
    )
    write(view, pointer_path("ladder", "sums", EPOCH, version), pointer.to_json())


def test_a_store_that_has_all_that_is_named_is_sound(view):
    publish(view, 2, "d2")
    assert [*missing_files(view), *published_twice(view)] == []


def test_a_version_that_says_what_the_one_before_says_is_found(view):
    publish(view, 2, "d1")
    publish(view, 3, "d3")
    publish(view, 4, "d1")
    assert list(published_twice(view)) == ["version 2 of 2024-01-01 publishes again what version 1 has"]


def test_a_file_that_readers_see_and_that_is_gone_is_found(view):
    (view.folder / "ladder/r/part.parquet").unlink()
    assert list(missing_files(view)) == ["ladder/r/part.parquet, which readers of 2024-01-01 see, is gone"]


def test_a_file_that_a_checkpoint_names_and_that_is_gone_is_found(view):
    data = (view.folder / checkpoint_path("ladder", 7)).read_bytes()
    gone = sorted(files_named(from_json(Checkpoint, data)))[0]
    (view.folder / gone).unlink()
    assert list(missing_files(view)) == [f"{gone}, which checkpoint 7 names, is gone"]
