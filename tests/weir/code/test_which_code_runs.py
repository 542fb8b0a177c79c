"""One result, one code: which code repairs run, and that no valid stage is of two."""

from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.weir.small_dataflow import World

from weir.attempts import registration
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Misconfigured
from weir.ledger.database.code_tables import ArchiveRow
from weir.ledger.database.tables import AttemptRow, PendingClearRow, ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.adopt import adopt
from weir.store.catalogue import published
from weir.testing.fakes.airflow import Killed

RUN = "flow@20130101T000000Z"


def flow(**settings):
    """Three subtasks of hours and of rides; two consumers; each stage in a module of its own."""
    return Dataflow(
        "flow",
        [
            source("hours", "code_hours:hours", parallelism=3),
            Stage("rides", "code_rides:rides", [blocking("hours", by="k")], parallelism=3),
            Stage("totals", "code_totals:totals", [blocking("rides", by="k")], parallelism=2),
            Stage("report", "code_report:report", [blocking("totals")]),
            sink("report", "published"),
        ],
        **settings,
    )


class Deployed:
    """A world whose workers have the functions with these edits."""

    def __init__(self, world):
        self.world, self.edits = world, {}

    @property
    def edits(self):
        return self._edits

    @edits.setter
    def edits(self, edits):
        self._edits = edits
        self.world.deploy(**edits)

    def rows(self, table, *conditions):
        with self.world.ledger.transaction() as session:
            found = list(session.scalars(select(table).where(*conditions)))
            session.expunge_all()
        return found

    def runs_generation(self, key, number):
        rows = self.rows(AttemptRow, AttemptRow.region == key.task_id, AttemptRow.map_index == key.map_index)
        return max(rows, key=lambda row: row.try_number).generation == number

    def codes(self, region):
        """By subtask: the generation of the newest attempt that has committed."""
        rows = self.rows(AttemptRow, AttemptRow.region == region, AttemptRow.state == "committed")
        return {row.subtask: row.generation for row in sorted(rows, key=lambda row: row.try_number)}

    def versions(self, stage):
        """By subtask: the versions of code that are known to make it."""
        return {
            row.subtask: row.versions for row in self.rows(ResultRow, ResultRow.stage == stage, ResultRow.is_current)
        }

    def lose(self, stage, subtask):
        self.world.lose(stage, subtask)

    def is_valid(self):
        with self.world.ledger.transaction() as session:
            run = run_by_id(session, RUN)
            state = run_state(session, run)
        return all(state.is_valid(each) for region in state.region_ids() for each in state.outputs(region))

    def executed(self):
        return self.world.airflow.executed(self.run)

    def run_day(self, day=1):
        (self.run,) = self.world.run_days(day)

    def go_on(self):
        self.world.airflow.run_until_quiet()

    def published(self):
        found = published(self.world.store, "flow", "published", "20130101T000000Z")
        return [(part.rows, part.digest) for part in found.partitions]


@pytest.fixture
def fresh(tmp_path):
    worlds = []

    def make(name="world", **settings):
        world = World(tmp_path / name, flow(**settings))
        worlds.append(world)
        return Deployed(world)

    yield make
    for world in worlds:
        world.ledger.close()


@pytest.fixture
def green(fresh):
    world = fresh(keep="5 runs")
    world.run_day()
    return world


@pytest.fixture
def expected(fresh):
    """What a run publishes whose workers have had these edits from the beginning."""

    def of(**edits):
        world = fresh(f"expected-{'-'.join(map(str, edits.items()))}", keep="5 runs")
        world.edits = edits
        world.run_day()
        return world.published()

    return of


def reruns(world, before):
    return {name: n for name, n in (Counter(world.executed()) - Counter(before)).items() if name != "weir_close[0]"}


def test_a_run_without_faults_has_one_code_and_one_archive(green):
    assert {row.generation for row in green.rows(AttemptRow, AttemptRow.region != "weir_close")} == {1}
    assert {row.archive for row in green.rows(AttemptRow, AttemptRow.region != "weir_close")} == {
        green.rows(RunRow)[0].archive
    }
    assert len(green.rows(ArchiveRow)) == 1
    assert green.is_valid()


def test_a_deployment_in_the_middle_of_a_run_changes_nothing_in_it(fresh, expected):
    world = fresh(keep="5 runs")

    def deploy(key):
        if key.task_id == "rides":
            world.edits = {"rides": 2, "totals": 4, "report": 2}

    world.world.airflow.during = deploy
    world.run_day()
    assert world.published() == expected()
    assert len({row.archive for row in world.rows(AttemptRow, AttemptRow.region != "weir_close")}) == 1


