"""What a source with keep="copy" has read first is what every later attempt of its run reads."""

from dataclasses import replace

import pytest
from tests.messages.kinds import of_kind
from tests.weir.keeping import epoch
from tests.weir.retention.test_sweep import grow_old

from weir.dataflow import Dataflow, Resolved, Stage, blocking, pipelined, sink, source
from weir.formats.codec import from_json
from weir.formats.manifest import StageCopy
from weir.integrity.verification import verify_runs
from weir.ledger.sources import copied_bytes, copied_subtasks, copy_ids
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.retention.sizes import bytes_at_rest
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Garbage
from weir.store.catalogue import published
from weir.store.walk import files_below
from weir.testing.fakes.airflow import Killed
from weir.trials.trial import Trimming

HERE = "tests.weir.coordination.test_source_copies"
TASK = "visits-clean"
RUN = f"ladder@{epoch(1)}"
ASKED = []


def by_interval(ctx):
    ASKED.append(ctx)
    return [{"rows of": subtask} for subtask in range(ctx.parallelism)]


def since(ctx):
    ASKED.append(ctx)
    return Resolved([{"rows of": subtask} for subtask in range(ctx.parallelism)], {"at": ctx.interval[1].day})


@pytest.fixture(autouse=True)
def asked():
    ASKED.clear()
    return ASKED


def visits(resolve="by_interval", keep="copy", **settings):
    return source(
        "visits", "weir_spark.sources.jdbc:read", resolve=f"{HERE}:{resolve}", options={"keep": keep}, **settings
    )


def flow(given=None, **settings):
    """A table of a database, which a stage of the same task makes clean."""
    given = given or visits(**settings)
    clean = Stage("clean", "pipelines.ladder:clean", [pipelined(given)], parallelism=given.parallelism)
    report = Stage("report", "pipelines.ladder:report", [blocking(clean)])
    return Dataflow("ladder", [given, clean, report, sink(report, "delays")])


going = pytest.mark.parametrize("settings", [{}, {"resolve": "since", "goes_on": True}], ids=["by interval", "goes on"])


@pytest.fixture
def world(world):
    world.content["visits"] = "as it was"
    world.airflow.deploy(flow())
    return world


def day(world, number=1):
    run = world.airflow.dag_run(number)
    world.airflow.run_until_quiet()
    return run


def update(world):
    world.content["visits"] = "as it is now"


def again(world, run, task=None):
    """Have a task of a run, or all of them, be cleared and run."""
    world.airflow.clear_by_hand(run, task) if task else world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()


def rows(world, number=1):
    parts = published(world.store, "ladder", "delays", epoch(number)).partitions
    return [each.digest for each in parts]


def readings(world):
    return world.airflow.engine.computed.count("visits")


def files(world, number=1):
    """The files of the copies of a day, by name."""
    found = files_below(world.store, [f"ladder/{epoch(number)}/visits/source-copy"])
    return sorted(each.path for each in found)


def failing(world, *errors):
    """Have the next tries of the source's task fail once what it has read is copied."""
    left = list(errors)

    def during(key):
        if key.task_id == TASK and left:
            raise left.pop(0)

    world.airflow.during = during


def before_it_is_described(world, monkeypatch, do):
    """Have something happen once, when the first copy is about to be described."""
    create, left = type(world.store).create, [do]

    def creates(store, path, data):
        if left and "source-copy" in path and path.endswith("copy.json"):
            left.pop()()
        create(store, path, data)

    monkeypatch.setattr(type(world.store), "create", creates)


def refusals(world):
    """The errors with which attempts do not begin from now on."""
    found, begin = [], world.airflow.coordinator.begin

    def begins(*given):
        try:
            return begin(*given)
        except Exception as error:
            found.append(error)
            raise

    world.airflow.coordinator.begin = begins
    return found


