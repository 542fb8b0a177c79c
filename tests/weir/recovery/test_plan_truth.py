"""`weir plan` is exact: the regions that it names are the regions that run.

Regions that will re-run do; those that will if something changes do only then; spared ones never do. Drawn at random:
the dataflow's strategy and rule for consumers, what is lost, what changes its content, and who finds out.
"""

import random
import shutil
from collections import Counter

import pytest
from sqlalchemy import select

from weir.assembly import coordinator_of
from weir.code.generation_rules import RepairCode
from weir.coordination.services import Services
from weir.coordination.settled import CLEARS
from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.ledger.database.tables import ResultRow
from weir.recovery.questions import Question, apply_answer, ask
from weir.recovery.rules.plan import StepKind
from weir.restarts.recovery_settings import RecoverySettings
from weir.settling import Settling
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.code import archive_of_edits

SEEDS = (*range(10), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(10, 20)))
ANY_SIZE = RecoverySettings.from_options({"largest_plan": "1"})


def drawn_flow(chance):
    """Sources, then stages that read one or two earlier ones."""
    stages = [source(f"s{i}", f"m:s{i}", parallelism=chance.choice([1, 2])) for i in range(2)]
    for i in range(chance.randint(2, 4)):
        read = chance.sample([stage.name for stage in stages], chance.choice([1, 2]))
        parallelism = chance.choice([1, 2])
        inputs = [blocking(name, by="k") for name in read]
        deterministic = chance.random() > 0.2
        stages.append(Stage(f"t{i}", f"m:t{i}", inputs, parallelism=parallelism, deterministic=deterministic))
    read = {exchange.stage for stage in stages for exchange in stage.exchanges.values()}
    sinks = [sink(stage.name, f"{stage.name}_out") for stage in stages if stage.name not in read]
    options = {
        "failover": chance.choice(["region", "region", "full"]),
        "consumers": chance.choice(["if_changed", "always"]),
    }
    return Dataflow("ladder", [*stages, *sinks], **options)


class Drawn:
    """A run that has gone through once, and what is then done to it."""

    def __init__(self, world, seed):
        self.chance = random.Random(seed)
        self.world, self.flow = world, drawn_flow(self.chance)
        airflow = FakeAirflow(world.services, world.airflow.engine, self.flow)
        self.services = Services(ledger=world.ledger, store=world.store, now=airflow.now, recovery=ANY_SIZE)
        airflow.services, airflow.coordinator = self.services, coordinator_of(self.services)
        self.airflow, self.run = airflow, airflow.dag_run()
        airflow.deployed = archive_of_edits(self.flow, {})
        airflow.run_until_quiet()
        self.before = airflow.executed(self.run)
        self.old = self.digests()

    def digests(self):
        with self.world.ledger.transaction() as session:
            rows = session.scalars(select(ResultRow).where(ResultRow.is_current))
            return {(row.stage, row.subtask): row.digest for row in rows}

    def changed_regions(self, plan_regions):
        """The regions of which something came out otherwise."""
        new = self.digests()
        stages = {key for key, digest in new.items() if digest != self.old[key]}
        topology = ask(self.services, Question(self.run)).run.topology
        return {
            str(topology.region_of(stage, subtask))
            for stage, subtask in stages
            if str(topology.region_of(stage, subtask)) in plan_regions
        }

    def lose(self, names):
        with self.world.ledger.transaction() as session:
            for row in session.scalars(select(ResultRow).where(ResultRow.is_current)):
                if f"{row.stage}[{row.subtask}]" in names:
                    shutil.rmtree(self.world.folder / "store" / row.folder)

    def clear(self, region):
        name, _, rest = region.partition("[")
        index = int(rest.rstrip("]"))
        keys = [key for key in self.airflow.tasks if key.task_id == name and max(key.map_index, 0) == index]
        self.airflow.clear_by_hand(self.run, keys[0].task_id, keys[0].map_index)

    def executed(self):
        return set(Counter(self.airflow.executed(self.run)) - Counter(self.before))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_plan_says_is_what_runs(world, seed):
    drawn = Drawn(world, seed)
    chance, airflow = drawn.chance, drawn.airflow
    regions = sorted(set(drawn.before) - {"weir_close[0]"})
    failed = chance.choice(regions)
    partitions = sorted(f"{stage}[{subtask}]" for stage, subtask in drawn.old)
    lost = tuple(chance.sample(partitions, chance.randint(0, min(3, len(partitions)))))
    for stage in chance.sample(sorted({stage for stage, _ in drawn.old}), chance.choice([0, 1])):
        world.content[stage] = "other"
    plan = ask(drawn.services, Question(drawn.run, failed, lost)).plan
    drawn.lose(lost)
    drawn.clear(failed)
    is_full = drawn.flow.failover.value == "full"
    fails_once(airflow, failed, when=is_full)
    airflow.run_until_quiet()
    executed = drawn.executed()
    kinds = {str(step.region): step for step in plan.steps}
    certain = {name for name, step in kinds.items() if step.kind is StepKind.RERUN}
    maybe = {name for name, step in kinds.items() if step.kind in (StepKind.IF_CHANGED, StepKind.SUSPENDED)}
    spared = {name for name, step in kinds.items() if step.kind is StepKind.SPARED}
    assert plan.of(StepKind.JOINED) == ()
    assert certain <= executed
    assert not spared & executed
    changed = drawn.changed_regions(set(regions))
    for name in maybe & executed:
        depends_on = {str(each) for each in kinds[name].depends_on}
        misses = {each for each in depends_on if f"if {each} runs again" in kinds[name].reason}
        assert depends_on & (changed | lost_sinks(drawn, lost)) or misses & executed, (name, kinds[name].reason)
    assert set(airflow.states().values()) == {"success"}


