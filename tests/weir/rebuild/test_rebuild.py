"""A lost ledger is rebuilt from what the store holds."""

import random
import shutil
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import World, ladder

from weir.coordination.services import Services
from weir.errors import Fenced, Misconfigured, Retryable
from weir.ledger.database.tables import AttemptRow, ConsumptionRow, PublicationRow, ResultRow, RunRow, SourceSplitRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.store.catalogue import published
from weir.store.store import Store

RUN = "ladder@20130101T000000Z"


on_both = pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])


@pytest.fixture
def green(world, tmp_path):
    world.folder = tmp_path
    world.run = world.run_first(1)
    return world


def current(world):
    """What the ledger calls current, as plain values."""
    with world.ledger.transaction() as session:
        return {
            (row.run, row.stage, row.subtask, row.layout): (
                row.attempt,
                row.digest,
                row.folder,
                row.manifest_sha256,
                row.rows,
            )
            for row in session.scalars(select(ResultRow).where(ResultRow.is_current))
        }


def table(world, model):
    columns = [column.name for column in model.__table__.columns if column.name not in ("id", "resolved_at")]
    with world.ledger.transaction() as session:
        return sorted(repr([getattr(row, name) for name in columns]) for row in session.scalars(select(model)))


def lose(world, stage, subtask):
    with world.ledger.transaction() as session:
        query = select(ResultRow.folder).where(
            ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current
        )
        [folder] = session.scalars(query)
    world.store.delete_folder(folder)


def outcome(world):
    return [
        (part.subtask, part.digest)
        for part in published(world.store, "ladder", "delays", "20130101T000000Z").partitions
    ]


def rerun_of(world, before):
    return dict(Counter(world.airflow.executed(world.run)) - Counter(before))


@on_both
def test_all_that_is_valid_is_current_again(green):
    before = current(green), table(green, ConsumptionRow), table(green, PublicationRow), table(green, RunRow)
    green.lose_ledger()
    [built] = rebuild(green.services)
    assert (built.dataflow, built.lineage, built.notes) == ("ladder", 2, ())
    [run] = built.runs
    assert (run.run, run.run_id, run.valid, run.missing, run.published, run.notes) == (RUN, green.run, 9, (), 1, ())
    assert (current(green), table(green, ConsumptionRow), table(green, PublicationRow)) == before[:3]
    with green.ledger.transaction() as session:
        assert {row.origin for row in session.scalars(select(AttemptRow))} == {"rebuilt"}
        assert {row.state for row in session.scalars(select(AttemptRow))} == {"committed"}


def test_after_damage_and_clears_exactly_the_right_tasks_run_again(green):
    chance = random.Random(7)
    for _ in range(6):
        stage, subtask = chance.choice([("joined", 0), ("joined", 1), ("clean", 1), ("totals", 0), ("weather", 0)])
        lose(green, stage, subtask)
        task_id, index = chance.choice([("totals", 0), ("totals", 1), ("routes", -1), ("joined", 1), ("weather", -1)])
        green.airflow.clear_by_hand(green.run, task_id, index)
        green.airflow.run_until_quiet()
    for task_id, index in (("joined", 0), ("joined", 1), ("totals", 0), ("totals", 1), ("routes", -1)):
        green.airflow.clear_by_hand(green.run, task_id, index)
    green.airflow.run_until_quiet()
    before_loss, published_before = current(green), outcome(green)

    green.lose_ledger()
    [built] = rebuild(green.services)
    assert built.runs[0].missing == ()
    assert current(green) == before_loss
    executed = green.airflow.executed(green.run)
    lose(green, "joined", 1)
    green.airflow.clear_by_hand(green.run, "totals", 0)
    green.airflow.run_until_quiet()
    assert rerun_of(green, executed) == {"totals[0]": 2, "joined[1]": 1}
    assert set(green.airflow.states().values()) == {"success"}
    assert outcome(green) == published_before


def test_what_changes_after_a_rebuild_is_published(green):
    green.lose_ledger()
    rebuild(green.services)
    green.content["weather"] = "other"
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert published(green.store, "ladder", "delays", "20130101T000000Z").version == 2


