"""A stage that is tried has the rows, digests and changes of its task, and leaves no trace."""

from __future__ import annotations

import importlib
import json
import sys
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.weir.checking import write_suite
from tests.weir.command_line import use
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

import weir
from weir.coordination.services import Services
from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    cached,
    expectations,
    keyed_state,
    pipelined,
    previous,
    sink,
    source,
)
from weir.errors import Misconfigured
from weir.formats.programs import TrialAnswer, TrialRequest
from weir.ledger.database.tables import AttemptRow, LeaseRow, ResultRow, Table
from weir.reading.availability import Unreadable
from weir.store.store import Store
from weir.trials.against_run import opened_pair, require_comparable, stored_as
from weir.trials.declared import Declared, Wanted, declared_in
from weir.trials.trying import Outcome, scratch_in, trial_of
from weir.typed_json import message_from_json, message_to_json
from weir_spark.checks.comparison import compare
from weir_spark.region.trial import compute, explained

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F

def of_day(ctx):
    return [ctx.epoch]

def flights(ctx, split):
    assert split == ctx.epoch
    return ctx.spark.range(20).select(F.concat(F.lit("t"), F.col("id") % 5).alias("tail"), "id")

def clean(ctx, flights):
    return flights.where("id < 18")

def aircraft(ctx, clean, history):
    today = clean.groupBy("tail").agg(F.count("*").alias("today"))
    total = (F.coalesce("n", F.lit(0)) + F.col("today")).alias("n")
    rows = today.join(history.read(), "tail", "left").select("tail", total)
    history.upsert(rows)
    return rows

def compared(ctx, aircraft, before):
    return aircraft.join(before.read(aircraft).withColumnRenamed("n", "before"), "tail", "left")

def known(ctx, aircraft, before):
    return aircraft.where("n > 0").unionByName(before)
"""
DAG = """
from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, cached, expectations, sink, source
from weir_airflow.dag import dataflow_dag

flights = source("flights", "MODULE:flights", resolve="MODULE:of_day")
clean = Stage("clean", "MODULE:clean", [cached(flights)])
flow = Dataflow("flow", [flights, clean, sink(clean, "published")])
dag = dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""
SECOND = "flow@20130102T000000Z"


class Trials:
    """A dataflow of which two epochs have been computed, and trials of its stages."""

    def __init__(self, folder: Path, url: str, spark) -> None:
        self.folder, self.spark, self.sql = folder, spark, {}
        self.module = f"pipeline_{uuid.uuid4().hex[:12]}"
        self.write(PIPELINE)
        self.store = Store.open(str(folder / "results"))
        self.store.initialise()
        self.ledger = new_ledger(folder / "ledger.db")
        write_suite(folder / "suites", "tails", ("expect_column_values_to_not_be_null", {"kwargs": {"column": "tail"}}))
        self.services = Services(ledger=self.ledger, store=self.store, expectations=str(folder / "suites"))
        self.airflow = AirflowWithCode(self.services, OnSpark(url, self.store), self.flow())
        for day in (1, 2):
            self.airflow.dag_run(day)
            self.airflow.run_until_quiet()

    def write(self, text: str) -> None:
        (self.folder / f"{self.module}.py").write_text(text)

    def function(self, name: str) -> str:
        return f"{self.module}:{name}"

    def stages(self):
        flights = source("flights", self.function("flights"), resolve=self.function("of_day"))
        clean = Stage("clean", self.function("clean"), [cached(flights)], quality=expectations("tails"))
        history = keyed_state("history", key="tail", schema="tail STRING, n BIGINT")
        aircraft = Stage(
            "aircraft", self.function("aircraft"), [blocking(clean, by="tail")], parallelism=2, state=history
        )
        before = previous("known", schema="tail STRING, n BIGINT")
        known = Stage("known", self.function("known"), {"aircraft": blocking(aircraft), "before": before})
        return [flights, clean, aircraft, known, sink(known, "published")]

    def flow(self, **changed) -> Dataflow:
        """The dataflow, with other settings of some stages."""
        stages = [replace(each, **changed.get(each.name, {})) for each in self.stages()]
        return Dataflow("flow", stages)

    @contextmanager
    def trial(self, stage: str, *, flow: Dataflow | None = None, services=None, **wanted):
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir()
        flow = flow or self.flow()
        declared = Declared(self.folder / "dag.py", flow, flow.stage(stage), self.services.expectations, self.sql)
        asked = Wanted(file=declared.file, stage=stage, **wanted)
        scratch = scratch_in(folder)
        with trial_of(declared, asked, scratch, services or self.services) as trial:
            yield trial, scratch

    def tried(self, stage: str, **wanted):
        with self.trial(stage, **wanted) as (trial, scratch):
            assert message_from_json(TrialRequest, message_to_json(trial.request)) == trial.request
            found = compute(trial.request, self.spark, scratch, lambda _line: None)
            answer = TrialAnswer(found.reports)
            assert message_from_json(TrialAnswer, message_to_json(answer)) == answer
            return Outcome(trial, found.reports), sorted(tuple(row) for row in found.rows.collect())

    def recorded(self) -> dict[str, object]:
        """All that ledger and store have, but for read leases."""
        with self.ledger.transaction() as session:
            rows = {
                name: session.scalar(select(func.count()).select_from(table))
                for name, table in Table.metadata.tables.items()
                if name != LeaseRow.__tablename__
            }
        return rows | {"files": sorted(map(str, (self.folder / "results").rglob("*")))}

    def leases(self) -> int:
        with self.ledger.transaction() as session:
            return session.scalar(select(func.count()).select_from(LeaseRow)) or 0


