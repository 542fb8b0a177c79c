"""Edits of a pipeline on real Spark, one after another: after each what must be is computed, and all rows are right.

What each has to compute was written down by hand, before it was run. Where more is computed, the reason stands beside.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir.checking import write_suite
from tests.weir.command_line import typed, use
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.code.archive import pack, top_level
from weir.coordination.services import Services
from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    digest,
    expectations,
    files_source,
    keyed_state,
    pipelined,
    sink,
)
from weir.ledger.database.tables import AttemptRow, QualityCheckRow, ResultRow
from weir.store.catalogue import published
from weir.store.store import Store
from weir_spark.session import packages

pytestmark = pytest.mark.spark

DAYS = (1, 2, 3)
DONE = {"success", "removed"}
NOT_NULL, BETWEEN = "expect_column_values_to_not_be_null", "expect_column_values_to_be_between"
QUERY = "sql/report.sql"
STAGES = '''"""The stages of a shop."""

import {fees}
import {money}
from pyspark.sql import functions as F

from {shop}.cleaning import tidy

FACTOR = 1


def clean(ctx, orders):
    """Only orders that count."""
    return tidy(orders)


def enriched(ctx, clean, products):
    joined = clean.join(products, "product")
    return joined.withColumn("amount", F.col("units") * F.col("price"))


def by_customer(ctx, enriched, spent):
    new = enriched.groupBy("customer").agg(F.sum("amount").alias("now"))
    found = new.join(spent.read(new), "customer", "left")
    found = found.select("customer", (F.coalesce("spent", F.lit(0)) + F.col("now")).alias("spent"))
    spent.upsert(found)
    return found


def by_product(ctx, enriched):
    sums = enriched.groupBy("product").agg(F.sum("amount").alias("amount"))
    return sums.select("product", {fees}.with_fee({money}.paid("amount") * FACTOR).alias("paid"))


def bought(ctx, enriched):
    return enriched.where("units > 2").select("product").distinct()
'''
CLEANING = """from {shop}.numbers import at_least


def tidy(orders):
    return at_least(orders, 1)
"""
NUMBERS = """from pyspark.sql import functions as F


def at_least(orders, least):
    return orders.where(F.col("units") >= least)


def never_called(orders):
    return orders.limit(0)
