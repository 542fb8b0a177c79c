import errno
import hashlib
import json
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Internal, Misconfigured, OtherBuild, Retryable
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import FORMATS, Store, opener
from weir.testing.fakes.stores import FailingStore

RACERS = 20
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def local(tmp_path):
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


def root_of(store: Store) -> Path:
    return Path(store.url.removeprefix("file://"))


def all_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_was_created_can_be_read_whole_and_in_parts(store):
    store.create("a/b/file", b"0123456789")
    assert store.read("a/b/file") == b"0123456789"
    assert store.read("a/b/file", 3) == b"3456789"
    assert store.read("a/b/file", 3, 4) == b"3456"
    assert store.read("a/b/file", 3, 0) == b""
    assert store.read("a/b/file", 8, 100) == b"89"
    assert store.read("a/b/file", 100, 5) == b""
    assert store.size("a/b/file") == 10


def test_create_refuses_a_name_that_is_taken_and_leaves_the_first_content(store):
    store.create("file", b"first")
    with pytest.raises(AlreadyExists, check=of_kind("store.exists_already")):
        store.create("file", b"second")
    assert store.read("file") == b"first"


def test_a_file_has_the_time_at_which_the_store_wrote_it(store):
    before = datetime.now(UTC)
    store.create("file", b"1")
    # File systems count in steps of a few milliseconds.
    assert before - timedelta(seconds=1) <= store.modified("file") <= datetime.now(UTC)
    with pytest.raises(NotFound):
        store.modified("other")


def test_replace_takes_the_place_of_the_earlier_file(store):
    store.replace("a/pointer", b"one")
    store.replace("a/pointer", b"two")
    assert store.read("a/pointer") == b"two"


def test_not_found_is_definite_for_files_folders_and_names_below_a_file(store):
    store.create("a/file", b"x")
    for path in ("nothing", "no/such/file", "a/other"):
        with pytest.raises(NotFound, match=path):
            store.read(path)
        with pytest.raises(NotFound, match=path):
            store.size(path)
        with pytest.raises(NotFound, match=path):
            store.list(path)
    with pytest.raises(NotFound):
        store.size("a")


def test_list_answers_files_with_sizes_by_name_and_folders_apart(store):
    for name in ("b", "a", ".hidden", "folder/inner"):
        store.create(f"top/{name}", b"x" * len(name))
    assert store.list("top") == [(".hidden", 7), ("a", 1), ("b", 1)]
    assert store.folders("top") == ["folder"]


def test_deleting_what_is_gone_is_fine(store):
    store.create("a/b/c", b"x")
    store.delete("a/b/c")
    store.delete("a/b/c")
    store.create("a/b/d", b"x")
    store.delete_folder("a")
    store.delete_folder("a")
    with pytest.raises(NotFound):
        store.read("a/b/d")


def test_deleting_a_folder_as_a_file_is_refused(local):
    local.create("a/b", b"x")
    with pytest.raises(Retryable):
        local.delete("a")
    assert local.read("a/b") == b"x"


@pytest.mark.parametrize("path", ["/a", "a//b", "../a", "a/./b", "a/../../b", "a/"])
def test_a_path_that_leaves_the_store_or_is_not_normal_is_refused(store, path):
    with pytest.raises(Internal):
        store.read(path)


def test_the_whole_store_is_never_deleted(store):
    with pytest.raises(Internal):
        store.delete_folder("")


def test_of_twenty_racing_threads_exactly_one_creates(store):
    barrier = threading.Barrier(RACERS)

    def race(number):
        barrier.wait()
        try:
            store.create("deep/er/target", f"writer {number}".encode() * 1000)
        except AlreadyExists:
            return None
        return number

    for attempt in range(5):
        with ThreadPoolExecutor(RACERS) as pool:
            winners = [number for number in pool.map(race, range(RACERS)) if number is not None]
        assert len(winners) == 1, attempt
        assert store.read("deep/er/target") == f"writer {winners[0]}".encode() * 1000
        assert [name for name, _ in store.list("deep/er")] == ["target"]
        store.delete_folder("deep")


def race_in_process(url, options, number, barrier, winners):
    barrier.wait(60)
    try:
        Store.open(url, options).create("deep/er/target", f"writer {number}".encode() * 1000)
    except AlreadyExists:
        return
    winners.put(number)