@pytest.fixture(scope="module")
def world(server, shared_session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trials")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    made = Trials(folder, server.url, shared_session)
    with made.ledger.transaction() as session:
        assert [row.error for row in session.scalars(select(AttemptRow)) if row.error] == []
    yield made
    made.ledger.close()
    sys.path.remove(str(folder))


@pytest.fixture
def trials(world):
    """The world, with the code that has computed it; a trial leaves nothing behind."""
    before = world.recorded()
    world.write(PIPELINE)
    yield world
    world.write(PIPELINE)
    assert (world.recorded(), world.leases()) == (before, 0)


def test_a_stage_in_the_middle_of_a_plan_is_computed_with_what_it_reads_there(trials):
    outcome, rows = trials.tried("clean", epoch="2013-01-02")
    assert (outcome.is_as_recorded, outcome.rows, len(rows), rows[0]) == (True, 18, 18, ("t0", 0))
    assert outcome.schema == "`tail` string, `id` long"
    assert outcome.trial.notes == ()
    (check,) = outcome.checks
    assert (check.suite, check.outcome.value, check.rows) == ("tails", "passed", 18)
    assert any(step.startswith("write clean") for step in outcome.seconds)


def test_a_stage_that_no_run_stores_has_a_digest_too(trials):
    outcome, _ = trials.tried("flights", epoch="2013-01-02")
    assert (outcome.rows, outcome.is_as_recorded) == (20, None)


def test_the_state_of_the_epoch_before_is_read_and_its_changes_are_counted(trials):
    outcome, rows = trials.tried("aircraft")
    assert outcome.trial.run == SECOND
    assert outcome.is_as_recorded
    assert rows == [("t0", 8), ("t1", 8), ("t2", 8), ("t3", 6), ("t4", 6)]
    assert outcome.changes == {"history": (5, 5)}
    assert set(outcome.digests) == {0, 1}


def test_one_of_several_subtasks_is_computed(trials):
    outcome, rows = trials.tried("aircraft", subtask=1)
    assert (set(outcome.digests), outcome.is_as_recorded, len(rows) < 5) == ({1}, True, True)
    with pytest.raises(
        Misconfigured, check=of_kind("trials.subtask_unknown", parallelism="1", stage="aircraft", wanted="2")
    ):
        trials.tried("aircraft", subtask=2)


def test_rows_of_the_epoch_before_are_read(trials):
    outcome, rows = trials.tried("known", epoch="2013-01-02")
    assert (outcome.is_as_recorded, len(rows)) == (True, 10)


def test_the_newest_code_is_tried_or_that_of_the_run(trials):
    trials.write(PIPELINE.replace("id < 18", "id < 3"))
    newest, rows = trials.tried("clean")
    assert (newest.is_as_recorded, len(rows)) == (False, 3)
    was, rows = trials.tried("clean", code="as_it_was")
    assert (was.is_as_recorded, len(rows)) == (True, 18)
    assert was.trial.code != newest.trial.code


def test_the_plan_is_as_it_is_declared_and_reads_what_the_run_has_written(trials):
    """The DAG file divides aircraft by four now, and clean by three: the run has one result of clean."""
    changed = trials.flow(aircraft={"parallelism": 4}, clean={"parallelism": 3}, flights={"parallelism": 3})
    outcome, rows = trials.tried("aircraft", flow=changed)
    assert (set(outcome.digests), len(rows), outcome.is_as_recorded) == ({0, 1, 2, 3}, 5, None)


def test_inputs_that_the_run_does_not_have_are_refused_with_what_to_do(trials):
    flights, clean, aircraft, known, published = trials.stages()
    more = source("more", trials.function("clean"))
    wide = replace(known, inputs={**known.exchanges, "more": blocking(more)})
    with pytest.raises(Misconfigured, check=of_kind("trials.declaration_differs")):
        trials.tried("known", flow=Dataflow("flow", [flights, clean, aircraft, more, wide, published]))


def test_what_is_read_is_leased_meanwhile(trials):
    with trials.trial("known"):
        assert trials.leases() > 0


def test_what_is_computed_is_compared_with_what_the_run_stores(trials):
    same, _ = trials.tried("known")
    with opened_pair(trials.services, same, stored_as(trials.services, same.trial), (), 9) as pair:
        assert (pair.a.stage, pair.b.stage, pair.is_equal, pair.asked) == ("known", "known", True, None)
        assert trials.leases() == 0
    trials.write(PIPELINE.replace('where("n > 0")', "where(\"tail != 't3'\")"))
    other, _ = trials.tried("known")
    with opened_pair(trials.services, other, "known", ("tail", "n"), 9) as pair:
        assert pair.is_equal is False
        assert trials.leases() == 1
        found, rows = compare(trials.spark, pair.asked)
    assert (found.only_a, found.only_b, found.changed, found.key) == (1, 0, 0, ("tail", "n"))
    assert [row["a"]["tail"] for row in rows.to_pylist()] == ["t3"]


def test_a_stage_that_the_run_does_not_store_is_compared_with_nothing(trials):
    tried, _ = trials.tried("clean")
    assert stored_as(trials.services, tried.trial) == "clean"
    with pytest.raises(Misconfigured, check=of_kind("trials.not_stored")):
        stored_as(trials.services, replace(tried.trial, request=replace(tried.trial.request, stage="flights")))


def test_what_the_run_stores_no_more_is_not_compared_and_says_why(trials):
    trials.write(PIPELINE.replace('where("n > 0")', 'where("n > 99")'))
    other, _ = trials.tried("known")
    query = select(ResultRow).where(ResultRow.run == SECOND, ResultRow.stage == "known", ResultRow.is_current)
    with trials.ledger.transaction("flow") as session:
        row = session.scalars(query).one()
        before, row.state = row.state, "released"
    try:
        with opened_pair(trials.services, other, "known", (), 9) as pair:
            assert (pair.asked, pair.is_equal) == (None, None)
            assert f"known[0] (plain) of {SECOND}" in pair.problem
    finally:
        with trials.ledger.transaction("flow") as session:
            session.scalars(query).one().state = before


@pytest.mark.parametrize("wanted", [{"samples": Path("samples")}, {"subtask": 1}])
def test_samples_and_single_subtasks_are_compared_with_no_run(wanted):
    with pytest.raises(Misconfigured, check=of_kind("trials.not_comparable")):
        require_comparable(Wanted(file=Path("dag.py"), stage="clean", **wanted))
    require_comparable(Wanted(file=Path("dag.py"), stage="clean"))


def test_an_epoch_without_a_run_is_answered_with_the_runs_that_there_are(trials):
    with pytest.raises(Misconfigured, check=of_kind("trials.run_unknown")):
        trials.tried("aircraft", epoch="2013-01-09")


def test_without_a_ledger_samples_are_named(trials, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    flow = trials.flow()
    declared = Declared(tmp_path / "dag.py", flow, flow.stage("known"), "")
    wanted = Wanted(file=declared.file, stage="known")
    with (
        pytest.raises(Misconfigured, check=of_kind("environment.no_ledger")),
        trial_of(declared, wanted, scratch_in(tmp_path)),
    ):
        pass


def test_an_input_that_is_gone_is_answered_with_the_command_that_brings_it_back(trials):
    with trials.ledger.transaction("flow") as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.stage == "clean", ResultRow.run == SECOND))
        folder = next(row.folder for row in rows if row.is_current)
    manifest = trials.folder / "results" / folder / "manifest.json"
    kept = manifest.read_bytes()
    manifest.unlink()
    try:
        with pytest.raises(Unreadable, match=f"clean.*`weir plan {SECOND} --apply` recomputes it"):
            trials.tried("aircraft")
    finally:
        manifest.write_bytes(kept)


