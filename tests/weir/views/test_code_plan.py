"""What a change of code comes to: which stages differ and how, what other code has made, what runs again, and where."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.weir.datasets.neighbours import Neighbours, reader
from tests.weir.restoring import aircraft, run_days
from tests.weir.small_dataflow import World

from weir.code.archive import Archive
from weir.code.generation_rules import RepairCode
from weir.code.version import code_version
from weir.coordination.values import DeclaredCode
from weir.dataflow import Dataflow, Stage, blocking, dataset, pipelined, sink, source
from weir.ledger.database.code_tables import ArchiveRow
from weir.ledger.database.tables import RunRow
from weir.recovery.adopt import adopt
from weir.recovery.rules.plan import StepKind
from weir.recovery.run_plans import clear_by_hand, keep_results, record_clears
from weir.recovery.versions import declare_equal
from weir.testing.fakes.code import archive_of_edits
from weir.topology.regions import RegionId
from weir.upkeep import RESULTS, settle_everywhere
from weir.views.code_plan import Change, Part, code_plan, compared

FILES = {
    "jobs/__init__.py": "",
    "jobs/raw.py": "def raw():\n    return 0\n\n\ndef clean():\n    return 0\n",
    "jobs/zones.py": "from jobs.rates import LEAST\n\nMOST = 9\n\n\ndef by_zone():\n    return 0\n    LEAST, MOST\n",
    "jobs/rates.py": "from jobs.money import CENT\n\nLEAST = 2 * CENT\n",
    "jobs/money.py": "CENT = 100\n",
}
QUERY = {"sql/by_zone.sql": "SELECT zone FROM clean"}
DAYS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z")


def trips(*more, parallelism=2, by_zone=None, **settings):
    by_zone = by_zone or Stage("by_zone", "jobs.zones:by_zone", [blocking("clean", by="k")], parallelism=parallelism)
    stages = [source("raw", "jobs.raw:raw"), Stage("clean", "jobs.raw:clean", [pipelined("raw")]), by_zone]
    return Dataflow("trips", [*stages, sink("by_zone", "zones"), *more], **settings)


def edited(file, old, new, files=FILES):
    """The files with one edit, which must change something."""
    assert old in files[file]
    return {**files, file: files[file].replace(old, new)}


def archive(files):
    return Archive({name: text.encode() for name, text in files.items()})


def declared(files, flow):
    return DeclaredCode(Path("dags/trips.py"), flow, archive(files))


@pytest.fixture
def world(tmp_path):
    """Three days by the first code, whose results stay."""
    world = World(tmp_path, trips(keep="60 days"))
    world.airflow.deployed = archive(FILES)
    run_days(world.airflow, 1, 2, 3)
    return world


def planned(world, files, flow=None, **how):
    return code_plan(world.services, declared(files, flow or world.airflow.flow), **how)


def stages(plan):
    """By stage, how it is changed, and the part and the names that differ."""
    return {
        each.stage: (each.change, each.part, {file.file: file.names for file in each.files}) for each in plan.stages
    }


def carried_out(world, plan, files):
    """Deploy these files, clear what is planned as it is planned, and let it run; the tasks that have run by day."""
    world.airflow.deployed = archive(files)
    before = {run: world.airflow.executed(run) for run in {key.run_id for key in world.airflow.tasks}}
    if plan.clears.code is None:
        clear_by_hand(world.services, plan.clears.plans, world.airflow, "")
    else:
        record_clears(world.services, plan.clears.plans)
        world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    ran = {run: Counter(world.airflow.executed(run)) - Counter(known) for run, known in before.items()}
    return {run[-2:]: set(found) for run, found in ran.items() if found}


INDIRECT = (Change.INDIRECT, None, {})
EDITS = {
    "a function": (
        edited("jobs/raw.py", "clean():\n    return 0", "clean():\n    return 1"),
        {
            "clean": (Change.DIRECT, Part.FUNCTION, {"jobs/raw.py": ("clean",)}),
            "raw": (Change.IN_TASK, None, {}),
            "by_zone": INDIRECT,
            "zones": INDIRECT,
        },
    ),
    "a constant of its module": (
        edited("jobs/zones.py", "9", "8"),
        {
            "by_zone": (Change.DIRECT, Part.MODULE, {"jobs/zones.py": ("MOST",)}),
            "zones": (Change.IN_TASK, None, {}),
        },
    ),
    "a constant two imports away": (
        edited("jobs/money.py", "100", "101"),
        {
            "by_zone": (Change.DIRECT, Part.REACHED, {"jobs/money.py": ("CENT",)}),
            "zones": (Change.IN_TASK, None, {}),
        },
    ),
    "what is imported": (
        edited("jobs/rates.py", "from jobs.money import CENT", "CENT = 100"),
        {
            "by_zone": (Change.DIRECT, Part.REACHED, {"jobs/rates.py": ("CENT",)}),
            "zones": (Change.IN_TASK, None, {}),
        },
    ),
    "a comment, a docstring and a line": (
        edited("jobs/raw.py", "clean():\n", 'clean():\n    """Clean."""\n\n    # as ever\n'),
        {},
    ),
    "a module that nothing reaches": ({**FILES, "jobs/other.py": "X = 1\n"}, {}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_stage_is_modified_by_what_its_function_reaches_and_others_through_their_inputs(world, edit):
    files, expected = EDITS[edit]
    plan = planned(world, files)
    assert stages(plan) == expected
    assert plan.would_rerun == bool(expected)
    assert [each.stage for each in plan.stages if each.change is Change.DIRECT] == [
        name for name in ("raw", "clean", "by_zone") if name in expected and expected[name][0] is Change.DIRECT
    ]


def test_what_differs_is_shown_as_lines_once_whatever_stages_reach_it(world):
    plan = planned(world, edited("jobs/raw.py", "clean():\n    return 0", "clean():\n    return 1"))
    assert plan.diff[:2] == ("--- old/jobs/raw.py", "+++ new/jobs/raw.py")
    assert [line for line in plan.diff[2:] if line[0] in "+-"] == ["-    return 0", "+    return 1"]


def test_a_sql_file_is_code_and_its_comments_are_not(tmp_path):
    by_zone = Stage("by_zone", sql="sql/by_zone.sql", inputs=[blocking("clean", by="k")])
    world = World(tmp_path, trips(by_zone=by_zone))
    files = {**FILES, **QUERY}
    text = QUERY["sql/by_zone.sql"]
    plan = compared(
        declared({**files, "sql/by_zone.sql": f"{text} -- all"}, trips(by_zone=by_zone)), "x", archive(files)
    )
    assert plan.stages == ()
    plan = compared(declared(edited("sql/by_zone.sql", "zone ", "k ", files), world.airflow.flow), "x", archive(files))
    assert stages(plan)["by_zone"] == (Change.DIRECT, Part.FILE, {"sql/by_zone.sql": ()})
    assert plan.diff[-2:] == ("-SELECT zone FROM clean", "+SELECT k FROM clean")


# What is declared


NEW = sink("clean", "cleaned")


@pytest.mark.parametrize(
    ("flow", "stage", "change", "field"),
    [
        (trips(parallelism=3, keep="60 days"), "by_zone", Change.DECLARED, "parallelism"),
        (
            trips(
                by_zone=Stage("by_zone", "jobs.zones:by_zone", [blocking("clean", by="other")], parallelism=2),
                keep="60 days",
            ),
            "by_zone",
            Change.DECLARED,
            "inputs",
        ),
        (trips(NEW, keep="60 days"), "cleaned", Change.ADDED, None),
    ],
)
def test_what_is_declared_otherwise_is_shown_and_re_runs_nothing(world, flow, stage, change, field):
    plan = planned(world, FILES, flow)
    assert {each.change for each in plan.stages} == {change}
    (found,) = (each for each in plan.stages if each.stage == stage)
    assert [each.field for each in found.declared] == ([field] if field else [])
    assert not plan.would_rerun
    assert plan.newest == f"trips@{DAYS[-1]}"


def test_a_stage_that_is_gone_and_parameters_are_shown(tmp_path):
    world = World(tmp_path, trips(NEW, parameters={"least": 3, "most": 9}))
    world.airflow.deployed = archive(FILES)
    run_days(world.airflow, 1)
    plan = planned(world, FILES, trips(parameters={"least": 4, "most": 9}))
    assert {each.stage: each.change for each in plan.stages} == {"cleaned": Change.REMOVED}
    assert [(each.field, each.was, each.now) for each in plan.settings] == [("parameters.least", 3, 4)]
    assert not plan.would_rerun


def test_retries_and_pools_are_no_other_declaration(world):
    flow = world.airflow.flow
    by_zone = replace(flow.stage("by_zone"), task=replace(flow.stage("by_zone").task, pool="small"))
    assert by_zone != flow.stage("by_zone")
    assert planned(world, FILES, trips(by_zone=by_zone, keep="60 days")).stages == ()


def test_a_run_whose_function_the_code_lacks_is_left_and_named(world):
    plan = planned(world, edited("jobs/zones.py", "def by_zone", "def of_zone"))
    assert [(each.run, each.task) for each in plan.left] == [(f"trips@{day}", "by_zone-zones") for day in DAYS]
    assert all("jobs.zones:by_zone" in each.why and f"weir run adopt {each.run}" in each.why for each in plan.left)
    assert not plan.clears.plans
    assert not plan.would_rerun


# Which results, and what they cost


def test_exactly_what_other_code_has_made_in_these_epochs_runs_again_and_then_nothing_would(world):
    files = edited("jobs/money.py", "100", "101")
    plan = planned(world, files, first="2013-01-02")
    (made,) = plan.results
    assert (made.task, made.runs, made.first, made.last) == ("by_zone-zones", 2, DAYS[1], DAYS[2])
    assert plan.again.regions == 4
    assert plan.again == replace(made.again, seconds=plan.again.seconds)
    both = {"by_zone-zones[0]", "by_zone-zones[1]"}
    shown = {
        each.answer.run.epoch[6:8]: {str(step.region) for step in each.plan.of(StepKind.RERUN)}
        for each in plan.clears.plans
    }
    assert shown == {"02": both, "03": both}
    assert carried_out(world, plan, files) == {"02": both, "03": both}
    assert not planned(world, files, first="2013-01-02").would_rerun
    assert [each.first for each in planned(world, files).results] == [DAYS[0]]


def test_results_of_several_versions_are_counted_by_version(world):
    second = edited("jobs/money.py", "100", "101")
    carried_out(world, planned(world, second, first="2013-01-03"), second)
    (made,) = planned(world, edited("jobs/money.py", "100", "102")).results
    assert made.runs == 3
    assert sorted(made.versions.values()) == [1, 2]


def test_of_a_stage_of_two_codes_what_the_other_one_has_made_runs_again(world):
    new = edited("jobs/zones.py", "by_zone():\n    return 0", "by_zone():\n    return 1")
    world.airflow.deployed = archive(new)
    world.airflow.clear_by_hand("scheduled__2013-01-03", "by_zone-zones", 1)
    world.airflow.step(world.airflow.task("scheduled__2013-01-03", "by_zone-zones", 1))
    plan = planned(world, new, first="2013-01-03")
    old = code_version(archive(FILES).files, ["jobs.zones:by_zone"])
    assert [(each.task, each.versions) for each in plan.results] == [("by_zone-zones", {old: 1})]
    assert plan.clears.plans[0].regions == (RegionId("by_zone-zones", 0),)


def test_what_a_reverted_edit_has_made_is_of_other_code_and_nothing_else_is(world):
    second = edited("jobs/zones.py", "by_zone():\n    return 0", "by_zone():\n    return 1")
    carried_out(world, planned(world, second, first="2013-01-02", last="2013-01-02"), second)
    plan = planned(world, FILES)
    assert [(each.runs, each.first) for each in plan.results] == [(1, DAYS[1])]
    assert stages(plan)["by_zone"][2] == {"jobs/zones.py": ("by_zone",)}
    assert [line for line in plan.diff if line[1:] == "    return 0"] == ["+    return 0"]


def test_versions_that_count_as_equal_are_not_other_code(world):
    second = edited("jobs/money.py", "100", "101")
    carried_out(world, planned(world, second, first="2013-01-03"), second)
    assert planned(world, second).would_rerun
    old, new = (code_version(archive(files).files, ["jobs.zones:by_zone"]) for files in (FILES, second))
    declare_equal(world.services, "zones", old, new, "ada")
    assert not planned(world, second).would_rerun


def test_what_is_needed_and_was_released_is_a_cost_of_its_own(tmp_path):
    world = World(tmp_path, trips(keep="on_consumed"))
    world.airflow.deployed = archive(FILES)
    run_days(world.airflow, 1, 2)
    settle_everywhere(world.services, RESULTS)
    plan = planned(world, edited("jobs/money.py", "100", "101"))
    assert {name: found[0] for name, found in stages(plan).items()} == {
        "by_zone": Change.DIRECT,
        "zones": Change.IN_TASK,
        "raw": Change.NEEDED,
        "clean": Change.NEEDED,
    }
    assert plan.again.regions == plan.results[0].again.regions + 2


def test_a_task_that_plans_of_several_epochs_have_is_counted_once(tmp_path):
    world = World(tmp_path, aircraft(parallelism=1))
    world.deploy()
    run_days(world.airflow, 1, 2, 3)
    flow = world.airflow.flow
    plan = code_plan(world.services, DeclaredCode(Path("x.py"), flow, archive_of_edits(flow, {"aircraft": 1})))
    places = [
        (step.region.run_id(each.plan.run), step.region.name)
        for each in plan.clears.plans
        for step in each.plan.steps
        if step.region.name.startswith("aircraft") and step.kind.value in ("rerun", "if_changed", "suspended")
    ]
    assert len(places) > len(set(places)) == 3
    assert plan.again.regions == 6
    assert plan.if_changed.regions == 3  # the closing task of each


def test_an_epoch_that_cannot_run_again_says_why(tmp_path):
    world = World(tmp_path, aircraft(parallelism=1, retained_checkpoints=1, keep="on_consumed"))
    world.deploy()
    run_days(world.airflow, 1, 2, 3)
    settle_everywhere(world.services, RESULTS)
    flow = world.airflow.flow
    plan = code_plan(world.services, DeclaredCode(Path("x.py"), flow, archive_of_edits(flow, {"aircraft": 1})))
    assert {each.answer.run.epoch for each in plan.impossible} == set(DAYS[1:])


def test_runs_without_a_declaration_or_a_dag_run_are_named_and_in_no_plan(world):
    adopt(world.services, f"trips@{DAYS[0]}")
    with world.ledger.transaction("trips") as session:
        session.get_one(RunRow, f"trips@{DAYS[1]}").deleted_at = world.airflow.now()
    plan = planned(world, edited("jobs/money.py", "100", "101"))
    assert plan.freed == (f"trips@{DAYS[0]}",)
    assert [(each.run, each.task) for each in plan.left] == [(f"trips@{DAYS[1]}", "by_zone-zones")]
    assert [each.answer.run.epoch for each in plan.clears.plans] == [DAYS[2]]


def test_the_new_code_runs_also_where_a_clear_in_airflow_would_run_the_old_one(tmp_path):
    world = World(tmp_path, trips(repair_code=RepairCode.AS_IT_WAS))
    world.airflow.deployed = archive(FILES)
    run_days(world.airflow, 1)
    files = edited("jobs/money.py", "100", "101")
    plan = planned(world, files)
    assert plan.clears.code is RepairCode.NEWEST
    assert carried_out(world, plan, files)["01"] >= {"by_zone-zones[0]", "by_zone-zones[1]"}
    assert not planned(world, files).would_rerun


def test_with_reuse_the_clears_are_no_clears_of_a_person_and_what_is_the_same_is_taken(tmp_path):
    world = World(tmp_path, trips(reuse="equal", keep="60 days"))
    world.airflow.deployed = archive(FILES)
    run_days(world.airflow, 1)
    files = edited("jobs/money.py", "100", "101")
    assert planned(world, files).can_reuse
    assert planned(world, files).clears.code is None
    plan = planned(world, files, by_weir=True)
    assert plan.clears.code is RepairCode.NEWEST
    assert carried_out(world, plan, files)["01"] >= {"by_zone-zones[0]", "by_zone-zones[1]"}
    assert not planned(world, files).would_rerun


def test_a_dataflow_that_has_never_run_has_nothing_to_run_again(world):
    plan = planned(world, FILES, Dataflow("other", trips().stages))
    assert (plan.runs, plan.stages, plan.would_rerun) == (0, (), False)


def test_what_the_archive_of_the_old_code_would_tell_is_unknown_without_it(world):
    with world.ledger.transaction("trips") as session:
        session.get_one(ArchiveRow, ("trips", archive(FILES).fingerprint)).deleting_at = world.airflow.now()
    plan = planned(world, edited("jobs/money.py", "100", "101"))
    (by_zone,) = (each for each in plan.stages if each.stage == "by_zone")
    assert (by_zone.change, by_zone.files) == (Change.DIRECT, ())
    assert by_zone.note
    assert plan.diff == ()


def test_runs_of_other_dataflows_that_have_read_what_may_change_are_counted(tmp_path):
    town = Neighbours(tmp_path)
    airflow = town.add(trips())
    airflow.deployed = archive(FILES)
    town.add(reader(zones=dataset("trips.zones")))
    town.add(reader("summary", report=dataset("report.out")))
    town.run("trips", 1, 2)
    town.run("report", 1, 2)
    town.run("summary", 2)
    found = declared(edited("jobs/money.py", "100", "101"), airflow.flow)
    plan = code_plan(town.services, found)
    assert plan.datasets == ("trips.zones",)
    assert {each.dataflow: each.runs for each in plan.readers} == {"report": 2, "summary": 1}
    later = code_plan(town.services, found, first="2013-01-02")
    assert {each.dataflow: each.runs for each in later.readers} == {"report": 1, "summary": 1}
    none = code_plan(town.services, declared(FILES, airflow.flow))
    assert (none.datasets, none.readers) == ((), ())


# What stays as it is


def keep(world, files, **how):
    plan = planned(world, files, **how)
    return keep_results(world.services, plan.clears, archive(files).files, "ada")


def test_what_stays_as_it_is_is_not_planned_again_until_the_code_changes_again(world):
    second = edited("jobs/money.py", "100", "101")
    (kept,) = keep(world, second, first="2013-01-02")
    assert (kept.task, kept.first, kept.last, kept.kept_by) == ("by_zone-zones", DAYS[1], DAYS[2], "ada")
    plan = planned(world, second)
    assert [each.answer.run.epoch for each in plan.clears.plans] == [DAYS[0]]
    assert plan.kept == (kept,)
    keep(world, second)
    assert not planned(world, second).would_rerun
    assert keep(world, second) == []
    third = planned(world, edited("jobs/money.py", "100", "102"))
    assert [each.answer.run.epoch for each in third.clears.plans] == [*DAYS]
    assert third.kept == ()


def test_of_what_stays_only_those_results_stay_and_only_those_of_that_task(world):
    second = edited("jobs/money.py", "100", "101")
    keep(world, second)
    third = edited("jobs/zones.py", "by_zone():\n    return 0", "by_zone():\n    return 1")
    carried_out(world, planned(world, third, last="2013-01-01"), third)
    assert [each.answer.run.epoch for each in planned(world, second).clears.plans] == [DAYS[0]]
    both = edited("jobs/raw.py", "clean():\n    return 0", "clean():\n    return 1", second)
    assert {each.task: each.first for each in planned(world, both).results} == {
        "raw-clean": DAYS[0],
        "by_zone-zones": DAYS[0],
    }
    assert {each.task: each.runs for each in planned(world, both).results} == {"raw-clean": 3, "by_zone-zones": 1}


def test_what_cannot_run_again_can_stay(world):
    gone = edited("jobs/zones.py", "def by_zone", "def of_zone")
    (kept,) = keep(world, gone)
    assert kept.task == "by_zone-zones"
    assert planned(world, gone).left == ()


# The document


def test_the_fields_of_the_document_are_those_that_the_guide_lists():
    page = (Path(__file__).parents[3] / "docs/plan.md").read_text()
    section = page.partition('`{"version": 1, "dataflows": [...]}`, for each dataflow:')[2].partition("`change` is")[0]
    listed = [name for row in re.findall(r"(?m)^\| (`.+?) \|", section) for name in re.findall(r"`(\w+)`", row)]
    plan = compared(declared(FILES, trips()), "main", None)
    assert sorted(listed) == sorted(plan.fields())
    assert {each.value for each in Change} == set(
        re.findall(r"`(\w+)`", page.partition("`change` is")[2].split("##")[0])
    ) - {each.value for each in Part} - {"part"}


# Two source trees


def test_code_is_compared_with_other_code_without_any_run(tmp_path):
    flow = trips(NEW, parallelism=3)
    now = declared(edited("jobs/raw.py", "clean():\n    return 0", "clean():\n    return 1"), flow)
    plan = compared(now, "main", declared(FILES, trips()))
    assert stages(plan) == {
        "raw": (Change.IN_TASK, None, {}),
        "clean": (Change.DIRECT, Part.FUNCTION, {"jobs/raw.py": ("clean",)}),
        "by_zone": INDIRECT,
        "zones": INDIRECT,
        "cleaned": (Change.ADDED, None, {}),
    }
    (by_zone,) = (each for each in plan.stages if each.stage == "by_zone")
    assert [(each.field, each.was, each.now) for each in by_zone.declared] == [("parallelism", 2, 3)]
    assert plan.would_rerun
    assert not compared(declared(FILES, trips()), "main", declared(FILES, trips())).would_rerun
    whole = compared(declared(FILES, trips()), "main", None)
    assert {each.change for each in whole.stages} == {Change.ADDED}
    assert len(whole.stages) == 4
