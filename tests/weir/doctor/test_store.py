"""The checks of a store, with real and with broken stores."""

import errno

import pytest
from tests.servers.s3 import running_s3

from weir.doctor.examination import Status, examine
from weir.doctor.store import scratch, store_checks
from weir.store.store import Store
from weir.testing.fakes.stores import FailingStore, OverwritingStore


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as server:
        server.make_bucket("doctor")
        yield server


@pytest.fixture(params=["local", "memory", "s3"])
def store(request, tmp_path):
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        opened = Store.open(f"s3://doctor/{tmp_path.name}", server.storage_options)
    else:
        opened = Store.open(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}")
    opened.initialise()
    return opened


@pytest.fixture
def local(tmp_path):
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


def marker_of(store):
    return str(store.initialise())


def checked(store, known=None):
    ids = (marker_of(store),) if known is None else known
    return {each.name: each for each in examine([store_checks(store, lambda: ids)])}


def test_a_good_store_is_ok_and_unchanged(store):
    store.create("trips/20260101T000000Z/_run.json", b"{}")
    found = checked(store)
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert set(found) == {"place", "marker", "reading and writing", "exclusive create"}
    assert store.folders("") == ["trips"]
    assert store.list("") == [("weir-store.json", store.size("weir-store.json"))]


def test_a_store_that_overwrites_is_a_problem(local):
    found = checked(OverwritingStore(local.files))
    assert found["exclusive create"].status is Status.PROBLEM
    assert found["exclusive create"].found == "an existing file was overwritten"
    assert "If-None-Match" in found["exclusive create"].mend
    assert local.folders("") == []


def test_a_store_that_is_read_only_is_one_problem(local):
    broken = FailingStore(local)
    broken.fail(".weir-doctor-*", PermissionError(errno.EACCES, "Permission denied"))
    found = checked(broken)
    assert found["marker"].status is Status.OK
    assert found["reading and writing"].status is Status.PROBLEM
    assert "Permission denied" in found["reading and writing"].found
    assert sum(each.status is Status.PROBLEM for each in found.values()) == 1


def test_a_store_that_is_not_mounted_is_a_problem(local):
    known = (marker_of(local),)
    local.delete("weir-store.json")
    found = checked(local, known)
    assert found["marker"].status is Status.PROBLEM
    assert known[0] in found["marker"].expected
    assert "mount the store" in found["marker"].mend
    assert local.folders("") == [], "nothing is written into what is not the store"


def test_another_store_is_a_problem(local):
    found = checked(local, ("11111111-0000",))["marker"]
    assert found.status is Status.PROBLEM
    assert "11111111-0000" in found.expected


def test_a_store_before_its_first_run_is_ok_and_is_not_created(tmp_path):
    store = Store.open(str(tmp_path / "not" / "yet"))
    found = checked(store, ())
    assert {each.status for each in found.values()} == {Status.OK}
    assert not (tmp_path / "not").exists()


def test_an_object_store_is_checked_before_its_first_run(s3_server, tmp_path):
    store = Store.open(f"s3://doctor/{tmp_path.name}", s3_server.storage_options)
    found = checked(store, ())
    assert {each.status for each in found.values()} == {Status.OK}
    assert "exclusive create" in found


def test_without_the_ledger_the_right_marker_is_unknown(local):
    def unreachable():
        raise OSError("no ledger")

    found = {each.name: each for each in examine([store_checks(local, unreachable)])}
    assert found["marker"].status is Status.UNKNOWN


def test_the_folder_of_test_files_has_a_name_that_weir_ignores(local):
    with scratch(local) as one, scratch(local) as other:
        local.create(f"{one}/file", b"")
        assert one != other
        assert local.initialise()  # no unknown folder
    assert local.folders("") == []
