"""A source that goes on reads in each epoch what has come since the epoch before, whatever happens to either."""

import gzip
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.keeping import epoch

from weir.coordination import positions
from weir.dataflow import Dataflow, NotReady, Resolved, Stage, blocking, keyed_state, sink, source
from weir.dataflow.resolving import ResolveContext
from weir.errors import Misconfigured, Retryable, SuppressRestarts
from weir.formats.paths import positions_folder
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.sources import forget_splits, range_of, splits_of
from weir.rebuild.rebuild import rebuild
from weir.recovery import resolving
from weir.recovery.adopt import adopt
from weir.recovery.resolving import resolve
from weir.retention.sweep import sweep
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create
from weir.snapshots.seal import seal_plan, seal_run
from weir.store.probe import read_manifest
from weir.store.walk import files_below
from weir.topology.regions import RegionId
from weir.views.tasks import sources_of_task

HERE = "tests.weir.ledger.test_sources_that_go_on"
START = datetime(2013, 1, 1, tzinfo=UTC)
THERE = {"items": 0, "is_ready": True, "asked": [], "meanwhile": None, "broken": None}
"""What the source has: the items 0 to `items` - 1; `meanwhile` is called while its resolver is asked, once.

In the epoch `broken` the resolver fails.
"""


def items_since(ctx):
    """Resolve the source: the items of a range are divided among the subtasks."""
    THERE["asked"].append(ctx)
    if THERE["broken"] == ctx.epoch:
        raise SuppressRestarts("the service refuses")
    if not THERE["is_ready"]:
        return NotReady("the last item has not come")
    first = 0 if ctx.previous is None else ctx.previous.position["items"]
    last = THERE["items"] if ctx.recorded is None else ctx.recorded.position["items"]
    meanwhile, THERE["meanwhile"] = THERE["meanwhile"], None
    if meanwhile is not None:
        meanwhile()
    return Resolved([list(range(first, last))[i :: ctx.parallelism] for i in range(ctx.parallelism)], {"items": last})


@pytest.fixture(autouse=True)
def there():
    THERE.update(items=3, is_ready=True, asked=[], meanwhile=None, broken=None)
    return THERE


def numbers(name="numbers", **settings):
    return source(name, f"pipelines.numbers:{name}", resolve=f"{HERE}:items_since", goes_on=True, **settings)


def flow(*sources):
    sources = sources or (numbers(),)
    joined = Stage("joined", "pipelines.numbers:joined", [blocking(each) for each in sources])
    return Dataflow("ladder", [*sources, joined, sink(joined, "delays")])


@pytest.fixture
def world(world):
    world.airflow.deploy(flow())
    return world


def day(world, number, **settings):
    run = world.airflow.dag_run(number, **settings)
    world.airflow.run_until_quiet()
    return run


def fail(world, task_id=None):
    """Have the computation of a task fail from now on; None: of none."""

    def during(key):
        if key.task_id == task_id:
            raise SuppressRestarts("it fails")

    world.airflow.during = during


def read(world, number, name="numbers"):
    with world.ledger.transaction() as session:
        found = splits_of(session, f"ladder@{epoch(number)}", name)
    return None if found is None else sorted(item for split in found for item in split)


def read_by_results(world, number):
    """The items that the current results of a day have been made of."""
    with world.ledger.transaction() as session:
        query = select(ResultRow.folder).where(
            ResultRow.run == f"ladder@{epoch(number)}", ResultRow.stage == "numbers", ResultRow.is_current
        )
        folders = list(session.scalars(query))
    return sorted(item for folder in folders for item in read_manifest(world.store, folder).source["numbers"])


def range_of_day(world, number):
    with world.ledger.transaction() as session:
        return range_of(session, f"ladder@{epoch(number)}", "numbers")


def test_an_epoch_reads_what_has_come_since_the_one_before(world, there):
    day(world, 1)
    there["items"] = 5
    day(world, 2)
    day(world, 3)
    there["items"] = 6
    day(world, 4)
    assert [read(world, number) for number in (1, 2, 3, 4)] == [[0, 1, 2], [3, 4], [], [5]]


