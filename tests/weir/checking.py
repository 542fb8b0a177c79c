"""A world whose rows are checked: suites in a folder of the test, and rows that violate what the test says."""

import json
from dataclasses import replace

from sqlalchemy import select

from weir.assembly import coordinator_of
from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source
from weir.ledger.database.tables import AttemptRow, QualityCheckRow, ResultRow

UNIQUE, NOT_NULL = "expect_column_values_to_be_unique", "expect_column_values_to_not_be_null"


def write_suite(folder, name, *expected, text=None):
    """Write a suite; each of `expected` is a type, or a pair of a type and what else it says."""
    folder.mkdir(exist_ok=True)
    each = [(one, {}) if isinstance(one, str) else one for one in expected]
    found = [{"type": kind, "kwargs": {"column": "k"}, **more} for kind, more in each]
    (folder / f"{name}.json").write_text(text or json.dumps({"name": name, "expectations": found, "meta": {}}))


def with_suites(world):
    """Let the world have a folder of suites; answers it."""
    folder = world.folder / "expectations"
    folder.mkdir(exist_ok=True)
    use(world, replace(world.services, expectations=str(folder)))
    return folder


def use(world, services):
    """Have all of the world work with these services."""
    world.services = world.airflow.services = services
    world.airflow.coordinator = coordinator_of(services)


def gated(quality, *, parallelism=1):
    """Raw into clean, which is checked, by key into totals with weather, published."""
    return Dataflow(
        "gated",
        [
            source("raw", "pipelines.gated:raw", parallelism=parallelism),
            source("weather", "pipelines.gated:weather"),
            Stage(
                "clean",
                "pipelines.gated:clean",
                [blocking("raw", pointwise=True), blocking("weather", broadcast=True)],
                parallelism=parallelism,
                quality=quality,
            ),
            Stage("totals", "pipelines.gated:totals", [blocking("clean")]),
            sink("totals", "delays"),
        ],
    )


def in_one_plan(quality, of_raw=pipelined("raw")):  # noqa: B008  # a frozen value
    """As `gated`, but raw and clean are one region, and only totals is written."""
    return Dataflow(
        "gated",
        [
            source("raw", "pipelines.gated:raw"),
            Stage("clean", "pipelines.gated:clean", [of_raw], quality=quality),
            Stage("totals", "pipelines.gated:totals", [pipelined("clean")]),
            sink("totals", "delays"),
        ],
    )


def run(world, flow, day=1):
    """Run a day of a dataflow until nothing happens any more; answers the run's id in Airflow."""
    world.airflow.deploy(flow)
    run_id = world.airflow.dag_run(day)
    world.airflow.run_until_quiet()
    return run_id


def violate(world, *violated):
    """Run a day for each of the sets of types that its rows violate; that keys are unique only warns."""
    write_suite(with_suites(world), "clean_rows", NOT_NULL, (UNIQUE, {"severity": "warning"}))
    for day, types in enumerate(violated, 1):
        world.airflow.engine.violated["clean"] = types
        world.content["raw"] = f"rows of day {day}"
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()


def checks(world):
    """All checks that were written down, oldest first."""
    with world.ledger.transaction() as session:
        return list(session.scalars(select(QualityCheckRow).order_by(QualityCheckRow.id)))


def outcomes(world):
    """The checks in short: what of, why and what they came to."""
    return [(f"{row.stage}[{row.subtask}]", row.suite, row.why, row.outcome) for row in checks(world)]


def results(world, stage):
    """All results of a stage, oldest first."""
    with world.ledger.transaction() as session:
        return list(session.scalars(select(ResultRow).where(ResultRow.stage == stage).order_by(ResultRow.id)))


def attempts(world, region):
    """All attempts of a region, oldest first."""
    with world.ledger.transaction() as session:
        query = select(AttemptRow).where(AttemptRow.region == region)
        return list(session.scalars(query.order_by(AttemptRow.run, AttemptRow.subtask, AttemptRow.try_number)))
