"""A retry resumes from the copy of a cached stage; without a usable copy the stage is recomputed."""

import json
import shutil

import pytest
from sqlalchemy import select

from weir.dataflow import Dataflow, Stage, blocking, cached, pipelined, sink, source
from weir.dataflow.digest_rule import digest
from weir.errors import DiskFull, Fault, Loss, Retryable
from weir.formats.codec import from_json
from weir.formats.manifest import StageCopy
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.ledger.results import record_losses
from weir.store.catalogue import published
from weir.testing.fakes.airflow import Killed
from weir.topology.partitions import PLAIN

TASK = "raw-clean-wide-report-delays"
ALL = ["raw", "clean", "wide", "report", "delays"]


def flow(**more):
    """A weather table into one task of five stages, of which two are cached on the way to what is published."""
    return Dataflow(
        "ladder",
        [
            source("weather", "pipelines.ladder:weather"),
            source("raw", "pipelines.ladder:raw"),
            Stage("clean", "pipelines.ladder:clean", [pipelined("raw"), blocking("weather")]),
            Stage("wide", "pipelines.ladder:wide", [cached("clean")]),
            Stage("report", "pipelines.ladder:report", [cached("wide")]),
            sink("report", "delays"),
        ],
        **more,
    )


class Faults:
    """What happens to the task after its copies are written, one fault a try."""

    def __init__(self, world):
        self.world = world
        self.left = []
        world.airflow.during = self

    def __call__(self, key):
        if key.task_id == TASK and self.left:
            self.left.pop(0)()

    def of_the_application(self):
        raise ValueError("no luck")

    def kill(self):
        raise Killed


@pytest.fixture
def cached_world(world):
    world.airflow.deploy(flow())
    world.run = world.airflow.dag_run()
    world.faults = Faults(world)
    return world


def computed(world, since=0):
    return [name for name in world.airflow.engine.computed[since:] if name != "weather"]


def copies_of(world, stage):
    """The folders of a stage's copies, oldest try first."""
    return sorted((world.folder / "store" / "ladder" / "20130101T000000Z" / stage / "copy" / "0").iterdir())


def result(world):
    return [part.digest for part in published(world.store, "ladder", "delays", "20130101T000000Z").partitions]


def run(world, *faults):
    """Run until quiet with one fault a try; what was computed in the tries after the first, together."""
    world.faults.left = list(faults)
    before = len(world.airflow.engine.computed)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    return computed(world, before)


def test_a_run_without_faults_computes_each_stage_once_and_leaves_a_copy_of_each_cached_one(cached_world):
    assert run(cached_world) == ALL
    for stage in ("clean", "wide"):
        [folder] = copies_of(cached_world, stage)
        copy = from_json(StageCopy, (folder / "copy.json").read_bytes())
        assert (copy.stage, copy.attempt, len(copy.made_from)) == (stage, folder.name, 64)


@pytest.mark.parametrize("fault", ["of_the_application", "kill"])
def test_a_retry_computes_only_what_lies_behind_the_last_copy(cached_world, fault):
    assert run(cached_world, getattr(cached_world.faults, fault)) == [*ALL, "report", "delays"]
    assert len(copies_of(cached_world, "wide")) == len(copies_of(cached_world, "clean")) == 1


def test_the_ledger_and_the_task_say_behind_which_stages_an_attempt_resumed(cached_world):
    committed = []
    commit = cached_world.airflow.coordinator.commit
    cached_world.airflow.coordinator.commit = lambda *given: committed.append(commit(*given)) or committed[-1]
    run(cached_world, cached_world.faults.of_the_application)
    [summary] = [each.summary for each in committed if "resumed" in each.summary]
    assert summary["resumed"] == ["wide"]
    with cached_world.ledger.transaction() as session:
        row = session.get(AttemptRow, summary["attempt"])
        assert (row.try_number, row.metrics["resumed"]) == (2, ["wide"])


def test_a_third_try_resumes_from_the_first_ones_copy(cached_world):
    faults = cached_world.faults
    assert run(cached_world, faults.of_the_application, faults.of_the_application) == [*ALL, *["report", "delays"] * 2]


def test_the_outcome_is_that_of_a_run_without_faults(cached_world):
    run(cached_world, cached_world.faults.of_the_application)
    resumed = result(cached_world)
    cached_world.airflow.clear_by_hand(cached_world.run, TASK)
    run(cached_world)
    assert result(cached_world) == resumed


def test_a_task_that_weir_clears_resumes(cached_world):
    run(cached_world)
    [folder] = (cached_world.folder / "store" / "ladder" / "20130101T000000Z" / "delays" / "plain" / "0").iterdir()
    (folder / "part-0.bin").unlink()
    cached_world.airflow.clear_by_hand(cached_world.run, "weir_close")
    assert run(cached_world) == ["report", "delays"]


