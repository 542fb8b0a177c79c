"""Folders of targets: a file is there whole or not at all, by a link or as a copy."""

from __future__ import annotations

import hashlib
import os
import time

import pytest
from tests.messages.kinds import of_kind

from weir.connections import S3Account
from weir.errors import Misconfigured, Retryable
from weir.sinks import PutBytes, TargetAway, VersionFile, folders
from weir.sinks.folders import open_folder
from weir.testing.sink_contract import LocalReach, killed_at

DATA = b"abc" * 1000
NAME = "_epoch=1/file.parquet"


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "file").write_bytes(DATA)
    return folder


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


FILE = VersionFile("file", len(DATA), 1, hashlib.sha256(DATA).hexdigest())


def opened(lake, store, *, is_local=True):
    return open_folder(str(lake), S3Account(), LocalReach(store, is_local=is_local), PutBytes())


def counted(folder):
    return folder._counted.linked, folder._counted.copied_by_server, folder._counted.copied


def test_a_file_is_linked_on_one_file_system_and_copied_else(store, lake):
    linking, copying = opened(lake, store), opened(lake, store, is_local=False)
    linking.put("a/file", FILE)
    copying.put("b/file", FILE)
    assert [(lake / name).stat().st_nlink for name in ("a/file", "b/file")] == [2, 1]
    assert (counted(linking), counted(copying)) == ((len(DATA), 0, 0), (0, 0, len(DATA)))


def test_a_file_that_is_there_is_kept(store, lake):
    opened(lake, store).put(NAME, FILE)
    again = opened(lake, store, is_local=False)
    again.put(NAME, FILE)
    assert (counted(again), (lake / NAME).stat().st_nlink) == ((0, 0, 0), 2)
    assert (again.has(NAME, len(DATA)), again.has(NAME, 1), again.has("none", 1)) == (True, False, False)


def test_a_file_that_was_cut_is_put_again_and_the_store_keeps_its_own(store, lake):
    folder = opened(lake, store, is_local=False)
    folder.put(NAME, FILE)
    os.truncate(lake / NAME, 10)
    opened(lake, store).put(NAME, FILE)
    assert ((lake / NAME).read_bytes(), (store / "file").read_bytes()) == (DATA, DATA)


def test_an_old_file_is_copied_since_a_vacuum_would_take_its_link_for_an_orphan(store, lake):
    old = time.time() - folders.LINK_SECONDS - 60
    os.utime(store / "file", (old, old))
    opened(lake, store).put(NAME, FILE)
    found = (lake / NAME).stat()
    assert (found.st_nlink, found.st_mtime > old + 60) == (1, True)
    assert (store / "file").stat().st_mtime == pytest.approx(old)


@pytest.mark.parametrize(("data", "is_local"), [(DATA[:-1], True), (DATA[:-1], False), (b"x" + DATA[1:], False)])
def test_a_file_that_is_damaged_in_the_store_is_not_put(store, lake, data, is_local):
    """What is linked is not read: the closing task has just compared it with its digest."""
    (store / "file").write_bytes(data)
    with pytest.raises(Retryable, check=of_kind("sinks.file_damaged", bytes="3000", file_path="file")):
        opened(lake, store, is_local=is_local).put(NAME, FILE)
    assert list(lake.rglob("*.*")) == []


@pytest.mark.parametrize("is_local", [True, False])
def test_a_process_that_is_killed_at_any_line_leaves_a_file_whole_or_absent(store, lake, is_local):
    line, is_killed = 0, True
    while is_killed:
        line += 1
        name = f"{line}/file"
        is_killed = killed_at(
            line, {folders.__file__}, lambda name=name: opened(lake, store, is_local=is_local).put(name, FILE)
        )
        assert not (lake / name).exists() or (lake / name).read_bytes() == DATA
        opened(lake, store, is_local=is_local).put(name, FILE)
        assert (lake / name).read_bytes() == DATA
    assert line > 20


def test_the_folder_above_must_be_there_and_the_folder_not(store, lake):
    opened(lake / "delays", store).require()
    with pytest.raises(TargetAway, check=of_kind("sinks.folder_away")):
        opened(lake / "none" / "delays", store).require()
    with pytest.raises(TargetAway, check=of_kind("sinks.folder_away")):
        opened(lake / "delays", store).put(NAME, FILE)
    assert list(lake.iterdir()) == []


def test_a_right_that_is_missing_is_a_persons_matter(store, lake, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)  # root may write everywhere
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_refused")):
        opened(lake, store).put(NAME, FILE)
