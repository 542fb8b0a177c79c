"""All files below a folder, on every kind of store."""

from weir.store.store import Store
from weir.store.walk import FoundFile, files_below


def test_files_are_found_at_any_depth_with_their_sizes(store):
    for path in ("a/x", "a/b/y", "a/b/c/d/z", "other/x"):
        store.create(path, path.encode())
    assert files_below(store, ["a", "nowhere"]) == (
        FoundFile("a/b/c/d/z", 9),
        FoundFile("a/b/y", 5),
        FoundFile("a/x", 3),
    )
    assert files_below(store, ["nowhere"]) == ()


def test_entries_are_files_and_folders(store):
    store.create("a/x", b"1")
    store.create("a/b/y", b"")
    assert store.entries("a") == (("b", None), ("x", 1))


def test_empty_folders_go_and_others_stay(store):
    store.create("a/x", b"1")
    store.create("a/b/c/y", b"1")
    store.delete("a/b/c/y")
    store.prune("a")
    assert store.entries("a") == (("x", 1),)
    store.prune("nowhere")


def test_an_empty_folder_goes_itself(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    (tmp_path / "store/a/b").mkdir(parents=True)
    store.prune("a")
    assert not (tmp_path / "store/a").exists()