def test_a_lost_partition_is_made_again_by_the_code_that_made_it(green, expected):
    """The trial of the issue: a function was edited, one of three partitions lost, one consumer cleared."""
    green.edits = {"rides": 1}
    green.lose("rides", 1)
    green.world.airflow.clear_by_hand(green.run, "totals", 0)
    before = green.executed()
    green.go_on()
    assert reruns(green, before) == {"rides[1]": 1, "totals[0]": 2}
    assert green.codes("rides") == {0: 1, 1: 1, 2: 1}
    assert green.published() == expected()
    assert green.is_valid()


def test_one_clear_runs_the_whole_stage_with_the_newer_code(green, expected):
    green.edits = {"rides": 1}
    before = green.executed()
    green.world.airflow.clear_by_hand(green.run, "rides", 1)
    green.go_on()
    assert {name: n for name, n in reruns(green, before).items() if name.startswith("rides")} == {
        "rides[0]": 1, "rides[1]": 1, "rides[2]": 1,
    }  # fmt: skip
    assert green.codes("rides") == {0: 2, 1: 2, 2: 2}
    assert green.published() == expected(rides=1)
    assert green.is_valid()


def test_nothing_follows_where_the_newer_code_makes_the_same(fresh):
    world = fresh(keep="5 runs")
    world.run_day()
    before = world.executed()
    flow_before = world.world.airflow.flow
    # What runs when the module is imported: other code, but the same content.
    world.world.airflow.flow = flow_before
    request = world.world.airflow.request

    def with_more(task):
        made = request(task)
        if made.deployed is None:
            return made
        files = {**made.deployed.files, "code_rides.py": made.deployed.files["code_rides.py"] + b"\nassert True\n"}
        return replace(made, deployed=type(made.deployed)(files))

    world.world.airflow.request = with_more
    world.world.airflow.clear_by_hand(world.run, "rides", 1)
    world.go_on()
    assert reruns(world, before) == {"rides[1]": 1}
    versions = world.versions("rides")
    assert len(versions[1]) == 2
    assert versions[0] == versions[2]
    assert set(versions[0]) < set(versions[1])
    assert world.is_valid()


def test_a_clear_that_is_killed_goes_on_with_the_newer_code(green, expected):
    green.edits = {"rides": 1}
    killed = []

    def kill(key):
        if key.task_id == "rides" and not killed:
            killed.append(key)
            raise Killed

    green.world.airflow.during = kill
    green.world.airflow.clear_by_hand(green.run, "rides", 1)
    green.go_on()
    assert killed
    assert green.published() == expected(rides=1)


def test_a_fix_that_fails_too_costs_the_siblings_nothing(green, expected):
    green.edits = {"rides": 1}

    def fail(key):
        if key.task_id == "rides":
            raise ImportError("the fix is none")

    green.world.airflow.during = fail
    before = green.executed()
    green.world.airflow.clear_by_hand(green.run, "rides", 1)
    green.go_on()
    assert reruns(green, before) == {"rides[1]": 1}
    assert not green.rows(PendingClearRow)
    assert green.is_valid()
    green.world.airflow.during = lambda _key: None
    green.edits = {"rides": 3}
    green.world.airflow.clear_by_hand(green.run, "rides", 1)
    green.go_on()
    assert green.codes("rides") == {0: 3, 1: 3, 2: 3}
    assert green.published() == expected(rides=3)


def test_a_loss_while_a_fix_fails_is_healed_by_the_code_of_the_others(green, expected):
    green.edits = {"rides": 1}

    def fail(key):
        if (key.task_id, key.map_index) == ("rides", 1):
            raise ImportError("the fix is none")

    green.world.airflow.during = fail
    green.world.airflow.clear_by_hand(green.run, "rides", 1)
    green.go_on()
    green.lose("rides", 2)
    green.world.airflow.clear_by_hand(green.run, "totals", 0)
    green.go_on()
    assert green.codes("rides") == {0: 1, 1: 1, 2: 1}


def test_a_function_that_has_made_nothing_yet_is_retried_with_the_fix(fresh, expected):
    world = fresh(keep="5 runs")

    def fail(key):
        if world.runs_generation(key, 1) and key.task_id == "rides":
            world.edits = {"rides": 1}
            raise ValueError("a bug")

    world.world.airflow.during = fail
    world.run_day()
    assert world.published() == expected(rides=1)
    assert world.is_valid()
    assert set(world.codes("rides").values()) == {2}