@pytest.mark.parametrize("code", RepairCode)
@pytest.mark.parametrize("seed", [100, 101, 102, *(pytest.param(at, marks=pytest.mark.soak) for at in range(103, 106))])
def test_what_an_applied_plan_says_is_what_runs_also_where_other_code_is_deployed(world, seed, code):
    drawn = Drawn(world, seed)
    chance, airflow = drawn.chance, drawn.airflow
    partitions = sorted(f"{stage}[{subtask}]" for stage, subtask in drawn.old)
    lost = tuple(chance.sample(partitions, chance.randint(1, 2)))
    stages = [stage.name for stage in drawn.flow.stages if stage.function]
    airflow.deployed = archive_of_edits(drawn.flow, dict.fromkeys(chance.sample(stages, 2), 1))
    drawn.lose(lost)
    answer = ask(drawn.services, Question(drawn.run, code=code))
    apply_answer(drawn.services, answer)
    Settling(airflow.services, lambda: airflow).settle("ladder", CLEARS).require_whole()
    airflow.run_until_quiet()
    executed = drawn.executed()
    assert {str(step.region) for step in answer.plan.of(StepKind.RERUN)} <= executed
    assert not {str(step.region) for step in answer.plan.of(StepKind.SPARED)} & executed
    assert set(airflow.states().values()) == {"success"}
    if code is RepairCode.AS_IT_WAS:
        assert drawn.digests() == drawn.old


def fails_once(airflow, region, *, when):
    """An application's failure restarts others under `full`: let there be one."""

    def fail(key):
        if when and f"{key.task_id}[{max(key.map_index, 0)}]" == region:
            airflow.during = lambda _key: None
            raise RuntimeError("boom")

    airflow.during = fail


def lost_sinks(drawn, lost):
    """Regions whose published files were gone: the closing task publishes them again, though nothing has changed."""
    topology = ask(drawn.services, Question(drawn.run)).run.topology
    sinks = [name.partition("[") for name in lost if name.partition("[")[0] in topology.sinks]
    return {str(topology.region_of(stage, int(rest.rstrip("]")))) for stage, _, rest in sinks}


# Across runs


class Epochs:
    """Three days of a dataflow that reads its own result of the day before."""

    def __init__(self, world):
        flow = Dataflow(
            "ladder",
            [
                source("raw", "m:raw"),
                Stage("sums", "m:sums", [blocking("raw"), previous("sums", schema="k bigint")]),
                Stage("report", "m:report", [blocking("sums")]),
                sink("report", "delays"),
            ],
            keep="7 days",
        )
        self.world = world
        self.airflow = FakeAirflow(world.services, world.airflow.engine, flow)
        self.services = Services(ledger=world.ledger, store=world.store, now=self.airflow.now)
        self.airflow.services, self.airflow.coordinator = self.services, coordinator_of(self.services)
        self.runs = [self.airflow.dag_run(day) for day in (1, 2, 3)]
        self.airflow.run_until_quiet()
        self.before = {run: self.airflow.executed(run) for run in self.runs}

    def plan(self, day, fail):
        return ask(self.services, Question(self.runs[day - 1], fail)).plan

    def executed(self):
        return {
            (day, name)
            for day, run in enumerate(self.runs, 1)
            for name in Counter(self.airflow.executed(run)) - Counter(self.before[run])
        }


@pytest.fixture
def epochs(world):
    return Epochs(world)


def said(plan, day, *kinds):
    """The regions of some kinds, with the day that they are of."""
    return {
        (int(step.region.run[-10:-8]) if step.region.run else day, f"{step.region.name}[{step.region.subtask}]")
        for step in plan.steps
        if step.kind in kinds
    }


def test_a_loss_in_the_epoch_before_is_planned_and_carried_out_there(epochs):
    with epochs.world.ledger.transaction() as session:
        rows = select(ResultRow.folder).where(ResultRow.stage == "sums", ResultRow.run.like("%20130101%"))
        for folder in session.scalars(rows):
            shutil.rmtree(epochs.world.folder / "store" / folder)
    plan = epochs.plan(2, "sums")
    assert said(plan, 2, StepKind.RERUN) == {(1, "sums[0]")}
    epochs.airflow.clear_by_hand(epochs.runs[1], "sums")
    epochs.airflow.run_until_quiet()
    assert epochs.executed() == {(1, "sums[0]"), (2, "sums[0]")}


def test_what_a_change_may_do_to_later_epochs_is_planned_one_by_one(epochs):
    """Each plan names the next epoch; the clears of the epoch after it are in that epoch's own plan."""
    plan = epochs.plan(1, "raw")
    assert said(plan, 1, StepKind.IF_CHANGED) == {
        (1, "sums[0]"), (1, "report-delays[0]"), (1, "weir_close[0]"), (2, "sums[0]"),
    }  # fmt: skip
    assert (3, "sums[0]") in said(epochs.plan(2, "raw"), 2, StepKind.IF_CHANGED)
    epochs.world.content["raw"] = "other"
    epochs.airflow.clear_by_hand(epochs.runs[0], "raw")
    epochs.airflow.run_until_quiet()
    everywhere = {(day, name) for day in (1, 2, 3) for name in ("sums[0]", "report-delays[0]", "weir_close[0]")}
    assert epochs.executed() == everywhere | {(1, "raw[0]")}
