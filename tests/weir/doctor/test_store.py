"""Looking at a store, real ones and broken ones."""

import errno

import pytest

from weir.doctor.examination import Status, examine
from weir.doctor.store import judge_marker, judge_race, scratch, store_checks
from weir.store.store import Store
from weir.testing.fakes.stores import FailingStore, OverwritingStore
from weir_dev.servers.s3 import running_s3


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


def looked_at(store, known=None):
    ids = (marker_of(store),) if known is None else known
    return {each.name: each for each in examine([store_checks(store, lambda: ids)])}


def test_a_good_store_is_ok_and_as_it_was_before(store):
    store.create("trips/20260101T000000Z/_run.json", b"{}")
    found = looked_at(store)
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert set(found) == {"place", "marker", "reading and writing", "exclusive create", "clock"}
    assert store.folders("") == ["trips"]
    assert store.list("") == [("weir-store.json", store.size("weir-store.json"))]


def test_a_store_that_overwrites_is_found_out(local):
    found = looked_at(OverwritingStore(local.files))
    assert found["exclusive create"].status is Status.PROBLEM
    assert found["exclusive create"].found == "20, 20, 20 of 20 writers of one name won"
    assert "If-None-Match" in found["exclusive create"].mend
    assert local.folders("") == []


def test_a_store_where_one_may_only_read_is_told_once(local):
    broken = FailingStore(local)
    broken.fail(".weir-doctor-*", PermissionError(errno.EACCES, "Permission denied"))
    found = looked_at(broken)
    assert found["marker"].status is Status.OK
    assert found["reading and writing"].status is Status.PROBLEM
    assert "Permission denied" in found["reading and writing"].found
    assert found["the rest"].status is Status.UNKNOWN
    assert sum(each.status is Status.PROBLEM for each in found.values()) == 1


def test_a_store_that_is_not_mounted_is_missed(local):
    known = (marker_of(local),)
    local.delete("weir-store.json")
    found = looked_at(local, known)
    assert found["marker"].status is Status.PROBLEM
    assert known[0] in found["marker"].expected
    assert "mount the store" in found["marker"].mend
    assert local.folders("") == [], "nothing is written into what is not the store"


def test_another_store_is_not_taken_for_the_right_one(local):
    found = looked_at(local, ("11111111-0000",))["marker"]
    assert found.status is Status.PROBLEM
    assert "11111111-0000" in found.expected


def test_a_store_before_its_first_run_is_ok_and_is_not_made(tmp_path):
    store = Store.open(str(tmp_path / "not" / "yet"))
    found = looked_at(store, ())
    assert {each.status for each in found.values()} == {Status.OK}
    assert not (tmp_path / "not").exists()


def test_a_store_that_the_first_run_could_not_make_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, *_, **__: path != tmp_path)
    found = looked_at(Store.open(str(tmp_path / "not" / "yet")), ())["reading and writing"]
    assert found.status is Status.PROBLEM
    assert f"may not make it in {tmp_path}" in found.found


def test_an_object_store_is_tried_before_its_first_run(s3_server, tmp_path):
    store = Store.open(f"s3://doctor/{tmp_path.name}", s3_server.storage_options)
    found = looked_at(store, ())
    assert {each.status for each in found.values()} == {Status.OK}
    assert "exclusive create" in found


def test_a_folder_of_somebody_else_is_not_taken_for_a_new_store(tmp_path):
    (tmp_path / "photos").mkdir()
    found = looked_at(Store.open(str(tmp_path)), ())["marker"]
    assert found.status is Status.PROBLEM
    assert "photos" in found.found
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_without_the_ledger_nobody_knows_the_right_marker(local):
    def unreachable():
        raise OSError("no ledger")

    found = {each.name: each for each in examine([store_checks(local, unreachable)])}
    assert found["marker"].status is Status.UNKNOWN


def test_a_ledger_with_two_stores_is_told():
    assert judge_marker("a", ("a", "b"), "file:///x").status is Status.PROBLEM


@pytest.mark.parametrize(("winners", "status"), [([1, 1, 1], "ok"), ([1, 2, 1], "problem"), ([1, 0, 1], "problem")])
def test_exactly_one_has_to_win_each_time(winners, status):
    assert judge_race(winners).status is Status(status)


def test_the_clock_of_the_store_is_compared(local, monkeypatch):
    def hours_ago(path):
        real = type(local.files).modified(local.files, path)
        return real.replace(year=real.year - 1)

    class Late(Store):
        def modified(self, path):
            return hours_ago(path)

    found = looked_at(Late(local.files))["clock"]
    assert found.status is Status.WARNING
    assert "behind this machine's clock" in found.found


def test_scratch_has_a_name_that_weir_takes_for_nothing(local):
    with scratch(local) as one, scratch(local) as other:
        local.create(f"{one}/file", b"")
        assert one != other
        assert local.initialise()  # no stranger
    assert local.folders("") == []