@pytest.mark.parametrize("gone", [["delays"], ["totals"], ["totals", "routes", "delays"]])
def test_what_reads_a_change_runs_again_though_its_manifest_is_gone(green, tmp_path, gone):
    for stage in gone:
        lose(green, stage, 0)
    green.lose_ledger()
    rebuild(green.services)
    executed = green.airflow.executed(green.run)
    green.content["joined"] = "other"
    green.airflow.clear_by_hand(green.run, "joined", 0)
    green.airflow.clear_by_hand(green.run, "joined", 1)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    again = {"joined[0]", "joined[1]", "totals[0]", "totals[1]", "routes[0]", "report-delays[0]", "weir_close[0]"}
    assert set(rerun_of(green, executed)) == again
    whole = World(tmp_path / "whole", ladder())
    whole.content |= green.content
    whole.run_first(1)
    assert outcome(green) == outcome(whole)


def test_clears_find_task_instances_whose_tries_only_the_lost_ledger_knew(green):
    """The close ran twice and published once, so that the store knows of one try only."""
    green.airflow.clear_by_hand(green.run, "weir_close")
    green.airflow.run_until_quiet()
    assert green.airflow.task(green.run, "weir_close").try_number == 2
    green.lose_ledger()
    rebuild(green.services)
    green.content["weather"] = "other"
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    assert published(green.store, "ladder", "delays", "20130101T000000Z").version == 2


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_clear_finds_the_task_instance_of_a_subtask_whose_task_has_become_mapped(tmp_path, is_rebuilt):
    world = World(tmp_path, ladder(1))
    run = world.run_first(1)
    world.airflow.deploy(ladder(3))
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    if is_rebuilt:
        world.lose_ledger()
        rebuild(world.services)
    lose(world, "clean", 0)
    world.airflow.clear_by_hand(run, "joined", 0)
    tries = world.airflow.task(run, "raw-clean", 0).try_number
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "raw-clean", 0).try_number == tries + 1
    assert set(world.airflow.states().values()) == {"success", "removed"}


def test_an_older_attempt_is_fenced(green):
    task = green.airflow.task(green.run, "weather")
    green.airflow.clear_by_hand(green.run, "weather")
    task.try_number, task.state = 2, "running"
    begun = green.airflow.coordinator.begin(green.airflow.request(task), green.airflow)
    green.lose_ledger()
    rebuild(green.services)
    with pytest.raises(Fenced):
        green.airflow.coordinator.commit(begun, green.airflow.engine.run(begun.job), green.airflow)
    task.state = "up_for_retry"
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}


def test_an_older_attempt_of_a_region_that_never_committed_is_fenced(world, tmp_path):
    world.folder, run = tmp_path, world.airflow.dag_run()
    task = world.airflow.task(run, "weather")
    task.try_number, task.state = 1, "running"
    begun = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    world.lose_ledger()
    rebuild(world.services)
    with pytest.raises(Fenced):
        world.airflow.coordinator.commit(begun, world.airflow.engine.run(begun.job), world.airflow)


@on_both
def test_over_an_existing_ledger_what_runs_is_fenced_too(green):
    task = green.airflow.task(green.run, "weather")
    green.airflow.clear_by_hand(green.run, "weather")
    task.try_number, task.state = 2, "running"
    begun = green.airflow.coordinator.begin(green.airflow.request(task), green.airflow)
    before = current(green)
    rebuild(green.services, "ladder")
    assert current(green) == before
    with pytest.raises(Fenced):
        green.airflow.coordinator.commit(begun, green.airflow.engine.run(begun.job), green.airflow)


@on_both
def test_twice_is_as_once(green):
    green.lose_ledger()
    rebuild(green.services)
    once = [current(green)] + [table(green, model) for model in (AttemptRow, ConsumptionRow, PublicationRow, RunRow)]
    [again] = rebuild(green.services)
    assert [current(green)] + [
        table(green, model) for model in (AttemptRow, ConsumptionRow, PublicationRow, RunRow)
    ] == once
    assert (again.lineage, again.runs[0].missing) == (3, ())


