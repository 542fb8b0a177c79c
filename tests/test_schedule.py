"""In how many processes `./weir test` runs, and which test goes where."""

import re

import pytest
from tests import schedule


class Option(dict):
    """Options of pytest as a configuration has them."""

    __getattr__ = dict.__getitem__


class Config:
    """As much of pytest's configuration as counts here."""

    ArgsSource = pytest.Config.ArgsSource

    def __init__(self, source="TESTPATHS", **options):
        self.args_source = self.ArgsSource[source]
        self.option = Option({"keyword": "", "collectonly": False, "benchmark_only": False} | options)

    def getoption(self, name, default=None):
        return self.option.get(name, default)


@pytest.fixture
def machine(monkeypatch):
    """Set the cores and the gigabytes that are there."""

    def has(cores, gigabytes):
        memory = type("Memory", (), {"available": gigabytes * schedule.GIB})
        monkeypatch.setattr(schedule.os, "sched_getaffinity", lambda _: range(cores))
        monkeypatch.setattr(schedule.psutil, "virtual_memory", lambda: memory)

    return has


@pytest.mark.parametrize(("cores", "gigabytes", "processes"), [(2, 16, 3), (8, 64, 9), (2, 7, 2), (2, 1, 1)])
def test_all_tests_run_in_one_process_more_than_cores_if_memory_allows(machine, cores, gigabytes, processes):
    machine(cores, gigabytes)
    assert schedule.processes(Config()) == processes


@pytest.mark.parametrize(
    "config", [Config("ARGS"), Config(keyword="seed"), Config(collectonly=True), Config(benchmark_only=True)]
)
def test_chosen_tests_run_in_this_process(machine, config):
    machine(2, 16)
    assert schedule.processes(config) == 0


def test_each_module_that_the_lanes_name_is_there():
    named = {prefix for lane in schedule.LANES.values() for prefix in lane}
    named |= schedule.WITH_DRIVERS | schedule.WITH_HDFS
    assert [prefix for prefix in named if not (schedule.ROOT / prefix).exists()] == []


@pytest.mark.parametrize(
    ("module", "lane"),
    [
        ("tests/e2e/test_ladder_life.py", schedule.AT_ONCE),
        ("tests/e2e/test_ladder_faults.py", schedule.ONE_BY_ONE),
        ("tests/e2e/test_deployment.py", "stacks of their own"),
        ("tests/weir_airflow/test_dag.py", "Airflow"),
        ("tests/weir/store/test_s3.py", "the rest"),
        ("tests/test_layers.py", "the rest"),
    ],
)
def test_a_module_is_in_the_lane_of_the_longest_prefix_of_its_path(module, lane):
    assert schedule.lane_of(f"{module}::test_that[a::b]") == lane


def test_the_modules_that_share_drivers_are_those_that_ask_for_them():
    asking = {
        file.relative_to(schedule.ROOT).as_posix()
        for file in (schedule.ROOT / "tests/weir_spark").rglob("test_*.py")
        if {"drivers", "codes_in_driver", "ends_in_driver"} & set(re.findall(r"\w+", file.read_text()))
    }
    assert asking == schedule.WITH_DRIVERS


def test_the_modules_that_share_an_hdfs_are_those_that_ask_for_it():
    folder = schedule.ROOT / "tests/weir"
    own = {"test_comparison.py", "test_hdfs_failures.py", "test_hdfs_pair.py", "test_s3.py"}  # have stores of their own
    of_all_kinds = [file for file in (folder / "store").glob("test_*.py") if file.name not in own]
    asking = {
        file.relative_to(schedule.ROOT).as_posix()
        for file in [*of_all_kinds, *folder.rglob("test_*.py")]
        if re.search(r"def \w+\((.*\W)?hdfs_server\b", file.read_text())
        or (file in of_all_kinds and re.search(r"def \w+\((.*\W)?(store|reopen|hdfs)\b", file.read_text()))
    }
    assert asking == schedule.WITH_HDFS