def test_a_source_needs_no_run(trials):
    """As on the first day, when there is no ledger or no run."""
    empty = new_ledger(trials.folder / f"{uuid.uuid4().hex}.db")
    try:
        services = Services(ledger=empty, store=trials.store)
        outcome, rows = trials.tried("clean", services=services, epoch="2013-01-05T06:00", until="2013-01-05T07:00")
    finally:
        empty.close()
    assert (len(rows), outcome.trial.run) == (18, "")
    assert outcome.trial.interval == ("2013-01-05T06:00:00+00:00", "2013-01-05T07:00:00+00:00")
    assert outcome.trial.notes[0].startswith("there is no run to take the interval from")


@pytest.fixture
def samples(tmp_path):
    folder = tmp_path / "samples"
    folder.mkdir()
    return folder


def as_csv(folder: Path, rows) -> None:
    (folder / "clean.csv").write_text("tail,id\n" + "".join(f"{tail},{number}\n" for tail, number in rows))


def as_lines(folder: Path, rows) -> None:
    lines = [json.dumps({"tail": tail, "id": number}) for tail, number in rows]
    (folder / "clean.jsonl").write_text("\n".join(lines))


def as_array(folder: Path, rows) -> None:
    (folder / "clean.json").write_text(json.dumps([{"tail": tail, "id": number} for tail, number in rows], indent=1))


