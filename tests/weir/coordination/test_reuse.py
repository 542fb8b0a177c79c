"""A task takes what another one has made of the same, in any run, and computes where anything differs."""

import hashlib
import json
import re
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.checking import NOT_NULL, UNIQUE, with_suites, write_suite
from tests.weir.command_line import invoked, typed, use
from tests.weir.small_dataflow import World, apart, ladder

from weir.dataflow import Dataflow, Stage, blocking, cached, keyed_state, list_state, sink, source
from weir.errors import Fault, Misconfigured
from weir.ledger.database.tables import AttemptRow, LeaseRow, QualityCheckRow, ResultRow
from weir.recovery.past_failovers import failovers_of_run
from weir.recovery.past_failovers import told as told_of
from weir.restarts.strategy import FixedDelay
from weir.testing.fakes.code import archive_of_edits

SECOND, THIRD = "ladder@20130102T000000Z", "ladder@20130103T000000Z"
OF_SOURCES = {"raw", "clean", "weather"}
OTHERS = {"joined", "totals", "routes", "report", "delays"}
REGIONS = {"joined[0]", "joined[1]", "totals[0]", "totals[1]", "routes[0]", "report-delays[0]"}


def reusing(flow=None, **settings):
    record = (flow or apart()).to_json()
    return Dataflow.from_json({**record, "reuse": "equal", "keep": "30 days", **settings})


def with_stages(changes):
    """The dataflow in which stages are declared otherwise."""
    record = apart().to_json()
    return Dataflow.from_json(
        {**record, "stages": [{**each, **changes.get(each["name"], {})} for each in record["stages"]]}
    )


def whole(ctx):
    """What a source reads is the same in all epochs: this is its resolver."""
    return ["all"] * ctx.parallelism


def started(folder, flow):
    """Two days, of which the second has the layouts of all that follow: they are chosen by the sizes of the first."""
    world = World(folder, flow)
    world.deploy()
    world.run_first(1, 2)
    world.airflow.engine.computed.clear()
    return world


@pytest.fixture
def world(tmp_path):
    return started(tmp_path, reusing())


def next_day(world, day=3):
    """The stages that the next day computes."""
    world.airflow.engine.computed.clear()
    world.run_days(day)
    assert set(world.airflow.states().values()) == {"success"}
    return set(world.airflow.engine.computed)


def taken(world, run=THIRD):
    """The regions of a run whose newest attempts have taken their results."""
    with world.ledger.transaction() as session:
        rows = session.scalars(select(AttemptRow).where(AttemptRow.run == run).order_by(AttemptRow.try_number))
        newest = {(row.region, row.subtask): row for row in rows}
        return {f"{region}[{subtask}]" for (region, subtask), row in newest.items() if "taken" in (row.metrics or {})}


def results(world, run):
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.run == run, ResultRow.is_current))
        return {(row.stage, row.subtask, row.layout): row for row in rows}


def digests(world, run):
    return {place: row.digest for place, row in results(world, run).items()}


def test_a_day_of_which_nothing_differs_computes_its_sources_only(world):
    assert next_day(world) == OF_SOURCES
    assert taken(world) == REGIONS
    assert digests(world, THIRD) == digests(world, SECOND)
    with world.ledger.transaction() as session:
        assert list(session.scalars(select(LeaseRow))) == []


def test_what_was_taken_is_a_copy_and_may_be_taken_in_turn(world):
    next_day(world)
    assert {row.folder for row in results(world, THIRD).values()}.isdisjoint(
        row.folder for row in results(world, SECOND).values()
    )
    for row in results(world, SECOND).values():
        world.store.delete_folder(row.folder)
    assert next_day(world, 4) == OF_SOURCES
    assert digests(world, "ladder@20130104T000000Z") == digests(world, THIRD)


def test_without_the_setting_each_day_computes(tmp_path):
    world = started(tmp_path, reusing(reuse="never"))
    assert next_day(world) == OF_SOURCES | OTHERS
    assert taken(world) == set()


def test_only_what_follows_from_other_rows_is_computed(world):
    world.content["weather"] = "rain"
    assert next_day(world) == OF_SOURCES | OTHERS
    del world.content["weather"]
    assert next_day(world, 4) == OF_SOURCES