def test_a_resolver_sees_the_splits_and_the_position_of_the_epoch_before(world, there):
    day(world, 1)
    day(world, 2)
    first, second = (each.previous for each in there["asked"])
    assert (first, second) == (None, Resolved([[0, 1, 2]], {"items": 3}))


def test_a_clear_reads_the_same_also_after_the_next_epoch_has_gone_on(world, there):
    first = day(world, 1)
    there["items"] = 5
    day(world, 2)
    there["items"] = 9
    world.airflow.clear_run_by_hand(first)
    world.airflow.run_until_quiet()
    assert (read(world, 1), read(world, 2)) == ([0, 1, 2], [3, 4])
    assert len(there["asked"]) == 2


def test_an_epoch_waits_only_until_the_one_before_is_resolved(world):
    fail(world, "joined-delays")
    first = day(world, 1)
    second = day(world, 2)
    assert world.airflow.state_of(first) == "failed"
    assert world.airflow.task(second, "numbers").state == "success"


@pytest.mark.parametrize("seed", range(4))
def test_each_item_is_read_once_though_the_epoch_before_is_resolved_anew_while_the_resolver_is_asked(world, seed):
    items = Random(seed).sample(range(3, 9), k=2)
    fail(world, "joined-delays")
    first = day(world, 1)

    def resolve_anew():
        with world.ledger.transaction("ladder") as session:
            forget_splits(session, f"ladder@{epoch(1)}")
        THERE["items"] = max(items)
        world.airflow.clear_by_hand(first, "numbers")
        world.airflow.step(world.airflow.task(first, "numbers"))

    THERE.update(items=min(items), meanwhile=resolve_anew)
    second = day(world, 2)
    fail(world)
    for run in (first, second):
        world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert read(world, 1) + read(world, 2) == list(range(max(items)))


@pytest.mark.parametrize("seed", range(6))
def test_each_item_is_read_once_whatever_fails_and_is_cleared_in_any_order(world, there, seed):
    random, airflow = Random(seed), world.airflow
    airflow.deploy(flow(numbers(parallelism=2)))
    for number in (1, 2, 3):
        airflow.dag_run(number)

    def perhaps_fail(_key):
        if random.random() < 0.4:
            raise SuppressRestarts("it fails")

    def clear(most):
        failed = [task for task in airflow.tasks.values() if task.state == "failed"]
        for task in random.sample(failed, min(most, len(failed))):
            airflow.clear_by_hand(task.key.run_id, task.key.task_id, task.key.map_index)
        return failed

    airflow.during = perhaps_fail
    for _ in range(30):
        there["items"] += random.choice((0, 0, 1))
        if runnable := airflow._runnable():
            airflow.step(random.choice(runnable))
        if random.random() < 0.3:
            clear(1)
    fail(world)
    while clear(10) or airflow._runnable():
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    assert [read_by_results(world, number) for number in (1, 2, 3)] == [read(world, number) for number in (1, 2, 3)]
    every = [item for number in (1, 2, 3) for item in read(world, number)]
    assert every == list(range(len(every)))


def sealed(world, number):
    seal_run(world.services, seal_plan(world.services, f"ladder@{epoch(number)}"), world.airflow, "ada")
    world.airflow.run_until_quiet()


def mended(world, run):
    """A person clears a run whose cause of failure is gone."""
    fail(world)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()


def test_what_a_sealed_day_has_read_waits_for_it_and_later_days_read_the_rest(world, there):
    day(world, 1)
    there["items"] = 5
    fail(world, "joined-delays")
    second = day(world, 2)
    sealed(world, 2)
    there["items"] = 6
    fail(world)
    day(world, 3)
    there["items"] = 9
    assert [read_by_results(world, number) for number in (1, 3)] == [[0, 1, 2], [5]]
    mended(world, second)
    assert [read_by_results(world, number) for number in (1, 2, 3)] == [[0, 1, 2], [3, 4], [5]]