def winner_of_race(url, options):
    """Let 20 processes create one file; the one that won."""
    context = get_context("fork")
    barrier, winners = context.Barrier(RACERS), context.Queue()
    racers = [
        context.Process(target=race_in_process, args=(url, options, number, barrier, winners))
        for number in range(RACERS)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    winner = winners.get(timeout=10)
    assert winners.empty()
    return winner


def test_of_twenty_racing_processes_exactly_one_creates_and_no_temporary_file_is_left(local):
    winner = winner_of_race(local.url, {})
    assert local.read("deep/er/target") == f"writer {winner}".encode() * 1000
    assert all_names(root_of(local)) == ["deep", "deep/er", "deep/er/target", "weir-store.json"]


def test_of_twenty_racing_processes_exactly_one_creates_on_s3(s3, s3_server):
    winner = winner_of_race(s3.url, s3_server.storage_options)
    assert s3.read("deep/er/target") == f"writer {winner}".encode() * 1000


def die_at_call(url, step, action):
    """Ends the process, as a kill would, just before the step-th system call that matters."""
    calls = 0

    def counted(function):
        def call(*args, **options):
            nonlocal calls
            if calls == step:
                os._exit(9)
            calls += 1
            return function(*args, **options)

        return call

    for name in ("open", "write", "fsync", "link", "unlink", "replace", "rename", "mkdir", "close"):
        setattr(os, name, counted(getattr(os, name)))
    getattr(Store.open(url), action)("a/b/target", b"new" * 100_000)
    os._exit(0)


@pytest.mark.parametrize("action", ["create", "replace"])
def test_a_crash_at_any_step_leaves_nothing_or_the_whole_file(local, action):
    context = get_context("fork")
    seen = set()
    for step in range(100):
        process = context.Process(target=die_at_call, args=(local.url, step, action))
        process.start()
        process.join(60)
        try:
            assert local.read("a/b/target") == b"new" * 100_000
            seen.add("whole")
        except NotFound:
            seen.add("nothing")
        folder = root_of(local) / "a" / "b"
        left = [name for name in all_names(folder) if name != "target"]
        assert all(name.startswith(".target.") for name in left)
        local.delete_folder("a")
        if process.exitcode == 0:
            break
    assert seen == {"whole", "nothing"}
    assert process.exitcode == 0


def test_a_crash_during_replace_keeps_the_old_content_or_has_the_new(local):
    context = get_context("fork")
    for step in range(100):
        local.replace("a/b/target", b"old")
        process = context.Process(target=die_at_call, args=(local.url, step, "replace"))
        process.start()
        process.join(60)
        assert local.read("a/b/target") in (b"old", b"new" * 100_000)
        if process.exitcode == 0:
            break
    assert local.read("a/b/target") == b"new" * 100_000


def test_file_and_folders_are_synced_before_create_answers(local, monkeypatch):
    synced = []

    def fsync(descriptor, original=os.fsync):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    local.create("a/b/file", b"x")
    root = str(root_of(local))
    assert synced[0] == root  # now holds "a"
    assert synced[1] == f"{root}/a"
    assert synced[2].startswith(f"{root}/a/b/.file.")
    assert synced[3] == f"{root}/a/b"


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE]
)
def test_an_error_that_is_not_a_definite_not_found_is_retryable_and_names_the_path(local, number):
    failing = FailingStore(local)
    failing.create("a/file", b"x")
    failing.fail("a*", OSError(number, os.strerror(number)))
    for ask in (failing.read, failing.size, failing.list, failing.delete, failing.delete_folder):
        with pytest.raises(Retryable, match=r"store/a.*" + os.strerror(number)):
            ask("a" if ask == failing.list else "a/file")
    with pytest.raises(Retryable):
        failing.create("a/other", b"x")
    failing.heal()
    assert failing.read("a/file") == b"x"


def test_a_link_into_a_disk_that_is_not_mounted_is_not_a_loss(local, tmp_path):
    (root_of(local) / "flow").symlink_to(tmp_path / "unmounted")
    for ask in (local.read, local.size, local.list):
        with pytest.raises(Retryable, check=of_kind("store.failed")):
            ask("flow/epoch/file")


def test_a_root_that_vanished_is_not_made_again_by_a_write(local):
    root = root_of(local)
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        local.create("a/b/file", b"x")
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        local.replace("file", b"x")
    assert not root.exists()


def test_initialise_writes_a_marker_once_and_reads_it_from_then_on(store, reopen):
    first = store.initialise()
    assert store.initialise() == first
    assert reopen().initialise() == first
    store.create("data", b"x")
    assert store.initialise() == first
    store.check_marker(first)


def test_racing_initialisations_agree_on_one_id(reopen):
    with ThreadPoolExecutor(RACERS) as pool:
        ids = set(pool.map(lambda _: reopen().initialise(), range(RACERS)))
    assert len(ids) == 1


def test_initialise_refuses_a_folder_that_holds_other_things(tmp_path):
    (tmp_path / "thesis.txt").write_text("do not touch")
    with pytest.raises(Misconfigured, check=of_kind("store.folder_not_empty", unexpected=["thesis.txt"])):
        Store.open(str(tmp_path)).initialise()


def test_initialise_refuses_a_place_that_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, check=of_kind("store.unusable")):
        Store.open(str(tmp_path / "file" / "store")).initialise()