def test_an_edited_function_is_computed_and_what_reads_other_rows_of_it_until_the_edit_is_reverted(world):
    world.deploy(routes=1)
    assert next_day(world) == {*OF_SOURCES, "routes", "report", "delays"}
    world.deploy()
    assert next_day(world, 4) == OF_SOURCES


@pytest.mark.parametrize(
    "settings", [{"parameters": {"rate": 2}}, {"stages": {"spark": {"spark.sql.shuffle.partitions": "7"}}}]
)
def test_other_settings_are_computed(world, settings):
    record = world.airflow.flow.to_json()
    more = settings.pop("stages", {})
    stages = [{**each, **more} if each["name"] in OTHERS - {"delays"} else each for each in record["stages"]]
    world.airflow.deploy(Dataflow.from_json({**record, **settings, "stages": stages}))
    assert next_day(world) >= OTHERS


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("totals", {"deterministic": False}),
        ("totals", {"digest": {"ignore": ["k"], "round": {}}}),
    ],
)
def test_what_may_differ_though_it_is_of_the_same_is_computed_each_day(tmp_path, stage, change):
    world = started(tmp_path, reusing(with_stages({stage: change})))
    of_it = set() if "digest" in change else {"totals"}
    assert next_day(world) == {*OF_SOURCES, *of_it, "report", "delays"}


@pytest.mark.parametrize("names", [["epoch"], ["interval"], ["interval", "zone"]])
def test_who_looks_at_the_epoch_takes_what_was_made_for_that_epoch_alone(tmp_path, names):
    world = World(tmp_path, reusing())
    world.airflow.engine.looks_at["totals"] = names
    world.content["nothing"] = "so that no days of another world are taken"
    world.deploy()
    world.run_days(1, 2)
    assert next_day(world) == {*OF_SOURCES, "totals"}
    world.airflow.engine.computed.clear()
    for each in (row for place, row in results(world, THIRD).items() if place[:2] == ("joined", 1)):
        world.store.delete_folder(each.folder)
    world.airflow.clear_by_hand("scheduled__2013-01-03", "totals", 1)
    world.airflow.run_until_quiet()
    assert set(world.airflow.engine.computed) == {"totals"}


def test_a_persons_clear_computes(world):
    next_day(world)
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    world.airflow.engine.computed.clear()
    world.airflow.run_until_quiet()
    assert set(world.airflow.engine.computed) == OF_SOURCES | OTHERS
    assert taken(world) == set()


def test_once_what_a_person_has_cleared_is_committed_it_may_be_taken_as_any_other(world, tmp_path, monkeypatch):
    next_day(world)
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    world.airflow.run_until_quiet()
    assert taken(world) == set()
    use(monkeypatch, tmp_path)
    promised = {region for region, takes in planned("clear", THIRD, "--reuse").items() if takes}
    typed("clear", THIRD, "--reuse", "--apply")
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert taken(world) == promised == REGIONS


def test_what_a_person_has_cleared_and_has_failed_is_promised_to_nobody(world, tmp_path, monkeypatch):
    next_day(world)

    def fail(key):
        if key.task_id == "totals":
            raise TypeError("a mistake in the function")

    world.airflow.during = fail
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    world.airflow.run_until_quiet()
    world.airflow.during = lambda _key: None
    assert world.airflow.task("scheduled__2013-01-03", "totals", 0).state == "failed"
    use(monkeypatch, tmp_path)
    promised = {region for region, takes in planned("clear", THIRD, "totals", "joined", "--reuse").items() if takes}
    typed("clear", THIRD, "totals", "joined", "--reuse", "--apply")
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert promised == taken(world) & {"joined[0]", "joined[1]", "totals[0]", "totals[1]"} == {"joined[0]", "joined[1]"}