def test_downstream_of_a_fix_runs_the_archive_of_the_fix(fresh, expected):
    world = fresh(keep="5 runs")

    def fail(key):
        if world.runs_generation(key, 1) and key.task_id == "rides":
            world.edits = {"rides": 1, "totals": 1}
            raise ValueError("a bug")

    world.world.airflow.during = fail
    world.run_day()
    assert world.published() == expected(rides=1, totals=1)


def test_a_function_that_fails_beside_results_keeps_its_code_and_the_note_says_so(fresh, expected):
    world = fresh(keep="5 runs")

    def fail(key):
        if (key.task_id, key.map_index) == ("rides", 2) and not world.edits:
            world.edits = {"rides": 1}
            raise ValueError("once")

    world.world.airflow.during = fail
    world.run_day()
    assert world.published() == expected()
    notes = world.world.airflow.task(world.run, "rides", 2).notes
    assert any("other code is deployed than this try has run, which made 2 of 3" in note for note in notes), notes


def test_repairs_as_it_was_keep_the_code_at_a_persons_clear(fresh, expected):
    world = fresh(keep="5 runs", repair_code="as_it_was")
    world.run_day()
    world.edits = {"rides": 1}
    world.world.airflow.clear_by_hand(world.run, "rides", 1)
    world.go_on()
    assert set(world.codes("rides").values()) == {1}


def test_clearing_the_whole_run_computes_it_with_the_newest(green, expected):
    green.edits = {"hours": 1, "totals": 3}
    green.world.airflow.clear_run_by_hand(green.run)
    green.go_on()
    assert green.published() == expected(hours=1, totals=3)
    assert green.is_valid()


def test_an_attempt_of_older_code_gives_way_to_newer_that_has_committed(green, expected):
    """Subtask 0 is repaired by its code while a person's clear of subtask 1 commits with newer."""
    green.lose("rides", 0)
    green.world.airflow.clear_by_hand(green.run, "totals", 0)
    airflow = green.world.airflow
    done = []

    def meanwhile(key):
        if (key.task_id, key.map_index) == ("rides", 0) and not done:
            done.append(key)
            green.edits = {"rides": 1}
            airflow.clear_by_hand(green.run, "rides", 1)
            airflow.step(airflow.task(green.run, "rides", 1))

    airflow.during = meanwhile
    green.go_on()
    assert done
    assert green.published() == expected(rides=1)
    assert green.codes("rides") == {0: 2, 1: 2, 2: 2}
    assert green.is_valid()


OTHER_POLICIES = (("region", "always"), ("full", "if_changed"), ("individual", "always"))


@pytest.mark.parametrize(
    ("failover", "consumers"),
    [
        ("region", "if_changed"),
        ("full", "always"),
        ("individual", "if_changed"),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in OTHER_POLICIES),
    ],
)
def test_no_policy_lets_a_stage_of_two_codes_be_published(fresh, expected, failover, consumers):
    world = fresh(keep="5 runs", failover=failover, consumers=consumers)
    world.run_day()
    world.edits = {"rides": 1}
    world.world.airflow.clear_by_hand(world.run, "rides", 1)
    world.go_on()
    assert set(world.codes("rides").values()) == {2}
    for task, index in (("totals", 0), ("totals", 1), ("report-published", -1), ("weir_close", -1)):
        if failover == "individual":
            world.world.airflow.clear_by_hand(world.run, task, index)
            world.go_on()
    assert world.published() == expected(rides=1)


def test_a_run_that_is_moved_to_the_current_dataflow_is_computed_by_what_is_deployed(green, expected):
    green.edits = {"rides": 1}
    adopt(green.world.services, RUN)
    green.world.airflow.clear_run_by_hand(green.run)
    green.go_on()
    assert green.published() == expected(rides=1)
    assert green.codes("rides") == {0: 1, 1: 1, 2: 1}
    (run,) = green.rows(RunRow)
    (other,) = {row.archive for row in green.rows(AttemptRow, AttemptRow.generation == 1)}
    assert run.archive == other


