"""Faults do what they say, to what they say, and can be undone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace

import psutil
import pytest
from tests.builders.ledgers import fast_folder
from tests.chaos.data_faults import Damage, DamageKind, DamageState, damage_result, damage_state
from tests.chaos.field import Field
from tests.chaos.server_faults import StopDatabase
from tests.chaos.task_faults import Frozen
from tests.weir.restoring import aircraft, run_days
from tests.weir.small_dataflow import World

from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir_dev.stack.processes import record

BYTES = bytes(range(200))


@pytest.fixture
def result(tmp_path):
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "part-0.parquet").write_bytes(BYTES)
    (tmp_path / "result" / "manifest.json").write_text("{}")
    return tmp_path / "result"


def test_a_lost_result_is_gone(result):
    assert damage_result(result, DamageKind.LOST, Random(1)) == "folder lost"
    assert not result.exists()


def test_a_lost_manifest_leaves_the_data(result):
    assert damage_result(result, DamageKind.MANIFEST, Random(1)) == "manifest lost"
    assert [file.name for file in result.iterdir()] == ["part-0.parquet"]


def test_a_cut_file_is_a_shorter_beginning(result):
    assert damage_result(result, DamageKind.CUT, Random(1)) == "file cut short"
    left = (result / "part-0.parquet").read_bytes()
    assert len(left) < len(BYTES)
    assert BYTES.startswith(left)


def test_a_flipped_bit_is_one_bit(result):
    assert "flipped" in damage_result(result, DamageKind.BIT, Random(1))
    after = (result / "part-0.parquet").read_bytes()
    assert sum((one ^ other).bit_count() for one, other in zip(BYTES, after, strict=True)) == 1


@pytest.mark.parametrize("kind", DamageKind)
def test_what_is_gone_already_is_not_damaged(result, kind):
    damage_result(result, DamageKind.LOST, Random(1))
    assert damage_result(result, kind, Random(1)) is None


@pytest.fixture
def state(tmp_path):
    """A store with a keyed state, and the files that it consists of, by path."""
    data = (Path(__file__).parents[1] / "golden" / "manifest-v1.json").read_bytes()
    files = [tmp_path / file.path for file in from_json(Manifest, data).state.files]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(BYTES)
    (tmp_path / "newest").mkdir()
    (tmp_path / "newest" / "manifest.json").write_bytes(data)
    return files


@pytest.mark.parametrize("seed", range(4))
def test_of_a_state_one_file_is_lost_or_cut_whoever_wrote_it(tmp_path, state, seed):
    done = damage_state(tmp_path, "newest", Random(seed))
    harmed = [file for file in state if not file.exists() or file.read_bytes() != BYTES]
    assert len(harmed) == 1
    assert done.endswith("lost" if not harmed[0].exists() else "cut short")


def test_a_state_that_is_gone_already_is_not_damaged(tmp_path):
    assert damage_state(tmp_path, "newest", Random(1)) is None


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield record("sleeper", process.pid)
    process.kill()
    process.wait()


def state_of(one):
    return psutil.Process(one.pid).status()


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_frozen_goes_on_when_its_time_is_up(sleeper):
    frozen = Frozen((sleeper,), 0.5)
    wait_for(lambda: state_of(sleeper) == psutil.STATUS_STOPPED)
    wait_for(frozen.is_over)
    wait_for(lambda: state_of(sleeper) != psutil.STATUS_STOPPED)


def test_what_is_frozen_can_be_thawed_at_once(sleeper):
    frozen = Frozen((sleeper,), 3600)
    wait_for(lambda: state_of(sleeper) == psutil.STATUS_STOPPED)
    assert not frozen.is_over()
    frozen.resume()
    wait_for(frozen.is_over)
    wait_for(lambda: state_of(sleeper) != psutil.STATUS_STOPPED)


class Database:
    """A server that notes what is done to it."""

    def __init__(self):
        self.done = []

    def stop(self):
        self.done.append("stop")

    def start(self):
        self.done.append("start")


def test_a_stopped_database_is_started_once_whoever_is_first():
    database = Database()
    injection = StopDatabase(database).inject(None, Random(4))
    injection.undo()
    wait_for(injection.is_over)
    assert database.done == ["stop", "start"]


@pytest.fixture
def kept():
    """The field on a dataflow of three days that keeps state, all closed."""
    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = World(folder, aircraft())
        run_days(world.airflow, 1, 2, 3)
        stack = SimpleNamespace(store_url=f"file://{folder}/store", ledger_url=f"sqlite:///{folder}/ledger.db")
        field = Field(stack, folder / "control.json", "ladder", "known")
        yield field
        field.ledger.close()


def test_state_is_damaged_by_the_fault_that_clears_who_makes_it_again_and_by_no_other(kept):
    damaged = [Damage(DamageKind.MANIFEST).inject(kept, Random(seed)) for seed in range(12)]
    assert {each.what.partition("[")[0] for each in damaged if each} == {"flights", "known"}
    damaged = [DamageState().inject(kept, Random(seed)) for seed in range(4)]
    assert {each.what.partition("[")[0] for each in damaged if each} == {"history"}