def test_a_lost_result_is_taken_again_where_another_run_has_an_equal_one(world, monkeypatch):
    next_day(world)
    world.airflow.engine.computed.clear()
    world.store.delete_folder(results(world, THIRD)["joined", 1, "plain"].folder)
    world.airflow.clear_by_hand("scheduled__2013-01-03", "totals", 1)
    world.airflow.run_until_quiet()
    assert set(world.airflow.engine.computed) == {"totals"}
    assert "joined[1]" in taken(world)
    made = results(world, SECOND)["joined", 1, "plain"].attempt
    use(monkeypatch, world.folder)
    (failover,) = json.loads(typed("failovers", THIRD, "--json"))["failovers"]
    assert failover["taken"] == {"joined[1]": made}
    told = f"taken, not computed: a copy of what attempt {made} has made of the same"
    assert f"joined[1]: {told}" in typed("failovers", THIRD)
    assert told in typed("results", THIRD, "--stage", "joined")
    with world.ledger.transaction() as session:
        sentence = told_of(session, failovers_of_run(session, THIRD))
    assert "One task ran again (1 took what another had made of the same), " in sentence


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_what_is_gone_or_damaged_is_not_taken(world, fault):
    folder = results(world, SECOND)["joined", 0, "plain"].folder
    first = next(each for each in results(world, "ladder@20130101T000000Z") if each[:2] == ("joined", 0))
    assert first[2] != "plain"
    if fault == "gone":
        world.store.delete_folder(folder)
    else:
        path = f"{folder}/part-0.bin"
        data = world.store.read(path)
        world.store.replace(path, b"x" + data[1:])
    assert next_day(world) == {*OF_SOURCES, "joined"}
    assert digests(world, THIRD) == digests(world, SECOND)


def test_what_is_released_is_not_taken(tmp_path):
    world = started(tmp_path, reusing(keep="on_consumed"))
    assert {"joined", "totals", "routes"} <= next_day(world)
    assert digests(world, THIRD)["delays", 0, "plain"] == digests(world, SECOND)["delays", 0, "plain"]


def test_the_manifest_has_the_inputs_of_the_taker_and_the_summary_whom_it_was_taken_from(world):
    next_day(world)
    row = results(world, THIRD)["totals", 0, "plain"]
    manifest = json.loads(world.store.read(f"{row.folder}/manifest.json"))
    assert {each["run"] for each in manifest["inputs"]} == {THIRD}
    with world.ledger.transaction() as session:
        attempt = session.get_one(AttemptRow, row.attempt)
        assert attempt.metrics["taken"] == results(world, SECOND)["totals", 0, "plain"].attempt


def test_a_rebuilt_ledger_takes_nothing_that_it_does_not_know(world):
    world.lose_ledger()
    world.airflow.deployed = archive_of_edits(world.airflow.flow, {})
    assert OTHERS - {"report", "delays"} <= next_day(world)


@pytest.mark.parametrize(("edits", "computed"), [({}, set()), ({"routes": 1}, {"routes", "report", "delays"})])
def test_a_run_that_is_cleared_with_reuse_computes_what_differs(world, tmp_path, monkeypatch, edits, computed):
    next_day(world)
    world.deploy(**edits)
    use(monkeypatch, tmp_path)
    typed("clear", THIRD, "joined", "totals", "routes", "report", "--reuse", "--apply")
    world.airflow.engine.computed.clear()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert set(world.airflow.engine.computed) == computed


def planned(*words):
    """What a plan says of each region that runs again: the attempt whose results it takes."""
    found = json.loads(typed(*words, "--json"))
    (plan,) = found.get("plans", [found])
    return {each["region"]: each["takes"] for each in plan["steps"] if each["kind"] == "rerun"}


def test_a_clear_and_a_plan_say_beforehand_who_takes_what_and_so_it_is(world, tmp_path, monkeypatch):
    next_day(world)
    use(monkeypatch, tmp_path)
    shown = planned("clear", THIRD, "--reuse")
    assert {region for region, takes in shown.items() if takes} == REGIONS
    assert {region for region, takes in shown.items() if not takes} >= {"raw-clean[0]", "weather[0]"}
    assert not any(planned("clear", THIRD).values())
    table = typed("clear", "ladder", "--from", "2013-01-02", "--reuse")
    assert re.search(rf"ladder@20130103T000000Z │ +{len(shown)} │ +{len(REGIONS)} │", table)
    typed("clear", THIRD, "--reuse", "--apply")
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(AttemptRow).where(AttemptRow.run == THIRD, AttemptRow.try_number == 2)))
    assert {f"{row.region}[{row.subtask}]": (row.metrics or {}).get("taken", "") for row in rows} == shown