def test_a_lost_result_is_made_of_the_copy_though_the_source_has_other_rows(world):
    run = day(world)
    before = rows(world)
    update(world)
    world.lose("clean", 0)
    again(world, run, "report-delays")
    assert (readings(world), rows(world), len(ASKED)) == (1, before, 1)
    assert world.airflow.task(run, TASK).try_number == 2


def test_a_clear_by_a_person_reads_the_copy_also_with_other_code(world):
    world.deploy()
    run = day(world)
    before = rows(world)
    update(world)
    again(world, run)
    assert (readings(world), rows(world)) == (1, before)
    world.deploy(clean=1)
    again(world, run)
    assert readings(world) == 1
    assert rows(world) != before


def test_without_it_the_source_is_asked_again_and_nothing_is_copied(world):
    world.airflow.deploy(flow(keep=""))
    run = day(world)
    before = rows(world)
    update(world)
    again(world, run)
    assert readings(world) == 2
    assert rows(world) != before
    assert files(world) == []


def test_a_try_that_fails_once_it_is_copied_binds_the_next_one(world):
    failing(world, ValueError("no luck"), Killed())
    day(world)
    assert (readings(world), len(ASKED)) == (1, 1)
    assert set(world.airflow.states().values()) == {"success"}


def test_a_try_that_fails_before_it_is_copied_binds_nobody(world, monkeypatch):
    def dies():
        update(world)
        raise Killed

    before_it_is_described(world, monkeypatch, dies)
    run = day(world)
    assert (readings(world), len(ASKED)) == (2, 2)
    present = rows(world)
    again(world, run)
    assert (readings(world), rows(world)) == (2, present)
    grow_old(world, 30)
    sweep(world.services, "ladder", is_full=True)
    assert len(files(world)) == 2, "what the killed try has left is deleted"


def test_of_two_attempts_that_copy_at_once_both_read_the_first_ones_rows(world, monkeypatch):
    run, reports = world.airflow.engine.run, []

    def with_another(job, during):
        def is_faster():
            update(world)
            reports.append(run(of_another_attempt(job), lambda: None))

        if not reports:
            before_it_is_described(world, monkeypatch, is_faster)
        reports.append(run(job, during))
        return reports[-1]

    world.airflow.engine.run = with_another
    done = day(world)
    first, second = ({str(output.digest) for output in each.outputs} for each in reports[:2])
    assert first == second
    [description, _data] = files(world)
    assert from_json(StageCopy, world.store.read(description)).attempt == OTHER
    world.content["visits"] = "as it will be"
    before = rows(world)
    again(world, done)
    assert rows(world) == before


OTHER = "t009-another"


def of_another_attempt(job):
    """The same job, as an attempt has it that writes elsewhere."""

    def elsewhere(value):
        folder, spark_folder = (each.replace(job.attempt, OTHER) for each in (value.folder, value.spark_folder))
        return replace(value, folder=folder, spark_folder=spark_folder)

    stages = (
        replace(each, outputs=tuple(map(elsewhere, each.outputs)), copy=each.copy and elsewhere(each.copy))
        for each in job.stages
    )
    return replace(job, attempt=OTHER, stages=tuple(stages))


@going
def test_a_rebuilt_ledger_knows_of_the_copy(world, settings):
    world.airflow.deploy(flow(**settings))
    run = day(world)
    before = rows(world)
    update(world)
    world.lose_ledger()
    rebuild(world.services)
    with world.ledger.transaction() as session:
        assert copied_subtasks(session, RUN, "visits").keys() == {0}
    again(world, run)
    assert (readings(world), rows(world)) == (0, before)


def test_an_adopted_run_asks_the_source_again_and_its_former_copy_is_garbage(world):
    run = day(world)
    before, old = rows(world), files(world)
    update(world)
    adopt(world.services, run)
    again(world, run)
    assert rows(world) != before
    grow_old(world, 30)
    report = sweep(world.services, "ladder", is_full=True)
    [deleted] = [each.path for each in report.deleted if each.kind is Garbage.SOURCE_COPY]
    assert all(each.startswith(deleted) for each in old)
    assert len(files(world)) == 2


