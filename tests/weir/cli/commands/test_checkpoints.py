"""What a person reads of checkpoints."""

import json

import pytest
from tests.weir.small_dataflow import Saved, World
from typer.testing import CliRunner

from weir.cli.main import app
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.errors import Misconfigured
from weir.testing.fakes.ledgers import fast_folder

FLOW = Dataflow(
    "ladder",
    [
        source("flights", "m:flights"),
        Stage(
            "aircraft", "m:a", [blocking("flights", by="k")], state=keyed_state("history", key="k", schema="k BIGINT")
        ),
        sink("aircraft", "known"),
    ],
)


@pytest.fixture(scope="module")
def four_days():
    """A dataflow with state after four days."""
    with fast_folder() as folder:
        (folder / "world/store").mkdir(parents=True)
        world = World(folder / "world", FLOW)
        for day in range(1, 5):
            world.airflow.dag_run(day)
            world.airflow.run_until_quiet()
        yield Saved(world, folder / "saved")


@pytest.fixture
def typed(four_days, tmp_path, monkeypatch):
    four_days.go_on(tmp_path)
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("COLUMNS", "250")

    def run(*words):
        done = CliRunner().invoke(app, words, catch_exceptions=True)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    return run


def test_each_checkpoint_is_told_with_its_files_and_by_which_one_it_was_subsumed(typed):
    found = json.loads(typed("checkpoints", "--json"))["checkpoints"]
    assert [(each["number"], each["status"], each["subsumed_by"]) for each in found] == [
        (1, "subsumed", 4),
        (2, "completed", None),
        (3, "completed", None),
        (4, "completed", None),
    ]
    assert [(each["files"], each["new_files"], each["shared_files"]) for each in found] == [
        (1, 1, 0),
        (2, 1, 1),
        (3, 1, 2),
        (4, 1, 3),
    ]
    newest = found[-1]
    assert newest["epoch"] == "20130104T000000Z"
    assert newest["full_bytes"] == 4 * newest["incremental_bytes"] > 0
    assert newest["duration"] == 0
    assert newest["amplification"]["reading"] == 4


def test_the_table_says_the_same(typed):
    lines = [line for line in typed("checkpoints", "ladder").splitlines() if "2013010" in line]
    assert len(lines) == 4
    assert "subsumed" in lines[0]
    assert [word for word in lines[3].replace("│", " ").split() if word.isdecimal()][-4:] == ["4", "1", "3", "4"]


def test_a_dataflow_that_is_not_known_is_said(typed):
    with pytest.raises(Misconfigured, match="it knows ladder"):
        typed("checkpoints", "leiter")
