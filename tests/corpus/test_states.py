"""Values of each type come through a state, a published result and `weir.open` as they went in."""

from __future__ import annotations

import importlib
import sys
import uuid

import pytest
from tests.builders.ledgers import new_ledger
from tests.corpus.columns import of_arrow
from tests.corpus.values import REGION, STATE, by_type
from tests.weir_spark.on_spark import AirflowWithCode

import weir
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.errors import Misconfigured
from weir.store.store import Store

pytestmark = pytest.mark.spark

KEPT = {type_: values for type_, values in by_type().items() if not values[0].refused.keys() & {REGION, STATE}}
ROWS = max(map(len, KEPT.values()))
SCHEMA = ", ".join(["n INT", *(f"v{at} {type_}" for at, type_ in enumerate(KEPT))])
MODULE = """
def wide(ctx):
    rows = ctx.spark.sql(QUERY)
    return rows if ctx.epoch == "20130101T000000Z" else rows.where("n < 0")

def kept(ctx, wide, history):
    known = history.read()
    history.upsert(wide)
    return known
"""


def row(at):
    """Row `at` of all values, as SQL: null where a type has fewer."""
    columns = [f"int({at}) n"]
    for place, (type_, values) in enumerate(KEPT.items()):
        value = values[at].sql if at < len(values) else "null"
        columns.append(f"cast({value} as {type_}) v{place}")
    return f"select {', '.join(columns)}"


def found_in(table):
    table = table.sort_by("n")
    return {type_: of_arrow(table[f"v{place}"]) for place, type_ in enumerate(KEPT)}


class Engine:
    """A session of either kind in the place of the fake engine."""

    def __init__(self, engine, store):
        self._engine, self._store = engine, store

    def run(self, job, during=lambda: None):
        report = self._engine.run(job, self._store)
        during()
        return report


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"corpus_{uuid.uuid4().hex[:12]}"
    query = " union all ".join(map(row, range(ROWS)))
    (tmp_path / f"{name}.py").write_text(f"QUERY = {query!r}\n{MODULE}")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)


def test_a_state_keeps_what_went_in_and_readers_find_it(engine, module, tmp_path):
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    flow = Dataflow(
        "flow",
        [
            source("wide", f"{module}:wide"),
            Stage(
                "kept",
                f"{module}:kept",
                [blocking("wide", by="n")],
                state=keyed_state("history", key="n", schema=SCHEMA),
            ),
            sink("kept", "out"),
        ],
    )
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
    airflow = AirflowWithCode(services, Engine(engine, store), flow)
    for day in (1, 2):
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    right = {type_: [value.found for value in values] + [None] * (ROWS - len(values)) for type_, values in KEPT.items()}
    with weir.open("flow", state="history", services=services) as state:
        assert found_in(state.arrow()) == right
    with weir.open("flow", "20130102T000000Z", "out", services=services) as published:
        assert found_in(published.arrow()) == right
    ledger.close()


@pytest.mark.parametrize("type_", [type_ for type_ in by_type() if type_ not in KEPT])
def test_a_type_that_no_state_can_keep_is_refused_when_it_is_declared(type_):
    with pytest.raises(Misconfigured):
        Dataflow("flow", [Stage("kept", "m:kept", [], state=keyed_state("s", key="n", schema=f"n INT, v {type_}"))])