def test_a_task_that_a_person_clears_is_computed_anew_and_its_retries_resume_from_that(cached_world):
    run(cached_world)
    cached_world.airflow.clear_by_hand(cached_world.run, TASK)
    assert run(cached_world) == ALL
    cached_world.airflow.clear_by_hand(cached_world.run, TASK)
    assert run(cached_world, cached_world.faults.of_the_application) == [*ALL, "report", "delays"]


def test_a_copy_of_other_inputs_is_not_used(cached_world):
    def changes_the_weather():
        cached_world.content["weather"] = "storm"
        cached_world.airflow.clear_by_hand(cached_world.run, "weather")
        raise ValueError("no luck")

    assert run(cached_world, changes_the_weather) == [*ALL, *ALL]


def loses_the_weather(world, damage):
    """Break an input and fail, so that it is recomputed, with equal rows, before the next try."""
    [folder] = (world.folder / "store" / "ladder" / "20130101T000000Z" / "weather" / "plain" / "0").iterdir()
    damage(folder)
    raise ValueError("no luck")


def test_a_copy_serves_although_its_input_was_lost_and_made_again_with_equal_rows(cached_world):
    found = run(cached_world, lambda: loses_the_weather(cached_world, DAMAGES["a file"]))
    assert found == [*ALL, "report", "delays"]
    assert cached_world.airflow.task(cached_world.run, "weather").try_number == 2


def test_where_consumers_always_restart_a_copy_of_another_attempts_input_is_not_used(world):
    world.airflow.deploy(flow(consumers="always"))
    world.run = world.airflow.dag_run()
    world.faults = Faults(world)
    assert run(world, lambda: loses_the_weather(world, DAMAGES["a file"])) == [*ALL, *ALL]


def test_a_copy_of_an_input_whose_bytes_were_found_damaged_later_is_not_used(cached_world):
    found = run(cached_world, lambda: loses_the_weather(cached_world, DAMAGES["a byte"]))
    assert found == [*ALL, *ALL]
    assert cached_world.airflow.task(cached_world.run, "weather").try_number == 2


@pytest.mark.parametrize(("layout", "resumes"), [(PLAIN.id, False), ("by-k-128-128657", True)])
def test_a_copy_is_used_though_a_result_that_it_was_not_made_from_is_damaged(world, layout, resumes):
    """The attempt of its input has written another layout as well, which the stage does not read."""
    stages = (*flow().stages, Stage("zones", "pipelines.ladder:zones", [blocking("weather", by="k")]))
    world.airflow.deploy(Dataflow("ladder", (*stages, sink("zones", "areas"))))
    world.run = world.airflow.dag_run()
    world.faults = Faults(world)

    def damages():
        with world.ledger.transaction("ladder") as session:
            query = select(ResultRow).where(ResultRow.stage == "weather", ResultRow.layout == layout)
            row = session.scalars(query).one()
            names = (row.run, row.stage, row.subtask, row.layout, row.attempt)
            record_losses(session, [Loss(*names, Fault.DAMAGED, "a flipped bit")], world.airflow.time)
        raise ValueError("no luck")

    again = ["report", "delays"] if resumes else ALL
    found = run(world, damages)
    assert [name for name in found if name in ALL] == [*ALL, *again]


def test_a_copy_that_was_made_from_a_damaged_copy_is_not_used(cached_world):
    def fails():
        DAMAGES["a byte"](copies_of(cached_world, "clean")[-1])
        raise Killed

    assert run(cached_world, fails) == [*ALL, *ALL]


def test_a_copy_serves_although_the_copy_that_it_was_made_from_is_gone(cached_world):
    def fails():
        shutil.rmtree(copies_of(cached_world, "clean")[-1])
        raise Killed

    assert run(cached_world, fails) == [*ALL, "report", "delays"]


def test_a_copy_of_other_code_is_not_used(cached_world):
    def edits_the_pipeline():
        cached_world.airflow.engine.code = "edited"
        raise ValueError("no luck")

    faults = cached_world.faults
    found = run(cached_world, edits_the_pipeline, faults.of_the_application)
    assert found == [*ALL, *ALL, "report", "delays"]


def test_a_stage_behind_a_newer_copy_of_other_code_is_resumed_from_its_own_newest(cached_world):
    """Try 1 copied both; try 2, of edited code, only got as far as the first."""

    def edits_the_pipeline():
        cached_world.airflow.engine.code = "edited"
        raise ValueError("no luck")

    def loses_the_second_copy():
        (copies_of(cached_world, "wide")[-1] / "copy.json").unlink()
        raise Killed

    found = run(cached_world, edits_the_pipeline, loses_the_second_copy)
    assert found == [*ALL, *ALL, "wide", "report", "delays"]