def unresolved_and_sealed(world, there):
    """A day before which all is read, and that fails to resolve its source; answers its run."""
    day(world, 1)
    there["items"], there["broken"] = 5, epoch(2)
    run = day(world, 2)
    assert read(world, 2) is None
    sealed(world, 2)
    there["broken"] = None
    return run


def test_a_sealed_day_that_is_mended_before_another_has_gone_on_reads_what_is_there(world, there):
    second = unresolved_and_sealed(world, there)
    mended(world, second)
    there["items"] = 9
    day(world, 3)
    assert [read_by_results(world, number) for number in (1, 2, 3)] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_sealed_day_reads_nothing_once_a_later_one_has_gone_on(world, there, is_rebuilt):
    second = unresolved_and_sealed(world, there)
    day(world, 3)
    there["items"] = 9
    if is_rebuilt:
        world.lose_ledger()
        rebuild(world.services, "ladder")
    mended(world, second)
    day(world, 4)
    found = [read_by_results(world, number) for number in (1, 2, 3, 4)]
    assert found == [[0, 1, 2], [], [3, 4], [5, 6, 7, 8]]


def test_the_first_day_of_a_source_is_not_sealed(world, there):
    there["broken"] = epoch(1)
    day(world, 1)
    plan = seal_plan(world.services, f"ladder@{epoch(1)}")
    assert "Delete its DagRun" in plan.impossible


def test_an_epoch_before_that_is_queued_is_started(world):
    first = world.airflow.dag_run(1, is_queued=True)
    second = day(world, 2)
    assert {world.airflow.state_of(each) for each in (first, second)} == {"success"}
    assert (read(world, 1), read(world, 2)) == ([0, 1, 2], [])


def test_a_source_that_is_not_ready_is_asked_again_without_a_further_try(world, there):
    there["is_ready"] = False
    run = world.airflow.dag_run(1)
    task = world.airflow.task(run, "numbers")
    world.airflow.step(task)
    there["is_ready"] = True
    world.airflow.run_until_quiet()
    assert (world.airflow.state_of(run), task.try_number) == ("success", 1)
    assert there["asked"][-1].waited >= there["asked"][0].waited


def test_a_trial_of_it_reads_what_would_be_read_now(there):
    context = ResolveContext(
        "ladder", "20130101T000000Z", (START, START), 2, {}, previous=Resolved([[0]], {"items": 1})
    )
    assert resolve(numbers(parallelism=2), context) == [[1], [2]]
    there["is_ready"] = False
    with pytest.raises(Retryable, check=of_kind("recovery.source_not_ready")):
        resolve(numbers(), context)


def test_an_epoch_before_the_first_is_refused(world):
    day(world, 2)
    first = day(world, 1)
    assert world.airflow.state_of(first) == "failed"
    assert read(world, 1) is None


def test_an_adopted_run_divides_the_same_range_among_its_new_subtasks(world, there):
    first = day(world, 1)
    there["items"] = 5
    day(world, 2)
    world.airflow.deploy(flow(numbers(parallelism=2)))
    adopt(world.services, first)
    world.airflow.clear_run_by_hand(first)
    world.airflow.run_until_quiet()
    with world.ledger.transaction() as session:
        assert splits_of(session, f"ladder@{epoch(1)}", "numbers") == [[0, 2], [1]]
    assert there["asked"][-1].recorded == Resolved([[0, 1, 2]], {"items": 3})
    assert world.airflow.state_of(first) == "success"


def test_a_renamed_source_goes_on_from_its_former_name(world, there):
    day(world, 1)
    there["items"] = 5
    world.airflow.deploy(flow(numbers("figures", moved_from="numbers")))
    day(world, 2)
    assert read(world, 2, "figures") == [3, 4]