def as_parquet(folder: Path, rows) -> None:
    (folder / "clean").mkdir()
    for place, row in enumerate(rows):
        table = pa.table({"tail": [row[0]], "id": pa.array([row[1]], pa.int64())})
        pq.write_table(table, folder / "clean" / f"{place}.parquet")


@pytest.mark.parametrize("write", [as_csv, as_lines, as_array, as_parquet])
def test_samples_take_the_place_of_inputs_and_are_divided_as_they_are(trials, samples, write):
    write(samples, [("a", 1), ("b", 2), ("a", 3)])
    outcome, rows = trials.tried("aircraft", samples=samples)
    assert rows == [("a", 2), ("b", 1)]
    assert outcome.changes == {"history": (2, 2)}
    assert "the state history is empty, as in the first epoch" in outcome.trial.notes


def test_a_state_that_the_stage_only_reads_is_empty_on_samples_and_that_of_the_epoch_before_on_a_run(trials, samples):
    reads = {"aircraft": pipelined("aircraft"), "before": previous("history")}
    compared = Stage("compared", trials.function("compared"), reads, parallelism=2)
    flow = Dataflow("flow", [*trials.stages(), compared, sink(compared, "more")])
    (samples / "aircraft.csv").write_text("tail,n\na,2\n")
    outcome, rows = trials.tried("compared", flow=flow, samples=samples)
    assert (rows, outcome.changes) == ([("a", 2, None)], {})
    assert outcome.trial.notes[-2:] == (
        "the state history is empty, as in the first epoch",
        "subtask 0 reads all rows of the samples: only in a run they are divided index to index",
    )
    _, rows = trials.tried("compared", flow=flow, epoch="2013-01-02")
    assert rows == [("t0", 8, 4), ("t1", 8, 4), ("t2", 8, 4), ("t3", 6, 3), ("t4", 6, 3)]


def test_a_notebook_gets_the_rows_of_the_stage_that_a_dag_file_declares(trials):
    (trials.folder / "dag.py").write_text(DAG.replace("MODULE", trials.module))
    tried = weir.run_stage(trials.folder / "dag.py", "clean", "2013-01-02", services=trials.services)
    assert (tried.trial.run, tried.is_as_recorded, tried.rows) == (SECOND, True, 18)
    rows = tried.arrow().sort_by("id").to_pylist()
    assert rows == [{"tail": f"t{number % 5}", "id": number} for number in range(18)]
    assert [row.asDict() for row in tried.spark(trials.spark).orderBy("id").collect()] == rows
    with pytest.raises(Misconfigured, check=of_kind("trials.stage_unknown", name="claen")):
        declared_in(trials.folder / "dag.py", "claen")


def test_a_query_is_tried(trials, samples):
    as_csv(samples, [("a", 1), ("b", 2)])
    queried = {"aircraft": {"function": "sql/two.sql", "state": (), "inputs": [blocking("clean")], "parallelism": 1}}
    trials.sql = {"sql/two.sql": "select tail, id + 1 as n from clean"}
    _, rows = trials.tried("aircraft", flow=trials.flow(**queried), samples=samples)
    assert rows == [("a", 2), ("b", 3)]
    _, rows = trials.tried("aircraft", flow=trials.flow(**queried), epoch="2013-01-02")
    assert len(rows) == 18


def test_each_input_needs_a_sample_but_those_of_the_epoch_before(trials, samples):
    with pytest.raises(Misconfigured, check=of_kind("trials.sample_missing", argument="aircraft", names="nothing")):
        trials.tried("known", samples=samples)
    (samples / "aircraft.csv").write_text("tail,n\na,1\nb,0\n")
    with pytest.raises(Misconfigured, check=of_kind("trials.code_without_run")):
        trials.tried("known", samples=samples, code="as_it_was")
    _, rows = trials.tried("known", samples=samples)
    assert rows == [("a", 1)]


def test_an_error_of_the_stage_is_told_with_its_own_lines(trials):
    trials.write(PIPELINE.replace('return flights.where("id < 18")', 'raise ArithmeticError("no luck")'))
    with pytest.raises(ArithmeticError) as error:
        trials.tried("clean")
    told = explained(error.value)
    assert told.error == "ArithmeticError: no luck"
    assert told.traceback.count("File") == 1
    assert f'File "{trials.module}.py"' in told.traceback
    assert 'raise ArithmeticError("no luck")' in told.traceback