def test_a_plan_of_a_loss_says_whose_result_is_taken_and_not_the_lost_one(world, tmp_path, monkeypatch):
    next_day(world)
    use(monkeypatch, tmp_path)
    (lost,) = (row for place, row in results(world, THIRD).items() if place[:2] == ("routes", 0))
    (other,) = (row for place, row in results(world, SECOND).items() if place[:2] == ("routes", 0))
    shown = planned("plan", THIRD, "--fail", "report-delays", "--lost", "routes[0]")
    assert shown == {"routes[0]": other.attempt} != {"routes[0]": lost.attempt}


def test_a_task_says_whom_it_has_taken_its_result_from(world, tmp_path, monkeypatch):
    next_day(world)
    use(monkeypatch, tmp_path)
    made = results(world, SECOND)["routes", 0, "plain"].attempt
    assert f"taken, not computed: a copy of what attempt {made} has made of the same" in typed(
        "why", "routes", "--run", THIRD
    )


def test_a_dataflow_that_reuses_nothing_says_so(tmp_path, monkeypatch):
    started(tmp_path, reusing(reuse="never"))
    use(monkeypatch, tmp_path)
    with pytest.raises(Misconfigured, check=of_kind("cli.nothing_reused")):
        invoked("clear", SECOND, "--reuse")


def test_rows_that_are_suspected_are_computed(world, tmp_path, monkeypatch):
    next_day(world)
    with world.ledger.transaction("ladder") as session:
        session.get_one(ResultRow, results(world, THIRD)["routes", 0, "plain"].id).fault = Fault.SUSPECTED.value
    use(monkeypatch, tmp_path)
    typed("clear", THIRD, "routes", "totals", "--reuse", "--apply")
    world.airflow.engine.computed.clear()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert set(world.airflow.engine.computed) == {"routes"}


def test_a_stage_that_never_takes_is_computed(tmp_path):
    world = started(tmp_path, reusing(with_stages({"routes": {"reuse": "never"}})))
    assert next_day(world) == {*OF_SOURCES, "routes"}


def test_of_a_dataflow_that_takes_nothing_a_stage_may(tmp_path):
    equal = {name: {"reuse": "equal"} for name in ("joined", "totals")}
    world = started(tmp_path, reusing(with_stages(equal), reuse="never"))
    assert next_day(world) == {*OF_SOURCES, *OTHERS} - {"joined", "totals"}


def test_a_source_of_ones_own_is_taken_where_somebody_vouches_for_its_splits(tmp_path):
    known = {"resolve": f"{__name__}:whole", "reuse": "equal"}
    world = started(tmp_path, reusing(with_stages({"weather": known, "raw": known})))
    assert next_day(world) == set()
    world.deploy(clean=1)
    assert next_day(world, 4) >= {"raw", "clean", "joined"}


def test_a_source_with_other_splits_is_computed(tmp_path):
    by_day = {"resolve": "weir.testing.fakes.engine:splits_by_day", "reuse": "equal"}
    world = started(tmp_path, reusing(with_stages({"weather": by_day})))
    assert next_day(world) == OF_SOURCES | OTHERS


@pytest.mark.parametrize(
    ("stage", "change", "kind"),
    [
        ("weather", {"reuse": "equal"}, "dataflow.reuse_without_resolve"),
        ("totals", {"reuse": "equal", "deterministic": False}, "dataflow.reuse_of_what_computes"),
        ("totals", {"reuse": "sometimes"}, "dataflow.choice_wrong"),
    ],
)
def test_what_cannot_be_taken_is_not_declared_to_be(stage, change, kind):
    stages = {each.name: each for each in ladder().stages}
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        Dataflow("ladder", [*({**stages, stage: replace(stages[stage], **change)}).values()])


