"""Stores behind any fsspec file system that creates exclusively: here one that stands for Google's."""

import importlib

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured, Retryable
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store

registry = importlib.import_module("fsspec.registry")  # `fsspec.registry` itself is what the module holds


class Buckets(MemoryFileSystem):
    """An object store: buckets hold keys, and there is no folder without files. It has one bucket."""

    protocol = "gs"
    store = {}  # noqa: RUF012  # as in fsspec: all instances share it
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("gs://").strip("/")

    def __init__(self, *, token=None):
        super().__init__()
        assert token == "hush"

    def mkdir(self, path, create_parents=True, **kwargs):
        raise AssertionError("no bucket is to be made")

    def ls(self, path, detail=True, **kwargs):
        found = [each for each in super().ls(path, detail=True, **kwargs) if each["name"].strip("/") != path.strip("/")]
        if not found:
            raise FileNotFoundError(path)
        return found

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        if not self._strip_protocol(path).startswith("/bucket/"):
            raise FileNotFoundError("no such bucket")
        super().pipe_file(path, value, mode=mode, **kwargs)


@pytest.fixture
def gs(monkeypatch):
    monkeypatch.setitem(registry._registry, "gs", Buckets)
    Buckets.store.clear()
    return lambda url, **options: Store.open(url, {"token": "hush"} | options)


def test_an_empty_prefix_becomes_a_store_and_keeps_its_contract(gs):
    store = gs("gcs://bucket/weir", timeout=20)
    assert store.initialise() == gs("gs://bucket/weir").initialise()
    store.create("folder/file", b"content")
    with pytest.raises(AlreadyExists):
        store.create("folder/file", b"other")
    assert (store.read("folder/file"), store.list("folder"), store.folders("")) == (
        b"content",
        [("file", 7)],
        ["folder"],
    )
    store.delete_folder("folder")
    with pytest.raises(NotFound):
        store.list("folder")


def test_a_bucket_that_is_not_there_is_not_made_and_is_no_loss(gs):
    store = gs("gs://other/weir")
    with pytest.raises(Misconfigured, match="the bucket is gone"):
        store.initialise()
    for write in (store.create, store.replace):
        with pytest.raises(Retryable, match="the bucket is gone"):
            write("file", b"content")


def test_a_file_system_whose_package_is_not_installed_says_which(gs):
    with pytest.raises(Misconfigured, check=of_kind("store.not_opened", package="adlfs")):
        Store.open("abfss://box@lake.dfs.core.windows.net/weir")