def test_a_range_from_which_a_later_epoch_has_gone_on_keeps_its_copy_in_an_adopted_run(world):
    world.airflow.deploy(flow(resolve="since", goes_on=True))
    first = day(world)
    day(world, 2)
    before = rows(world)
    update(world)
    adopt(world.services, first)
    again(world, first)
    assert (readings(world), rows(world)) == (2, before)


def test_a_range_with_copies_is_not_divided_anew(world):
    world.airflow.deploy(flow(resolve="since", goes_on=True, parallelism=2))
    first = day(world)
    with world.ledger.transaction() as session:
        ids = copy_ids(session, RUN)
    assert len(ids) == 2
    assert {each.split("/")[5] for each in files(world)} == ids
    day(world, 2)
    world.airflow.deploy(flow(resolve="since", goes_on=True))
    adopt(world.services, first)
    told = refusals(world)
    again(world, first)
    assert any(of_kind("recovery.copies_not_divided", wanted=2)(each) for each in told)
    world.airflow.deploy(flow(resolve="since", goes_on=True, parallelism=2))
    adopt(world.services, first)
    again(world, first)
    assert world.airflow.state_of(first) == "success"
    assert readings(world) == 4


DAMAGES = {
    "a byte": lambda store, path: flip(store, path(".bin")),
    "its description": lambda store, path: flip(store, path(".json")),
    "all of it": lambda store, path: store.delete_folder(path(".json").rpartition("/")[0]),
}


def flip(store, path):
    data = bytearray(store.read(path))
    data[40] ^= 1
    store.replace(path, bytes(data))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_copy_that_is_not_whole_is_an_error_that_a_person_decides_about(world, damage):
    run = day(world)
    before = rows(world)
    update(world)
    damage(world.store, lambda end: next(each for each in files(world) if each.endswith(end)))
    [inconsistency] = verify_runs(world.services, RUN, "a test").misfits
    folder = inconsistency.path
    told = refusals(world)
    again(world, run)
    assert of_kind("coordination.source_copy_not_whole", stage="visits", run=RUN, folder=folder)(told[0])
    assert (readings(world), rows(world)) == (1, before)
    world.store.delete_folder(folder)
    adopt(world.services, run)
    again(world, run)
    assert rows(world) != before


def test_a_copy_is_kept_and_counted_as_long_as_its_run(world):
    world.airflow.deploy(flow())
    run = day(world)
    day(world, 2)
    with world.ledger.transaction() as session:
        [size] = copied_bytes(session).values()
        counted = bytes_at_rest(session, "ladder")
    [description, _data] = files(world)
    assert 2 * from_json(StageCopy, world.store.read(description)).bytes == size < counted
    grow_old(world, 30)
    report = sweep(world.services, "ladder", is_full=True, is_reclaiming=True)
    assert [each for each in report.kept if each.path == description.rpartition("/")[0]]
    assert len(files(world)) == 2
    grow_old(world, 91)
    for _ in range(2):
        sweep(world.services, "ladder", is_full=True)
    assert files(world) == []
    with world.ledger.transaction() as session:
        assert copied_bytes(session)["ladder"] == 0
    update(world)
    again(world, run)
    assert (readings(world), world.airflow.state_of(run)) == (3, "success")


def test_a_trial_reads_the_copy_and_makes_none(world):
    run, jobs = world.airflow.engine.run, []
    world.airflow.engine.run = lambda job, during: jobs.append(job) or run(job, during)
    world.deploy()
    again(world, day(world), TASK)
    tried = Trimming(
        flow=flow(),
        stage=flow().stage("clean"),
        layouts={},
        digest_version=1,
        expectations="",
        scratch=world.store,
        code=jobs[0].code,
    )
    sources = [tried.trimmed(job).stages[0] for job in jobs if job.region == TASK]
    assert [(each.name, each.copy is None, each.resume is None) for each in sources] == [
        ("visits", True, True),
        ("visits", False, False),
    ]