def test_a_backfill_takes_what_it_can_also_of_runs_that_it_runs_again(world):
    world.airflow.engine.computed.clear()
    run_id = world.airflow.dag_run(3, kind="backfill")
    world.airflow.run_until_quiet()
    assert set(world.airflow.engine.computed) == OF_SOURCES
    world.airflow.engine.computed.clear()
    world.airflow.clear_run_by_hand(run_id)
    world.airflow.run_until_quiet()
    assert set(world.airflow.engine.computed) == OF_SOURCES
    assert taken(world) == REGIONS


GATED = {"totals": {"quality": [{"suite": "clean_rows", "policy": "retry", "when": "always"}]}}


@pytest.fixture
def gated(tmp_path):
    flow = reusing(with_stages(GATED))
    world = World(tmp_path, flow)
    folder = with_suites(world)
    write_suite(folder, "clean_rows", NOT_NULL)
    world.deploy()
    world.run_first(1, 2)
    return world, folder


def checks_of(world, run):
    with world.ledger.transaction() as session:
        rows = session.scalars(select(QualityCheckRow).where(QualityCheckRow.run == run).order_by(QualityCheckRow.id))
        return [(row.subtask, row.outcome) for row in rows]


def test_rows_that_are_taken_are_judged_by_the_newest_suite(gated):
    world, folder = gated
    assert next_day(world) == OF_SOURCES
    assert checks_of(world, THIRD) == [(0, "same"), (1, "same")]
    write_suite(folder, "clean_rows", NOT_NULL, UNIQUE)
    assert next_day(world, 4) == OF_SOURCES
    assert checks_of(world, "ladder@20130104T000000Z") == [(0, "passed"), (1, "passed")]


def test_rows_that_were_taken_and_failed_are_computed_in_the_next_try(gated):
    world, folder = gated
    write_suite(folder, "clean_rows", NOT_NULL, UNIQUE)
    engine = world.airflow.engine
    engine.violated["totals"] = {UNIQUE}
    engine.computed.clear()
    world.airflow.strategy = FixedDelay(3, 1_000)
    world.airflow.during = lambda _key: "totals" in engine.computed and engine.violated.clear()
    world.run_days(3)
    assert {row[1] for row in checks_of(world, THIRD)} == {"failed", "passed"}
    assert set(world.airflow.states().values()) == {"success"}
    assert set(engine.computed) == {*OF_SOURCES, "totals"}


def resuming(folder):
    """A day's task whose first try fails after it has copied what looks at the epoch."""
    stages = [
        source("planes", "pipelines.planes:planes"),
        Stage("dated", "pipelines.dated:dated", [blocking("planes")]),
        Stage("after", "pipelines.after:after", [cached("dated")]),
        sink("after", "out"),
    ]
    world = World(folder, Dataflow("ladder", stages, reuse="equal", keep="30 days"))
    world.airflow.engine.looks_at["dated"] = ["epoch"]
    world.airflow.strategy = FixedDelay(3, 1_000)
    world.deploy()
    world.run_days(1)
    failing = [OSError("it is killed")]

    def fail_once(key):
        if key.task_id.startswith("dated") and failing:
            raise failing.pop()

    world.airflow.during = fail_once
    world.run_days(2)
    assert not failing
    return world


def test_a_try_that_resumes_tells_nobody_what_the_functions_that_it_skipped_have_looked_at(tmp_path):
    world = resuming(tmp_path)
    assert next_day(world) == {"planes", "dated", "after", "out"}


def test_where_the_same_has_given_other_rows_nothing_is_taken(world):
    next_day(world)
    world.content["routes"] = "other rows, though all is equal"
    world.airflow.clear_by_hand("scheduled__2013-01-03", "routes")
    world.airflow.run_until_quiet()
    assert "routes" in next_day(world, 4)
    after = digests(world, "ladder@20130104T000000Z")["routes", 0, "plain"]
    assert after == digests(world, THIRD)["routes", 0, "plain"]


def test_what_cannot_be_read_is_computed(world, monkeypatch):
    folder = results(world, SECOND)["routes", 0, "plain"].folder
    files = type(world.store.files)
    read = files.read

    def refused(self, path, *more):
        if path.startswith(f"{folder}/part"):
            raise PermissionError(path)
        return read(self, path, *more)

    monkeypatch.setattr(files, "read", refused)

    assert next_day(world) == {*OF_SOURCES, "routes"}