def test_stale_results_are_left_out_and_closing_the_run_makes_them_again(green):
    green.content["weather"] = "other"
    green.airflow.reachable = False
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.step(green.airflow.task(green.run, "weather"))  # it owes clears, which are lost with the ledger
    green.lose_ledger()
    green.airflow.reachable = True
    [built] = rebuild(green.services)
    [run] = built.runs
    assert [str(region) for region in run.missing] == [
        "joined[0]", "joined[1]", "totals[0]", "totals[1]", "routes[0]", "report-delays[0]",
    ]  # fmt: skip
    assert any("clear weir_close" in note for note in run.notes)
    green.airflow.clear_by_hand(green.run, "weir_close")
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert published(green.store, "ladder", "delays", "20130101T000000Z").version == 2


def test_an_older_try_is_taken_where_the_newest_has_no_manifest(green):
    with green.ledger.transaction() as session:
        old = session.scalar(select(ResultRow.attempt).where(ResultRow.stage == "weather"))
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    lose(green, "weather", 0)
    green.lose_ledger()
    [built] = rebuild(green.services)
    assert built.runs[0].missing == ()
    assert {found[0] for (_, stage, *_), found in current(green).items() if stage == "weather"} == {old}


@pytest.mark.parametrize(("changed", "gone"), [("weather", "weather"), ("report", "delays"), ("weather", "delays")])
def test_an_older_try_is_not_taken_where_the_newest_had_other_rows(green, changed, gone):
    green.airflow.collects = False
    green.content[changed] = "corrected"
    green.airflow.clear_run_by_hand(green.run)
    green.airflow.run_until_quiet()
    corrected = outcome(green)
    lose(green, gone, 0)
    green.lose_ledger()
    [built] = rebuild(green.services)
    assert built.runs[0].is_outdated
    green.airflow.clear_by_hand(green.run, "weir_close")
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert outcome(green) == corrected


def test_of_two_tries_with_one_number_that_of_the_later_revision_is_taken_whatever_the_clocks_say(green):
    task = green.airflow.task(green.run, "weather")
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.step(task)
    [data] = (green.folder / "store").glob("ladder/*/weather/*/0/t0002-*/part-*")
    data.unlink()
    task.state, task.try_number = None, 1  # Airflow's database is what it was before
    id_of = green.airflow.ti_id
    green.airflow.ti_id = lambda each: f"another {id_of(each)}" if each is task else id_of(each)
    green.airflow.time -= timedelta(days=1)
    green.airflow.step(task)
    assert task.runs == [1, 2, 2]
    before = current(green)
    green.lose_ledger()
    rebuild(green.services)
    assert current(green) == before


@on_both
def test_over_an_existing_ledger_the_older_try_counts_where_the_newest_is_gone(green):
    green.airflow.collects = False
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    lose(green, "weather", 0)
    [built] = rebuild(green.services)
    assert built.runs[0].missing == ()
    green.airflow.clear_by_hand(green.run, "joined", 0)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert green.airflow.task(green.run, "weather").runs == [1, 2]


def test_a_manifest_that_cannot_be_read_is_told_of(green):
    [manifest] = (green.folder / "store").glob("ladder/*/totals/*/0/*/manifest.json")
    manifest.write_text(manifest.read_text()[:100])
    green.lose_ledger()
    [built] = rebuild(green.services)
    [run] = built.runs
    assert "totals[0]" in [str(region) for region in run.missing]
    assert any("totals" in note and "cannot be read" in note for note in run.notes)


def test_an_epoch_without_a_record_is_told_of_and_its_run_computes_anew(green):
    (green.folder / "store/ladder/20130101T000000Z/_run.json").unlink()
    green.lose_ledger()
    [built] = rebuild(green.services)
    assert built.runs == ()
    assert "epoch 20130101T000000Z has 9 result(s) but no record" in built.notes[0]
    green.airflow.clear_run_by_hand(green.run)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}


