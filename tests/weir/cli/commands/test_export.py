"""What is published is exported, also from the store of another build, which everything else refuses."""

import json

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import World, ladder

from weir.errors import Misconfigured, OtherBuild
from weir.store.catalogue import published
from weir.store.store import MARKER

EPOCH = "20130101T000000Z"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A run that has published its sinks."""
    made = World(tmp_path, ladder())
    made.run_first(1)
    use(monkeypatch, tmp_path)
    return made


def exported(folder):
    return sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def of_pointer(world, sink):
    found = published(world.store, "ladder", sink, EPOCH)
    return sorted(world.store.read(f"{part.folder}/{name}") for part in found.partitions for name in part.files)


def test_the_files_of_the_newest_version_are_copied(world, tmp_path):
    told = typed("export", str(tmp_path / "out"))
    assert str(tmp_path / "out" / "ladder" / "delays" / EPOCH) in told.replace("\n", "")
    assert exported(tmp_path / "out" / "ladder" / "delays" / EPOCH) == of_pointer(world, "delays") != []


def test_the_store_of_another_build_is_refused_and_exported(world, tmp_path):
    before = of_pointer(world, "delays")
    marker = json.loads(world.store.read(MARKER)) | {"formats": "another"}
    world.store.replace(MARKER, json.dumps(marker).encode())
    with pytest.raises(OtherBuild, match="`weir export FOLDER`"):
        typed("verify", "ladder")
    typed("export", str(tmp_path / "out"), "--dataflow", "ladder")
    assert exported(tmp_path / "out" / "ladder" / "delays") == before


def test_a_folder_that_is_there_is_not_written_into(world, tmp_path):
    typed("export", str(tmp_path / "out"))
    with pytest.raises(Misconfigured, check=of_kind("store.export_in_the_way")):
        typed("export", str(tmp_path / "out"))


def test_a_store_without_publications_has_nothing_to_export(tmp_path, monkeypatch):
    World(tmp_path, ladder())
    use(monkeypatch, tmp_path)
    assert "Nothing is published" in typed("export", str(tmp_path / "out"))