def test_a_pinned_dataflow_whose_function_is_gone_is_refused_before_anything_is_computed(green):
    request = green.world.airflow.request

    def without_rides(task):
        made = request(task)
        if made.deployed is None:
            return made
        files = {**made.deployed.files, "code_rides.py": b"def others():\n    return 1\n"}
        return replace(made, deployed=type(made.deployed)(files))

    green.world.airflow.request = without_rides
    green.world.airflow.clear_by_hand(green.run, "rides", 1)
    computed = len(green.world.airflow.engine.computed)
    green.go_on()
    task = green.world.airflow.task(green.run, "rides", 1)
    assert task.state == "failed"
    assert "code_rides:rides" in task.failed_because
    assert "weir run adopt" in task.failed_because
    assert len(green.world.airflow.engine.computed) == computed
    assert green.is_valid()


def test_an_archive_that_is_gone_is_stored_again_by_whoever_has_it(green):
    (row,) = green.rows(ArchiveRow)
    green.world.store.delete(row.path)
    green.edits = {}
    green.lose("rides", 0)
    green.world.airflow.clear_by_hand(green.run, "totals", 0)
    before = green.executed()
    green.go_on()
    assert reruns(green, before)["rides[0]"] == 1
    (again,) = green.rows(ArchiveRow)
    assert green.world.store.size(again.path) == row.bytes
    assert again.path != row.path


def test_code_that_is_gone_and_that_nobody_has_is_an_error_and_a_clear_helps(green, expected):
    (row,) = green.rows(ArchiveRow)
    green.world.store.delete(row.path)
    green.edits = {"rides": 1}
    green.lose("rides", 0)
    green.world.airflow.clear_by_hand(green.run, "totals", 0)
    green.go_on()
    task = green.world.airflow.task(green.run, "rides", 0)
    assert task.state == "failed"
    assert f"archive {row.fingerprint[:16]}) is lost" in task.failed_because
    green.world.airflow.clear_by_hand(green.run, "rides", 0)
    green.go_on()
    green.world.airflow.clear_by_hand(green.run, "totals", 0)
    green.go_on()
    assert green.published() == expected(rides=1)
    assert green.is_valid()


def test_a_run_that_a_person_clears_runs_what_is_deployed_though_two_deliver_the_clears(green, expected):
    green.edits = {"hours": 1, "totals": 3}
    airflow = green.world.airflow
    clear, inside = airflow.clear, []

    def clear_at_once(wanted):
        if not inside:
            inside.append(True)
            airflow.deliver_clears()
            inside.pop()
        return clear(wanted)

    airflow.clear = clear_at_once
    airflow.clear_run_by_hand(green.run)
    green.go_on()
    assert green.published() == expected(hours=1, totals=3)
    assert set(green.codes("totals").values()) == {2}


def test_a_kill_while_another_task_is_cleared_is_repaired_by_the_code_as_it_was(green, expected):
    green.lose("rides", 0)
    green.edits = {"rides": 1}
    airflow = green.world.airflow
    killed = []

    def kill(key):
        if (key.task_id, key.map_index) == ("rides", 0) and not killed:
            killed.append(key)
            airflow.clear_by_hand(green.run, "report-published")
            raise Killed

    airflow.during = kill
    airflow.clear_by_hand(green.run, "totals", 0)
    green.go_on()
    assert killed
    assert green.codes("rides") == {0: 1, 1: 1, 2: 1}
    assert green.published() == expected()
    assert any("It is not known whether" in note for note in airflow.task(green.run, "rides", 0).notes)


def test_a_clear_in_a_dag_run_that_was_created_again_runs_what_is_deployed(green, expected):
    green.lose("hours", 1)
    green.world.airflow.clear_by_hand(green.run, "rides", 0)
    green.go_on()  # Weir has cleared a try of the task
    green.world.airflow.delete(green.run)
    green.run_day()
    green.edits = {"hours": 1}
    green.world.airflow.clear_by_hand(green.run, "hours", 1)
    green.go_on()
    assert green.published() == expected(hours=1)
    assert green.is_valid()


def test_a_try_of_a_deleted_dag_run_that_could_not_begin_has_no_repair_run_what_is_deployed(
    green, expected, monkeypatch
):
    def refuse(*_args):
        raise Misconfigured("the DAG is wrong")

    with monkeypatch.context() as patch:
        patch.setattr(registration, "require_interval", refuse)
        green.world.airflow.clear_by_hand(green.run, "hours", 1)
        green.go_on()
    green.world.airflow.delete(green.run)
    green.run_day()
    green.edits = {"hours": 1}
    green.lose("hours", 1)
    green.world.airflow.clear_by_hand(green.run, "rides", 0)
    green.go_on()
    assert green.published() == expected()