def test_results_from_before_an_adoption_are_not_taken(green):
    green.airflow.deploy(ladder(4))
    adopt(green.services, RUN)
    green.lose_ledger()
    [built] = rebuild(green.services)
    assert any("pinned anew" in note for note in built.runs[0].notes)
    assert current(green) == {}
    # Only some tasks of the new topology have run when the ledger is lost again.
    for index in (1, 2):
        green.airflow.clear_by_hand(green.run, "raw-clean", index)
        assert green.airflow._ready() is not None  # the scheduler adds the subtasks that are new
        green.airflow.step(green.airflow.task(green.run, "raw-clean", index))
    green.lose_ledger()
    rebuild(green.services)
    assert {key[1:3] for key in current(green)} == {("clean", 1), ("clean", 2)}


def test_a_ledger_that_was_lost_catches_up_and_does_not_mix_two_topologies(green):
    before = {key: found[1] for key, found in current(green).items()}
    green.lose_ledger()
    green.airflow.deploy(ladder(4))
    green.airflow.clear_run_by_hand(green.run)
    green.airflow.run_until_quiet()
    assert {key: found[1] for key, found in current(green).items()} == before
    adopt(green.services, RUN)
    green.airflow.clear_run_by_hand(green.run)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}


def test_splits_are_known_again_from_the_manifests(tmp_path):
    (tmp_path / "store").mkdir()
    world = World(tmp_path, with_splits())
    world.folder, run = tmp_path, world.airflow.dag_run()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    with world.ledger.transaction() as session:
        before = session.scalar(select(SourceSplitRow.splits))
    assert before == ["2013-01-01/0", "2013-01-01/1"]
    world.lose_ledger()
    [built] = rebuild(world.services)
    assert built.runs[0].notes == ()
    with world.ledger.transaction() as session:
        assert session.scalar(select(SourceSplitRow.splits)) == before
    assert run == "scheduled__2013-01-01"

    [manifest] = (tmp_path / "store").glob("*/*/clean/*/1/*/manifest.json")
    manifest.unlink()
    world.lose_ledger()
    [built] = rebuild(world.services)
    assert any("source raw read is not known" in note for note in built.runs[0].notes)


def with_splits():
    from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source

    return Dataflow(
        "with_splits",
        [
            source("raw", "pipelines.x:raw", parallelism=2, resolve="weir.testing.fakes.engine:splits_by_day"),
            Stage("clean", "pipelines.x:clean", [pipelined("raw")], parallelism=2),
            Stage("all", "pipelines.x:all", [blocking("clean")]),
            sink("all", "out"),
        ],
    )


def test_an_unknown_dataflow_is_refused_with_those_that_are_known(green):
    with pytest.raises(Misconfigured, check=of_kind("rebuild.dataflow_unknown", dataflow="nothing", names="ladder")):
        rebuild(green.services, "nothing")


def test_a_store_that_is_not_mounted_is_refused(green):
    green.lose_ledger()
    (green.folder / "empty").mkdir()
    services = Services(ledger=green.ledger, store=Store.open(str(green.folder / "empty")))
    with pytest.raises(Misconfigured, check=of_kind("rebuild.no_store")):
        rebuild(services)
    assert list((green.folder / "empty").iterdir()) == []


def test_a_store_that_goes_away_changes_no_result(green):
    before = current(green)
    shutil.move(green.folder / "store", green.folder / "elsewhere")
    (green.folder / "store").mkdir()
    with pytest.raises((Misconfigured, Retryable)):
        rebuild(green.services)
    assert current(green) == before


def test_a_released_result_is_not_taken_for_lost(green):
    flow = green.airflow.flow
    green.airflow.deploy(type(flow)(flow.name, flow.stages, keep="end_of_run"))
    second = green.airflow.dag_run(2)
    green.airflow.run_until_quiet()

    def states():
        with green.ledger.transaction() as session:
            rows = session.scalars(select(ResultRow).where(ResultRow.is_current))
            return {(row.run, row.stage, row.subtask, row.layout): row.state for row in rows}

    before = states()
    assert set(before.values()) == {"finished", "released"}
    green.lose_ledger()
    [built] = rebuild(green.services)
    assert [run.missing for run in built.runs] == [(), ()]
    assert states() == before
    green.airflow.clear_by_hand(second, "totals", 0)
    green.airflow.run_until_quiet()
    assert green.airflow.task(second, "totals", 0).state == "success"
    assert states()[(RUN, "delays", 0, "plain")] == "finished"
