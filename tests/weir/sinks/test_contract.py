"""The contract of targets: a sound target keeps it, and each unsound one breaks the promise that it should."""

from __future__ import annotations

import json
import threading

import pytest
from tests.weir.sinks import file_target
from tests.weir.sinks.file_target import FileTarget

from weir.sinks import Outcome
from weir.testing.sink_contract import AT_ONCE, SinkContract


class Place(SinkContract):
    """Files below a folder; the rows are those of the Parquet files in them."""

    kind = FileTarget
    killed_in = (file_target.__name__,)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "lake"
        self.path.mkdir()

    def target(self, reach):
        return self.kind({"folder": str(self.path)}, reach)

    def rows(self, epoch):
        path = self.path / f"delays@{epoch}.json"
        return sorted(file_target.rows_of(json.loads(path.read_text()))) if path.exists() else []


class TestSound(Place):
    pass


class InTwoSteps(FileTarget):
    """Rows first, then the marker."""

    def commit(self, version, token):
        if self.recover(version, token) is not Outcome.ABSENT:
            return self.recover(version, token)
        made = self.made(version)
        self.write(version, {**made, "number": 0, "digest": "none"})
        self.write(version, made)
        return Outcome.COMMITTED


class WithoutLooking(FileTarget):
    """What is there is not asked for."""

    def commit(self, version, token):
        self.write(version, self.made(version))
        return Outcome.COMMITTED


class InPrepare(FileTarget):
    """Visible before the commit."""

    def prepare(self, version, held):
        self.write(version, self.made(version))
        return {}


class AfterAWhile(FileTarget):
    """Looks, and writes later: the others have looked meanwhile, and the oldest version is written last."""

    together = threading.Barrier(AT_ONCE, timeout=60)

    def commit(self, version, token):
        found = self.recover(version, token)
        for number in range(AT_ONCE, 0, -1):
            self.together.wait()
            if version.number == number and found is Outcome.ABSENT:
                self.write(version, self.made(version))
        return found if found is not Outcome.ABSENT else Outcome.COMMITTED


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (InTwoSteps, "test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent"),
        (WithoutLooking, "test_an_older_version_never_replaces_a_newer_one"),
        (WithoutLooking, "test_equal_rows_leave_the_target_as_it_is"),
        (InPrepare, "test_nothing_is_visible_before_the_commit"),
        (AfterAWhile, "test_of_several_versions_at_once_the_newest_stays"),
    ],
)
def test_an_unsound_target_breaks_its_promise(kind, broken, tmp_path):
    contract = type("Unsound", (Place,), {"kind": kind})()
    contract.path = tmp_path / "lake"
    contract.path.mkdir()
    contract.killed_in = (__name__, file_target.__name__)
    with pytest.raises(AssertionError):
        getattr(contract, broken)(tmp_path)
