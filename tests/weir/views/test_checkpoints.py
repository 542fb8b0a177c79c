"""Checkpoints as the ledger alone knows them, and drawn."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.command_line import typed, use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import history, keeps_state

from weir.store.store import Store
from weir.views.charts import chart_of_bytes
from weir.views.checkpoints import checkpoint_views


@pytest.fixture(scope="module")
def world():
    with fast_folder() as folder:
        world = keeps_state(ReaderWorld(folder, history()))
        world.airflow.deploy(history())
        for day in (1, 2, 3):
            world.run(day)
        yield world
        world.ledger.close()


def test_without_a_look_all_is_known_but_what_is_in_the_manifests(world, tmp_path):
    looked = checkpoint_views(world.services, "ladder")
    assert all(each.amplification for each in looked)
    known = checkpoint_views(replace(world.services, store=Store.open(str(tmp_path / "none"))), "ladder", looks=False)
    assert [replace(each, amplification=None) for each in looked] == known


def test_the_newest_are_drawn_a_column_each(world):
    drawn = str(chart_of_bytes(checkpoint_views(world.services, "ladder"), 2))
    assert "checkpoint 2 of 20130102T000000Z" in drawn
    assert "checkpoint 3 of 20130103T000000Z" in drawn
    assert "checkpoint 1 " not in drawn
    assert drawn.count('class="part0" x=') == 2


def test_the_command_writes_the_same_drawing_with_its_style(world, tmp_path, monkeypatch):
    use(monkeypatch, world.folder)
    file = tmp_path / "bytes.svg"
    typed("checkpoints", "ladder", "--svg", str(file))
    drawn = file.read_text()
    root = ElementTree.fromstring(drawn)  # noqa: S314  it is ours
    assert [each.tag.rpartition("}")[2] for each in root][:2] == ["style", "rect"]
    assert drawn.count('class="part0" x=') == 3


def test_without_checkpoints_a_chart_is_empty():
    assert "<title>" not in str(chart_of_bytes([], 60))