@pytest.mark.parametrize("existing", [True, False])
def test_initialise_refuses_a_read_only_folder_and_says_what_to_do(existing):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if existing:
            Store.open(name).initialise()
        folder.chmod(0o555)
        before = os.geteuid()
        try:
            if before == 0:
                os.seteuid(65534)  # root may write anywhere
            with pytest.raises(Misconfigured, check=of_kind("store.unusable")):
                Store.open(name).initialise()
        finally:
            os.seteuid(before)
            folder.chmod(0o755)


@pytest.mark.parametrize("other", [{"version": 2}, {"formats": "another"}, {"formats": None}])
def test_the_store_of_another_build_is_refused_with_the_way_out(local, other):
    expected = local.initialise()
    marker = json.loads(local.read("weir-store.json")) | other
    local.replace("weir-store.json", json.dumps(marker).encode())
    for ask in (local.initialise, lambda: local.check_marker(expected)):
        with pytest.raises(OtherBuild, match=rf"reads version 1 and formats {FORMATS}.*`weir export FOLDER`"):
            ask()


def test_the_marker_has_not_changed_its_form(local):
    golden = json.loads((GOLDEN / "store-marker-v1.json").read_bytes())
    assert golden.keys() == json.loads(local.read("weir-store.json")).keys()
    local.replace("weir-store.json", json.dumps(golden | {"formats": FORMATS}).encode())
    assert local.initialise() == "6f1b4a52-0d5c-4b58-9d4f-0c9a8a2f7c11"


def test_the_formats_in_the_store_have_a_fingerprint_of_their_own():
    """So that no build takes the files of another one for its own (docs/upgrading.md)."""
    golden = sorted(set(GOLDEN.glob("*-v1.json")) - {GOLDEN / "store-marker-v1.json"})
    assert {path.name for path in GOLDEN.glob("*-v*.json")} == {*(path.name for path in golden), "store-marker-v1.json"}
    found = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in golden)).hexdigest()[:12]
    assert found == FORMATS, f'a format has changed: write FORMATS = "{found}"'


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ConnectionRefusedError("no answer")])
def test_a_store_that_does_not_answer_is_initialised_by_a_retry(store, error):
    failing = FailingStore(store)
    failing.fail("weir-store.json", error)
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        failing.initialise()
    failing.heal()
    failing.check_marker(failing.initialise())


def test_a_marker_that_is_missing_another_or_unreadable_is_retryable(store):
    failing = FailingStore(store)
    expected = failing.initialise()
    with pytest.raises(Retryable, check=of_kind("store.marker_of_another", expected_id="other")):
        failing.check_marker("other")
    failing.fail("weir-store.json", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        failing.check_marker(expected)
    failing.heal()
    store.delete("weir-store.json")
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        failing.check_marker(expected)


def test_a_damaged_marker_is_retryable_when_checked(local):
    expected = local.initialise()
    local.replace("weir-store.json", b'{"id": ')
    with pytest.raises(Retryable, match="not a marker"):
        local.check_marker(expected)


def test_every_spelling_of_a_local_folder_is_one_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    urls = {Store.open(url).url for url in (f"file://{tmp_path}/s", f"file:{tmp_path}/s/", f"{tmp_path}/s", "s", "./s")}
    assert urls == {f"file://{tmp_path}/s"}


@pytest.mark.parametrize("url", ["file://relative/path", "file:relative", "/tmp/a*b", "no-such-scheme://bucket"])
def test_a_url_that_cannot_be_used_is_refused(url):
    with pytest.raises(Misconfigured, match="the store"):
        Store.open(url)


def test_spark_spells_paths_as_hadoop_does(tmp_path):
    assert Store.open(f"{tmp_path}/with space").spark_url("a/b") == f"file://{tmp_path}/with space/a/b"
    assert Store.open("memory://root").spark_url("a") == "memory://root/a"


def test_a_file_system_without_hard_links_gets_a_clear_error(local, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(Misconfigured, check=of_kind("store.no_hard_links")):
        local.create("file", b"x")
    assert all_names(root_of(local)) == ["weir-store.json"]


def test_another_store_gets_the_options_only_if_it_has_the_same_scheme(tmp_path):
    open_store = opener(f"file://{tmp_path}/own", {"timeout": "soon"})
    assert open_store("memory://other").url == "memory://other"
    with pytest.raises(Misconfigured, check=of_kind("store.time_limit_wrong")):
        open_store(f"file://{tmp_path}/other")


def use_after_fork(store, answers):
    store.create("of/child", b"child")
    answers.put(store.read("of/parent"))


@pytest.mark.parametrize("reopen", ["s3", "hdfs"], indirect=True)
def test_a_store_that_was_used_before_a_fork_can_be_used_on_both_sides(store):
    store.create("of/parent", b"parent")
    context = get_context("fork")
    answers = context.Queue()
    child = context.Process(target=use_after_fork, args=(store, answers))
    child.start()
    assert answers.get(timeout=60) == b"parent"
    child.join(60)
    assert child.exitcode == 0
    assert store.read("of/child") == b"child"
