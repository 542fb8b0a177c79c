"""The checks of a real Spark Connect server."""

import signal
from dataclasses import replace

import pytest

from weir.doctor import table
from weir.doctor.examination import Status, examine
from weir.store.store import Store
from weir_spark.transport.doctor import ConnectExam

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path):
    opened = Store.open(str(tmp_path / "a store"))
    opened.initialise()
    return opened


def checked(server, store):
    url = f"{server.url};user_id=weir"
    return {each.name: each for each in examine([ConnectExam("spark", url, store).checks()])}


def test_a_good_server_is_ok_and_leaves_the_store_as_it_was(server, store):
    found = checked(server, store)
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert set(found) == {
        "reachable",
        "version",
        "Java",
        "Python",
        "reads the store",
        "writes the store",
    }
    assert store.folders("") == []


def test_a_store_that_spark_cannot_open_is_reported_with_the_jar_that_it_needs(server, store):
    class Elsewhere(Store):
        """Is here by its files, and in the cloud by the name that Spark is given."""

        def spark_url(self, path):
            return f"s3a://no-such-bucket/{path}"

    found = checked(server, Elsewhere(store.files))
    assert found["reads the store"].status is Status.PROBLEM
    assert "--packages org.apache.hadoop:hadoop-aws:3." in found["reads the store"].mend
    assert "JVM stacktrace" not in found["reads the store"].found
    assert store.folders("") == []


def test_another_folder_of_the_same_name_is_not_taken_for_the_store(server, store, tmp_path):
    class Unmounted(Store):
        """Where Spark is there is another folder at this path."""

        def spark_url(self, path):
            return f"file://{tmp_path}/elsewhere/{path}"

    found = checked(server, Unmounted(store.files))
    assert found["reads the store"].status is Status.PROBLEM
    assert "mount the store on every machine of Spark" in found["reads the store"].mend
    assert found["the rest"].found.endswith("writes the store")


def test_a_store_that_this_process_cannot_write_is_no_problem_of_spark(server, store):
    store.delete("weir-store.json")
    gone = Store.open(f"{store.url}/not/there")
    found = checked(server, gone)
    assert found["reads the store"].status is Status.UNKNOWN
    assert found["version"].status is Status.OK


def test_without_a_server_no_other_check_runs(store):
    exam = ConnectExam("spark", "sc://127.0.0.1:1/;user_id=weir", store)
    found = list(examine([exam.checks()]))
    assert [each.status for each in found] == [Status.PROBLEM, Status.UNKNOWN]
    assert "127.0.0.1:1" in found[0].found


def test_a_server_that_hangs_does_not_hang_the_doctor(server, store, monkeypatch):
    monkeypatch.setattr(table, "SPARK_VERSION", replace(table.SPARK_VERSION, seconds=1.0))
    server.send(signal.SIGSTOP)
    try:
        found = checked(server, store)
    finally:
        server.send(signal.SIGCONT)
    assert found["reachable"].status is Status.OK, "the system itself takes connections for a while"
    assert found["version"].status is Status.PROBLEM
    assert "no answer within 1 seconds" in found["version"].found
    assert found["the rest"].status is Status.UNKNOWN