def test_another_name_without_the_former_one_is_refused(world):
    day(world, 1)
    world.airflow.deploy(flow(numbers("figures")))
    second = day(world, 2)
    assert world.airflow.state_of(second) == "failed"
    assert read(world, 2, "figures") is None


def test_a_former_name_that_no_epoch_has_had_is_refused(world):
    """It was renamed twice between two epochs: by the name in between it would begin anew."""
    day(world, 1)
    world.airflow.deploy(flow(numbers("figures", moved_from="digits")))
    second = day(world, 2)
    assert world.airflow.state_of(second) == "failed"
    assert read(world, 2, "figures") is None


FORMER, RENAMED = numbers(), numbers("figures", moved_from="numbers")


@pytest.mark.parametrize(("before", "since"), [(FORMER, FORMER), (FORMER, RENAMED), (RENAMED, FORMER)])
def test_an_epoch_before_one_that_was_deleted_is_refused_by_any_name_of_the_source(world, there, before, since):
    day(world, 1)
    there["items"] = 5
    world.airflow.deploy(flow(before))
    third = day(world, 3)
    there["items"] = 7
    world.airflow.delete(third)
    with world.ledger.transaction("ladder") as session:
        session.get_one(RunRow, f"ladder@{epoch(3)}").deleted_at = world.airflow.time
    world.airflow.deploy(flow(since))
    second = day(world, 2)
    assert world.airflow.state_of(second) == "failed"
    assert read(world, 2, since.name) is None


def test_a_former_name_that_the_epoch_before_did_not_have_is_gone_on_from(world, there):
    day(world, 1)
    world.airflow.deploy(flow(numbers(), numbers("other")))
    day(world, 2)
    world.airflow.deploy(flow(numbers("other")))
    day(world, 3)
    there["items"] = 5
    world.airflow.deploy(flow(numbers("more", moved_from="other"), numbers("figures", moved_from="numbers")))
    day(world, 4)
    assert read(world, 4, "figures") == [3, 4]


def test_a_source_that_an_epoch_did_not_have_goes_on_from_the_last_that_had_it(world, there):
    day(world, 1)
    other = numbers("figures")
    world.airflow.deploy(flow(numbers(), other))
    there["items"] = 4
    day(world, 2)
    world.airflow.deploy(flow(other))
    there["items"] = 5
    day(world, 3)
    world.airflow.deploy(flow(numbers(), other))
    there["items"] = 6
    day(world, 4)
    assert (read(world, 2), read(world, 4)) == ([3], [4, 5])


def test_a_lost_ledger_is_rebuilt_with_every_range_also_of_what_was_never_committed(world, there):
    day(world, 1)
    there["items"] = 5
    fail(world, "numbers")
    second = day(world, 2)
    there["items"] = 7
    day(world, 3)
    world.lose_ledger()
    rebuild(world.services)
    there["items"] = 9
    fail(world)
    world.airflow.clear_run_by_hand(second)
    day(world, 4)
    assert [read(world, number) for number in (1, 2, 3, 4)] == [[0, 1, 2], [3, 4], [5, 6], [7, 8]]


def test_what_was_neither_read_nor_gone_on_from_is_resolved_anew(world, there):
    fail(world, "numbers")
    run = day(world, 1)
    there["items"] = 5
    fail(world)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert read(world, 1) == [0, 1, 2, 3, 4]


def without_sink():
    read = numbers()
    history = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")
    return Dataflow(
        "ladder", [read, Stage("known", "pipelines.numbers:known", [blocking(read, by="k")], state=history)]
    )


def test_a_range_that_a_checkpoint_has_read_stays_though_nothing_is_published(world, there):
    """What is restored has read it to its end, and the next epoch goes on from there."""
    world.airflow.deploy(without_sink())
    day(world, 1)
    there["items"] = 5
    run = day(world, 2)
    create(world.services, SavepointRequest("ladder", name="mine"))
    there["items"] = 8
    adopt(world.services, run)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    restore(world.services, RestoreRequest("ladder", "mine"))
    day(world, 3)
    assert [read(world, number) for number in (1, 2, 3)] == [[0, 1, 2], [3, 4], [5, 6, 7]]


