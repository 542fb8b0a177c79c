"""The DAGs of `ladder`: what they look like is read at every parse from the JSON file that WEIR_LADDER names.

`dags` has by DAG what differs from the file's `parallelism`, `functions`, `restart`, `last_day` and `control`, and more
arguments of `dataflow_dag`; all are the same dataflow under names of their own. With `running` the totals are those of
an epoch and all before it, with `kept` by keyed state, of so many `runs`, with `in_table` in a table, too; with
`copied` doubled reads a copy of numbers, in one region; `failover`, `consumers`, `keep`, `retained_checkpoints`,
`replay` and `shadow_of` are the dataflow's. `quality` has the arguments of `expectations` by stage, or for `history`.
With `lake` the sums go into tables of Delta Lake and Iceberg, too, in the folder `lake` beside the file. With `readers`
two more DAGs are scheduled on the sums, by events and by epochs. `on` names a data set that schedules the DAG, each day
of it; with `reads` it is another dataflow, which adds up the sums of the last three days of that data set. With
`within` it adds up those of its parts of the day, and the clock schedules it. With `early` the sums are shown, also in
a folder of `lake`, before their run is closed, which has `recent` to compute after them.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfDayMapper, get_parsing_context

from weir.dataflow import (
    Dataflow,
    Stage,
    State,
    blocking,
    cached,
    dataset,
    delta,
    expectations,
    files,
    iceberg,
    keyed_state,
    last,
    postgres,
    previous,
    sink,
    source,
)
from weir.restarts.strategy import RestartStrategy
from weir_airflow.assets import on_dataset, sink_asset
from weir_airflow.dag import dataflow_dag

control = Path(os.environ["WEIR_LADDER"])
settings = json.loads(control.read_text())
SCHEMA = "bucket BIGINT, numbers BIGINT, total BIGINT"
STAGES = ("numbers", "doubled", "totals")
RULES = ("failover", "consumers", "keep", "retained_checkpoints", "replay", "shadow_of")


def ladder_dag(name: str, *, last_day: str | None, restart: dict[str, Any] | None, **more: Any) -> Any:
    parallelism = dict.fromkeys(STAGES, 2) | more.pop("parallelism", {})
    functions = {stage: f"ladder:{stage}" for stage in STAGES} | more.pop("functions", {})
    parameters = {"control": more.pop("control", str(control))}
    gates = {stage: expectations(**gate) for stage, gate in more.pop("quality", {}).items()}
    numbers = source(
        "numbers", functions["numbers"], parallelism=parallelism["numbers"], quality=gates.get("numbers", ())
    )
    read = cached(numbers) if more.pop("copied", False) else blocking(numbers, by="number")
    doubled = Stage("doubled", functions["doubled"], {"numbers": read}, parallelism=parallelism["doubled"])
    reads = {"doubled": blocking(doubled, by="bucket")}
    if more.pop("running", False):
        functions["totals"] = "ladder:running_totals"
        reads["before"] = previous("totals", by="bucket", schema=SCHEMA)
    state: tuple[State, ...] = ()
    if more.pop("kept", False):
        functions["totals"] = "ladder:kept_totals"
        runs = more.pop("runs", 8)
        rules_of_rows = gates.get("history", ())
        table = postgres("reports_db", f"ladder_{name}") if more.pop("in_table", False) else None
        state = (keyed_state("history", key="bucket", schema=SCHEMA, runs=runs, quality=rules_of_rows, table=table),)
    totals = Stage(
        "totals",
        functions["totals"],
        reads,
        parallelism=parallelism["totals"],
        state=state,
        quality=gates.get("totals", ()),
    )
    rules = {rule: more.pop(rule) for rule in RULES if rule in more}
    once = {"create": "if_missing"}
    tables = [delta(f"{control.parent}/lake/{name}", **once), iceberg(f"lake.ladder.{name}", **once)]
    to = tables if more.pop("lake", False) else ()
    if more.pop("readers", False):
        reader_dags(name)
    stages, on = [numbers, doubled, totals, sink(totals, "sums", to=to)], more.pop("on", None)
    if more.pop("early", False):
        shown = sink(totals, "sums", to=files(f"{control.parent}/lake/{name}"), delivery="at_least_once")
        recent = Stage("recent", "ladder:recent", {"sums": blocking(totals)}, parallelism=1)
        stages = [numbers, doubled, totals, shown, recent, sink(recent, "newest")]
    is_within = more.pop("within", False)
    if more.pop("reads", is_within):
        read = dataset(on, by="bucket", epoch="within" if is_within else last(3))
        recent = Stage("recent", "ladder:recent", {"sums": read}, parallelism=2)
        stages = [recent, sink(recent, "sums")]
    flow = Dataflow(name, stages, parameters=parameters, **rules)
    scheduled = {"schedule": "@daily"} if on is None or is_within else {"schedule": on_dataset(on), "cadence": "@daily"}
    usual = {**scheduled, "catchup": True, "max_active_runs": 2}
    return dataflow_dag(
        flow,
        start_date=day(more.pop("first_day", "2024-01-01")),
        end_date=None if last_day is None else day(last_day),
        restart=None if restart is None else RestartStrategy.from_options(restart),
        **{**usual, **more},
    )


def reader_dags(name: str) -> None:
    """Two ordinary DAGs: a version of the sums starts each once."""
    sums = sink_asset(name, "sums")
    start_of_day = StartOfDayMapper(input_format="%Y%m%dT%H%M%SZ", output_format="%Y%m%dT%H%M%SZ")
    by_epoch = PartitionedAssetTimetable(assets=sums, default_partition_mapper=start_of_day)
    for dag_id, schedule in ((f"{name}_by_event", [sums]), (f"{name}_by_epoch", by_epoch)):
        with DAG(dag_id, schedule=schedule, start_date=day("2024-01-01")):
            EmptyOperator(task_id="read")


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


of_all = {"last_day": "2024-01-01", "restart": None} | {
    name: value for name, value in settings.items() if name in {"parallelism", "functions", "restart", "last_day"}
}
wanted = get_parsing_context().dag_id  # a task's own parse needs one of them
for dag_id, own in settings.get("dags", {"ladder": {}}).items():
    if wanted in {None, dag_id}:
        ladder_dag(dag_id, **{**of_all, **own})