DAMAGES = {
    "a byte": lambda folder: flip(folder / "part-0.bin", 3),
    "the end": lambda folder: flip(folder / "part-0.bin", -1),
    "half of it": lambda folder: (folder / "part-0.bin").write_bytes((folder / "part-0.bin").read_bytes()[:20]),
    "a file": lambda folder: (folder / "part-0.bin").unlink(),
    "its description": lambda folder: (folder / "copy.json").unlink(),
    "a byte of its description": lambda folder: flip(folder / "copy.json", 40),
    "a description of another version": lambda folder: rewrite(folder / "copy.json", version=99),
}


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def rewrite(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_copy_that_is_damaged_before_a_retry_is_passed_over_for_the_one_before(cached_world, damage):
    def fails():
        damage(copies_of(cached_world, "wide")[-1])
        raise Killed

    assert run(cached_world, fails) == [*ALL, "wide", "report", "delays"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_copy_that_breaks_while_it_is_read_costs_a_try_and_not_the_task(cached_world, damage):
    def breaks():
        damage(copies_of(cached_world, "wide")[-1])

    found = run(cached_world, cached_world.faults.kill, breaks)
    once = ["report", "delays"]
    # What is gone once it was read does no harm; all else does.
    assert found in ([*ALL, *once], [*ALL, *once, "wide", *once])
    assert result(cached_world) == clean_result(cached_world)


@pytest.mark.parametrize("damage", ["a byte", "the end"])
def test_bytes_of_a_copy_that_changed_while_they_were_read_are_in_no_result(cached_world, damage):
    faults = cached_world.faults
    found = run(cached_world, faults.kill, lambda: DAMAGES[damage](copies_of(cached_world, "wide")[-1]))
    assert found == [*ALL, *["report", "delays"], "wide", "report", "delays"]
    assert cached_world.airflow.task(cached_world.run, TASK).try_number == 3


def test_an_attempts_own_copy_that_breaks_before_it_is_read_is_not_trusted_either(cached_world):
    found = run(cached_world, lambda: DAMAGES["a byte"](copies_of(cached_world, "wide")[-1]))
    assert found == [*ALL, "wide", "report", "delays"]


def test_broken_copies_never_fail_the_task_for_good(cached_world):
    breaks = [lambda: DAMAGES["a byte"](copies_of(cached_world, "wide")[-1])] * 10
    run(cached_world, *breaks)
    assert cached_world.airflow.task(cached_world.run, TASK).try_number == 11


def clean_result(world):
    world.airflow.clear_by_hand(world.run, TASK)
    run(world)
    return result(world)


def test_a_store_that_does_not_answer_about_a_copy_is_asked_again_later(cached_world, monkeypatch):
    read = cached_world.store.read
    failing = [Retryable("the store hangs")] * 2

    def reads(path, *more):
        if path.endswith("copy.json") and failing and not cached_world.faults.left:
            raise failing.pop()
        return read(path, *more)

    monkeypatch.setattr(type(cached_world.store), "read", lambda _self, path, *more: reads(path, *more))
    assert run(cached_world, cached_world.faults.kill)[:5] == ALL
    assert not failing


def test_the_job_says_why_a_copy_is_not_used(cached_world):
    jobs = []
    engine = cached_world.airflow.engine
    execute = engine.run
    engine.run = lambda job, during: jobs.append(job) or execute(job, during)

    def fails():
        DAMAGES["a byte"](copies_of(cached_world, "wide")[-1])
        raise Killed

    run(cached_world, fails)
    [note] = jobs[-1].notes
    assert "the copy of wide in ladder/20130101T000000Z/wide/copy/0/t0001-" in note
    assert "is not used: damaged" in note


def test_what_a_full_disk_leaves_of_copies_is_removed_unless_it_is_whole(cached_world):
    def fills_the_disk():
        (copies_of(cached_world, "wide")[-1] / "copy.json").unlink()
        raise DiskFull("no space left")

    assert run(cached_world, fills_the_disk) == [*ALL, "wide", "report", "delays"]
    assert [len(copies_of(cached_world, stage)) for stage in ("clean", "wide")] == [1, 1]


def test_no_catalogue_takes_a_copy_for_a_result(cached_world):
    from weir.store.catalogue import catalogue

    run(cached_world)
    [epoch] = catalogue(cached_world.store, "ladder")
    assert {each.manifest.layout for each in epoch.stored} == {"plain"}
    assert epoch.notes == ()


def test_a_sink_counts_what_its_stage_counts(world):
    jobs = []
    execute = world.airflow.engine.run
    world.airflow.engine.run = lambda job, during: jobs.append(job) or execute(job, during)
    rule = digest(round={"fare": 2})
    flow = Dataflow(
        "ladder",
        [source("raw", "pipelines.ladder:raw", digest=rule), sink("raw", "delays")],
    )
    world.airflow.deploy(flow)
    world.run_first(1)
    assert {stage.name: stage.digest for stage in jobs[0].stages} == {"raw": rule, "delays": rule}