def test_a_large_position_is_a_file_of_the_store(world, there, monkeypatch):
    monkeypatch.setattr(positions, "_LARGEST_VALUE", 4)
    day(world, 1)
    day(world, 2)
    there["items"] = 5
    day(world, 3)
    found = [range_of_day(world, number).position["file"] for number in (1, 2, 3)]
    assert (found[0] == found[1], found[1] == found[2]) == (True, False)
    assert read(world, 3) == [3, 4]


def position_files(world):
    return {each.path for each in files_below(world.store, [positions_folder("ladder")])}


def expire(world, *numbers):
    with world.ledger.transaction("ladder") as session:
        for number in numbers:
            session.get_one(RunRow, f"ladder@{epoch(number)}").expired_at = world.airflow.time


def test_a_position_is_deleted_when_no_run_goes_on_from_it_any_more(world, there, monkeypatch):
    monkeypatch.setattr(positions, "_LARGEST_VALUE", 4)
    for number in (1, 2, 3):
        there["items"] += 1
        day(world, number)
    expire(world, 1, 2, 3)
    world.airflow.time = datetime.now(UTC) + timedelta(days=60)  # the files have the machine's time
    kept = {range_of_day(world, 3).position["file"]}
    assert (len(position_files(world)), kept < position_files(world)) == (3, True)
    sweep(world.services, "ladder", is_full=True)
    assert position_files(world) == kept
    there["items"] += 1
    day(world, 4)
    assert read(world, 4) == [6]


def test_a_sweep_of_files_of_any_age_leaves_a_position_that_is_about_to_be_recorded(world, there, monkeypatch):
    """Its file is written before the row that names it."""
    monkeypatch.setattr(positions, "_LARGEST_VALUE", 4)
    write = positions.stored_position

    def swept(*given):
        found = write(*given)
        world.airflow.time = max(world.airflow.time, datetime.now(UTC))
        sweep(world.services, "ladder", is_full=True, older_than=timedelta())
        return found

    monkeypatch.setattr(resolving, "stored_position", swept)
    world.airflow.time = datetime.now(UTC)  # the files have the machine's time
    day(world, 1)
    assert position_files(world) == {range_of_day(world, 1).position["file"]}
    there["items"] = 5
    day(world, 2)
    assert read(world, 2) == [3, 4]


def test_a_position_that_is_gone_or_damaged_is_told_and_nothing_is_read(world, monkeypatch):
    monkeypatch.setattr(positions, "_LARGEST_VALUE", 4)
    day(world, 1)
    path = range_of_day(world, 1).position["file"]
    world.store.replace(path, gzip.compress(b"{}"))
    with pytest.raises(Misconfigured, check=of_kind("coordination.position_damaged", path=path)):
        positions.loaded_position(world.services, range_of_day(world, 1).position)
    world.store.delete(path)
    with pytest.raises(Misconfigured, check=of_kind("coordination.position_gone", path=path)):
        positions.loaded_position(world.services, range_of_day(world, 1).position)
    assert world.airflow.state_of(day(world, 2)) == "failed"
    assert read(world, 2) is None


def test_the_range_of_a_task_is_shown(world):
    day(world, 1)
    day(world, 2)
    with world.ledger.transaction() as session:
        first, second = (sources_of_task(session, f"ladder@{epoch(each)}", RegionId("numbers", 0)) for each in (1, 2))
    assert [(each.since, each.position) for each in (*first, *second)] == [
        ("", {"value": {"items": 3}}),
        (f"ladder@{epoch(1)}", {"value": {"items": 3}}),
    ]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"resolve": None}, "dataflow.goes_on_without_resolve"),
        ({"goes_on": False, "moved_from": "other"}, "dataflow.moved_without_going_on"),
        ({"moved_from": "numbers"}, "dataflow.moved_from_itself"),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_runs(settings, kind):
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        flow(replace(numbers(), **settings))