def test_a_dag_run_that_was_deleted_and_runs_again_computes(world):
    next_day(world)
    world.airflow.delete("scheduled__2013-01-03")
    assert next_day(world) == OF_SOURCES | OTHERS


def test_where_a_task_runs_and_who_checks_it_does_not_count(world):
    record = world.airflow.flow.to_json()
    stages = [{**each, "task": {**each["task"], "priority_weight": 7}} for each in record["stages"]]
    world.airflow.deploy(Dataflow.from_json({**record, "stages": stages}))
    assert next_day(world) == OF_SOURCES


def with_state(*, has_list=True, incremental=True):
    """A state that grows with the days, a list, and a last stage."""
    seen = keyed_state("seen", key="k", schema="k BIGINT, n BIGINT", incremental=incremental)
    states = [seen, list_state("offsets")] if has_list else [seen]
    return Dataflow(
        "ladder",
        [
            source("raw", "pipelines.raw:raw"),
            Stage("joined", "pipelines.joined:joined", [blocking("raw", by="k")], parallelism=2, state=states),
            Stage("totals", "pipelines.totals:totals", [blocking("joined")]),
            sink("totals", "out"),
        ],
        reuse="equal",
        keep="30 days",
        retained_checkpoints=9,
    )


@pytest.mark.parametrize("incremental", [True, "auto"])
def test_a_state_is_taken_in_its_own_epoch_and_never_in_another(tmp_path, monkeypatch, incremental):
    world = started(tmp_path, with_state(incremental=incremental))
    runs = [f"ladder@2013010{day}T000000Z" for day in (2, 3, 4)]
    assert next_day(world, 3) == {"raw", "joined", "seen", "offsets", "totals", "out"}
    next_day(world, 4)
    before = [digests(world, run) for run in runs]
    files = [manifests(world, run, "seen") for run in runs]
    world.deploy(totals=1)
    use(monkeypatch, tmp_path)
    typed("clear", "ladder", "joined", "totals", "--from", "2013-01-02", "--to", "2013-01-04", "--reuse", "--apply")
    world.airflow.engine.computed.clear()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert set(world.airflow.engine.computed) == {"totals", "out"}
    for run, old, named in zip(runs, before, files, strict=True):
        now = digests(world, run)
        changed = {place[0] for place in now if now[place] != old[place]}
        assert changed == {"out"}
        assert {"joined[0]", "joined[1]"} <= taken(world, run)
        for place, manifest in manifests(world, run, "seen").items():
            content, was = manifest["state"], named[place]["state"]
            assert content["tallies"] == was["tallies"]
            assert sums(content) == sums(was)
            assert content["estimate"] == was["estimate"]
            assert sums(content) == [
                hashlib.sha256(world.store.read(f"{each['folder']}/{each['file']['name']}")).hexdigest()
                for each in content["files"]
            ]


def sums(content):
    return [each["file"]["sha256"] for each in content["files"]]


def manifests(world, run, stage):
    return {
        place: json.loads(world.store.read(f"{row.folder}/manifest.json"))
        for place, row in results(world, run).items()
        if place[0] == stage
    }


def test_where_the_state_before_differs_it_is_computed(tmp_path):
    world = started(tmp_path, with_state())
    next_day(world, 3)
    world.content["seen in 20130102T000000Z"] = "other rows"
    world.airflow.clear_by_hand("scheduled__2013-01-02", "joined", 0)
    world.airflow.engine.computed.clear()
    world.airflow.run_until_quiet()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert "joined[0]" not in taken(world, THIRD)


def test_a_day_that_leaves_its_state_as_it_was_takes_nothing_of_the_day_before(tmp_path):
    world = World(tmp_path, with_state(has_list=False))
    world.content |= {f"seen in 2013010{day}T000000Z": "the same" for day in (1, 2, 3)}
    world.deploy()
    world.run_days(1, 2)
    assert "joined" in next_day(world)
    assert {place: each for place, each in digests(world, THIRD).items() if place[0] == "seen"} == {
        place: each for place, each in digests(world, SECOND).items() if place[0] == "seen"
    }