"""
SQL = """SELECT customer, spent, {{ ctx.parameters.currency }} AS currency
FROM by_customer
WHERE spent > 0
"""
MONEY = "from pyspark.sql import functions as F\n\n\ndef paid(name):\n    return F.col(name) / {share}\n"
FEES = "def with_fee(paid):\n    return paid + {fee}\n"


@dataclass(frozen=True)
class Shop:
    """What the pipeline is as it is deployed, for a plain computation of its rows."""

    least: int = 1
    factor: int = 1
    share: int = 1
    fee: int = 0
    above: int = 0
    currency: str = "EUR"
    has_bought: bool = False
    prices: dict[str, int] = field(default_factory=lambda: {"p0": 3, "p1": 5, "p2": 7})

    def amounts(self, orders):
        return [(who, what, units * self.prices[what]) for who, what, units in orders if units >= self.least]

    def spent(self, orders):
        found = Counter()
        for who, _, amount in self.amounts(orders):
            found[who] += amount
        return found

    def published(self, orders, before):
        """The rows of each data set of a day, where its customers have spent this much before."""
        of_product = Counter()
        for _, product, amount in self.amounts(orders):
            of_product[product] += amount
        spent = {who: before[who] + now for who, now in self.spent(orders).items()}
        found = {
            "report_out": [(who, sums, self.currency) for who, sums in spent.items() if sums > self.above],
            "by_product_out": [
                (product, amount / self.share * self.factor + self.fee) for product, amount in of_product.items()
            ],
        }
        if self.has_bought:
            found["bought_out"] = [(each,) for each in {what for _, what, units in orders if units > 2}]
        return {name: sorted(rows) for name, rows in found.items()}


def orders_of(day):
    return [(f"c{each % 4}", f"p{each * day % 3}", (each + day) % 5) for each in range(12)]


class Deployed:
    """The files of the pipeline on this machine, and what its DAG file declares."""

    def __init__(self, folder):
        mark = uuid.uuid4().hex[:12]
        self.names = {each: f"{each}_{mark}" for each in ("shop", "money", "fees")}
        self.folder, self.shop, self.orders = folder, Shop(), {}
        package = folder / "modules" / self.names["shop"]
        self.files = {each: package / f"{each}.py" for each in ("stages", "cleaning", "numbers")}
        self.files |= {
            "query": folder / "dags" / QUERY,
            "money": folder / "site-packages" / f"{self.names['money']}.py",
            "fees": folder / "plugins" / f"{self.names['fees']}.py",
            "products": folder / "products.csv",
        }
        texts = {"stages": STAGES, "cleaning": CLEANING, "numbers": NUMBERS}
        texts = {name: text.format(**self.names) for name, text in texts.items()}
        prices = "".join(f"{name},{price}\n" for name, price in self.shop.prices.items())
        texts |= {"query": SQL, "fees": FEES.format(fee=0), "products": prices}
        for name, text in texts.items():
            self.files[name].parent.mkdir(parents=True, exist_ok=True)
            self.files[name].write_text(text)
        self.install(version=1, share=1, commit=1)
        self.declared = {
            "orders": {"schema": "customer STRING, product STRING, units BIGINT"},
            "enriched": {},
            "by_product": {},
            "by": "product",
            "spent": {},
        }

    def file_of(self, day):
        return self.folder / "orders" / f"2013-01-{day:02d}" / "all.csv"

    def has_orders(self, day, orders):
        self.orders[day] = orders
        self.file_of(day).parent.mkdir(parents=True)
        self.file_of(day).write_text("".join(f"{','.join(map(str, each))}\n" for each in orders))

    def install(self, *, version, share, commit):
        """Install a version of the distribution that a function imports, from a commit of its repository."""
        name, folder = self.names["money"], self.files["money"].parent
        shutil.rmtree(folder, ignore_errors=True)
        info = folder / f"{name}-{version}.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}.0\n")
        self.files["money"].write_text(MONEY.format(share=share))
        digest = hashlib.sha256(self.files["money"].read_bytes()).hexdigest()
        (info / "RECORD").write_text(f"{name}.py,sha256={digest},{self.files['money'].stat().st_size}\n")
        origin = {"url": "https://git.test/money", "vcs_info": {"vcs": "git", "commit_id": f"{commit}"}}
        (info / "direct_url.json").write_text(json.dumps(origin))

    def edit(self, name, old, new):
        text = self.files[name].read_text()
        assert text.count(old) == 1
        self.files[name].write_text(text.replace(old, new))

    def flow(self, reuse="equal"):
        """What the DAG file declares."""
        at, declared = f"{self.names['shop']}.stages", self.declared
        spent = keyed_state("spent", key="customer", schema="customer STRING, spent BIGINT", **declared["spent"])
        by_product = [blocking("enriched", by=declared["by"])]
        both_sides = [blocking("clean", by="product"), blocking("products", by="product")]
        lying = f"{self.folder}/orders/{{start:%Y-%m-%d}}/*.csv"
        price = "product STRING, price BIGINT"
        stages = [
            files_source("orders", lying, format="csv", **declared["orders"]),
            files_source("products", str(self.files["products"]), format="csv", schema=price),
            Stage("clean", f"{at}:clean", [pipelined("orders")]),
            Stage("enriched", f"{at}:enriched", both_sides, **declared["enriched"]),
            Stage("by_customer", f"{at}:by_customer", [blocking("enriched", by="customer")], state=spent),
            Stage("by_product", f"{at}:by_product", by_product, **declared["by_product"]),
            Stage("report", sql=QUERY, inputs=[blocking("by_customer")], quality=expectations("report")),
            sink("report", "report_out"),
            sink("by_product", "by_product_out"),
        ]
        if self.shop.has_bought:
            stages += [Stage("bought", f"{at}:bought", [blocking("enriched")]), sink("bought", "bought_out")]
        parameters = {"currency": self.shop.currency}
        return Dataflow("shop", stages, reuse=reuse, keep="30 days", retained_checkpoints=9, parameters=parameters)


class Airflow(AirflowWithCode):
    """A fake Airflow each of whose processes imports all anew, and which can run a backfill over runs that exist."""

    is_backfill = False

    def request(self, task):
        for name in (self.files.names["money"], self.files.names["fees"]):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        packages.cache_clear()
        asked = replace(super().request(task), is_backfill=self.is_backfill)
        if asked.deployed is None:
            return asked
        texts = {QUERY: self.files.files["query"].read_text()}
        return replace(asked, deployed=pack(top_level(stage.function for stage in self.flow.stages), texts))


@pytest.fixture
def files(tmp_path, monkeypatch):
    found = Deployed(tmp_path)
    for each in ("plugins", "site-packages", "modules"):
        monkeypatch.syspath_prepend(str(tmp_path / each))
    write_suite(tmp_path / "suites", "report", (NOT_NULL, {"kwargs": {"column": "customer"}}))
    yield found
    for name in found.names.values():
        sys.modules.pop(name, None)
    packages.cache_clear()


@pytest.fixture
def in_world(server, tmp_path, files):
    """A fake Airflow with a ledger and a store of its own, below this test's folder."""
    ledgers = []

    def answer(folder, reuse):
        (tmp_path / folder).mkdir(exist_ok=True)
        store = Store.open(str(tmp_path / folder / "store"))
        store.initialise()
        ledgers.append(new_ledger(tmp_path / folder / "ledger.db"))
        suites = str(tmp_path / "suites")
        services = Services(ledger=ledgers[-1], store=store, now=lambda: found.time, expectations=suites)
        found = Airflow(services, OnSpark(server.url, store), files.flow(reuse))
        found.files = files
        return found

    yield answer
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def airflow(in_world, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    return in_world("", reuse="equal")


def run_of(day):
    return f"shop@201301{day:02d}T000000Z"


def attempts(airflow):
    with airflow.services.ledger.transaction() as session:
        return {row.id: row for row in session.scalars(select(AttemptRow)) if row.region != "weir_close"}


def computed(airflow, before):
    """The tasks that were computed since, by their first stage, each with the days."""
    found = {}
    for row in attempts(airflow).values():
        if row.id not in before and "taken" not in (row.metrics or {}):
            found.setdefault(row.region.partition("-")[0], set()).add(row.run.removeprefix("shop@201301")[1])
    return {region: "".join(sorted(days)) for region, days in found.items()}


def rows(airflow, name, day):
    store, epoch = airflow.services.store, f"201301{day:02d}T000000Z"
    folders = [each.folder for each in published(store, "shop", name, epoch).partitions]
    files = [file for each in folders for file in (Path(store.url.removeprefix("file://")) / each).glob("*.parquet")]
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def wrong(airflow, day, before):
    """The data sets of a day whose rows are not what plain Python computes, each with its rows and the right ones."""
    right = airflow.files.shop.published(airflow.files.orders[day], before)
    found = {name: rows(airflow, name, day) for name in right}
    return {(name, day): (found[name], each) for name, each in right.items() if found[name] != each}


def all_wrong(airflow, days):
    """The same of days from the first on, all of which are to be as the pipeline is now."""
    before, found = Counter(), {}
    for day in days:
        found |= wrong(airflow, day, before)
        before.update(airflow.files.shop.spent(airflow.files.orders[day]))
    return found


def to_the_end(airflow):
    airflow.run_until_quiet()
    airflow.deliver_clears()
    airflow.run_until_quiet()
    failed = {key: each.failed_because for key, each in airflow.tasks.items() if each.state not in DONE}
    assert not failed


@dataclass(frozen=True)
class Edit:
    """What is edited, how, and which tasks of which days must be computed after it.

    `computed` is given where that is more, with the reason `because`. `shop` is what the pipeline is then. Days that
    are `adopted` are to follow what is declared, and lies there, now.
    """

    name: str
    change: Callable[[Deployed], object]
    must: dict[str, str] | set[str]
    shop: dict[str, object] = field(default_factory=dict)
    adopted: tuple[int, ...] = ()
    computed: dict[str, str] | set[str] | None = None
    because: str = ""

    @property
    def expected(self):
        return self.must if self.computed is None else self.computed

    def deploy(self, airflow):
        self.change(airflow.files)
        airflow.files.shop = replace(airflow.files.shop, **self.shop)
        airflow.deploy(airflow.files.flow())


def every(*stages):
    return dict.fromkeys(stages, "123")


def declare(**settings):
    return lambda files: files.declared.update(settings)


def edit(name, old, new):
    return lambda files: files.edit(name, old, new)


def write(name, text):
    return lambda files: files.files[name].write_text(text)


def nothing(files):
    """Edit no file: the edit is one of what is declared."""


def rewrite(file_of, old, new):
    """Rewrite a file, with its name, size and time."""

    def change(files):
        file = file_of(files)
        before, text = file.stat(), file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    return change


def sells_more(files):
    """An order of the second day was of more units."""
    rewrite(lambda files: files.file_of(2), "c2,p1,4", "c2,p1,6")(files)
    files.orders[2] = [("c2", "p1", 6) if each == ("c2", "p1", 4) else each for each in files.orders[2]]


def write_other_suite(files):
    write_suite(files.folder / "suites", "report", (BETWEEN, {"kwargs": {"column": "spent", "min_value": 1}}))


JOINED = 'both = clean.join(products, "product")\n    return both'
OF_ORDERS = ("orders", "enriched", "by_customer", "by_product", "report")
ALL = {**every(*OF_ORDERS), "products": "1"}
"""The table that does not change is computed for one day, and taken by the others."""

EDITS = (
    Edit("a comment", edit("stages", "FACTOR = 1\n", "# Once\nFACTOR = 1\n"), {}),
    Edit("a docstring", edit("stages", "Only orders that count.", "Orders that count."), {}),
    Edit(
        "a local variable renamed",
        edit("stages", 'joined = clean.join(products, "product")\n    return joined', JOINED),
        {},
        computed=every("enriched"),
        because="a version is of the syntax; the rows are the same, and what reads them takes",
    ),
    Edit("a helper that nobody calls", edit("numbers", "limit(0)", "limit(1)"), {}),
    Edit("a constant of one stage", edit("stages", "FACTOR = 1", "FACTOR = 2"), every("by_product"), {"factor": 2}),
    Edit("a helper two imports away", edit("numbers", ">= least", "> least"), every(*OF_ORDERS), {"least": 2}),
    Edit("the text of a query", edit("query", "spent > 0", "spent > 20"), every("report"), {"above": 20}),
    Edit(
        "two edits at once",
        lambda files: (files.edit("stages", "FACTOR = 2", "FACTOR = 3"), files.edit("query", "> 20", "> 10")),
        every("by_product", "report"),
        {"factor": 3, "above": 10},
    ),
    Edit(
        "an edit that is reverted",
        edit("query", "spent > 10", "spent > 20"),
        {},
        {"above": 20},
        computed=every("report"),
        because="what was superseded is taken from no more, and no other run has these rows",
    ),
    Edit(
        "a column added",
        edit("stages", 'F.col("price"))\n', 'F.col("price")).withColumn("tax", F.lit(1))\n'),
        every("enriched", "by_customer", "by_product"),
    ),
    Edit("a suite", write_other_suite, {}),
    Edit("a helper in another folder of the path", write("fees", FEES.format(fee=5)), every("by_product"), {"fee": 5}),
    Edit(
        "a comment in a helper in another folder of the path",
        write("fees", f"# Five\n{FEES.format(fee=5)}"),
        {},
    ),
    Edit(
        "a version of an installed library",
        lambda files: files.install(version=2, share=4, commit=2),
        every("by_product"),
        {"share": 4},
        computed=ALL,
        because="all distributions that can be imported count",
    ),
    Edit(
        "the same version of it, from another commit",
        lambda files: files.install(version=2, share=8, commit=3),
        every("by_product"),
        {"share": 8},
        computed=ALL,
        because="likewise",
    ),
    Edit("the same files of it, from another commit", lambda files: files.install(version=2, share=8, commit=4), {}),
    Edit(
        "a file rewritten with its name, size and time",
        sells_more,
        {**dict.fromkeys(("orders", "enriched", "by_product"), "2"), **dict.fromkeys(("by_customer", "report"), "23")},
        adopted=(2,),
    ),
    Edit(
        "a Spark setting, of days that have run",
        declare(by_product={"spark": {"spark.sql.shuffle.partitions": "3"}}),
        every("by_product"),
        adopted=DAYS,
        computed=ALL,
        because="the results of a run that was adopted are superseded",
    ),
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_after_each_edit_a_clear_with_reuse_computes_what_must_be(airflow, in_world):
    for day in DAYS:
        airflow.files.has_orders(day, orders_of(day))
        airflow.dag_run(day)
        to_the_end(airflow)
    found = {"nothing": ({}, all_wrong(airflow, DAYS))}
    for each in EDITS:
        before = attempts(airflow)
        each.deploy(airflow)
        airflow.is_backfill = bool(each.adopted)
        for day in each.adopted:
            typed("run", "adopt", run_of(day))
            airflow.clear_run_by_hand(f"scheduled__2013-01-{day:02d}")
        if not each.adopted:
            typed("clear", "shop", "--from", "2013-01-01", "--to", "2013-01-03", "--reuse", "--apply")
            airflow.deliver_clears()
        to_the_end(airflow)
        found[each.name] = computed(airflow, before), all_wrong(airflow, DAYS)
    computed_anew = in_world("never", reuse="never")
    for day in DAYS:
        computed_anew.dag_run(day)
        to_the_end(computed_anew)
    assert found == {"nothing": ({}, {})} | {each.name: (each.expected, {}) for each in EDITS}
    assert types_checked(airflow) == {NOT_NULL, BETWEEN}
    assert digests(airflow) == digests(computed_anew)


def digests(airflow):
    """The digests of all current results."""
    with airflow.services.ledger.transaction() as session:
        found = list(session.scalars(select(ResultRow).where(ResultRow.is_current)))
    return {(row.run, row.stage, row.subtask, row.layout): row.digest for row in found}


def types_checked(airflow):
    """The types of what has been checked of the report."""
    with airflow.services.ledger.transaction() as session:
        checked = list(session.scalars(select(QualityCheckRow).where(QualityCheckRow.outcome == "passed")))
    return {each["type"] for row in checked for each in row.results}


EACH_DAY = frozenset({"orders", "by_customer", "report"})
"""A day's files have names of their own, and a state goes on: they are computed, though no order differs."""
DECLARED = (
    Edit("nothing", nothing, set()),
    Edit("a Spark setting", declare(by_product={"spark": {"spark.sql.shuffle.partitions": "3"}}), {"by_product"}),
    Edit("the key of an exchange", declare(by=["product", "customer"]), {"by_product"}),
    Edit("the time to live of a state", declare(spent={"ttl": "20 days"}), set()),
    Edit("a digest rule", declare(by_product={"digest": digest(round={"paid": 2})}), {"by_product"}),
    Edit(
        "the schema of a source",
        declare(orders={"schema": "customer STRING, product STRING, units INT"}),
        {"enriched", "by_product"},
    ),
    Edit("the number of subtasks", declare(enriched={"parallelism": 2}), {"enriched", "by_product"}),
    Edit("a stage added", nothing, {"bought"}, {"has_bought": True}),
    Edit("a stage left out", nothing, set(), {"has_bought": False}),
    Edit(
        "a table corrected, whose file has its name, size and time",
        rewrite(lambda files: files.files["products"], "p2,7", "p2,9"),
        {"products", "enriched", "by_product"},
        {"prices": {"p0": 3, "p1": 5, "p2": 9}},
    ),
    Edit(
        "a parameter",
        nothing,
        set(),
        {"currency": "USD"},
        computed={"products", "enriched", "by_product"},
        because="all parameters count",
    ),
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_what_is_declared_otherwise_counts_from_the_next_day_on_and_no_more_is_computed(airflow):
    before, found = Counter(), {}
    first = Edit("the first day", declare(spent={"ttl": "30 days"}), {"products", "enriched", "by_product"})
    edits = (first, *DECLARED)
    for day, each in enumerate(edits, 1):
        there = attempts(airflow)
        each.deploy(airflow)
        airflow.files.has_orders(day, orders_of(1))
        airflow.dag_run(day)
        to_the_end(airflow)
        found[each.name] = set(computed(airflow, there)), wrong(airflow, day, before)
        before.update(airflow.files.shop.spent(airflow.files.orders[day]))
    assert found == {each.name: (each.expected | EACH_DAY, {}) for each in edits}
