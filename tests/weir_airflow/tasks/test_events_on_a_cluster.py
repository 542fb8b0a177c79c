"""Events of a topic of Kafka become records of other topics and rows of a table: drivers on YARN, the store in HDFS.

Three days with a state, in Airflow's own `dag.test()`. What is there afterwards is read by clients that are not Weir's,
and compared with plain Python.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from tests.weir_airflow.deployed import deployed

pytestmark = [pytest.mark.spark, pytest.mark.soak]

FLOW = """
import os
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, delta, json, kafka, kafka_source, keyed_state, pipelined, sink
from weir_airflow import dataflow_dag

events = kafka_source("events", "broker", topic="events", value=json("account BIGINT, amount BIGINT"), parallelism=2)
payments = Stage("payments", "ledger_stages:payments", [pipelined(events)], parallelism=2)
balances = Stage("balances", "ledger_stages:balances", [blocking(payments, by="account")], parallelism=2,
                 state=keyed_state("known", key="account", schema="account BIGINT, balance BIGINT, payments BIGINT"))
totals = Stage("totals", "ledger_stages:totals", [blocking(balances)], parallelism=1)
flow = Dataflow("accounts", [
    events, payments, balances, totals,
    sink(balances, "changes", to=kafka("broker", topic="changes", key="account")),
    sink(balances, "latest", to=kafka("broker", topic="latest", key="account", mode="upsert")),
    sink(totals, "branches", to=delta(os.environ["WEIR_TEST_FOLDER"] + "/branches", create="if_missing")),
], parameters={"folder": os.environ["WEIR_TEST_FOLDER"]})
dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""

STAGES = """
import time
from pathlib import Path
from pyspark.sql import functions as F

def at_a_gate(ctx, stage):
    asked, there = (Path(ctx.parameters["folder"], f"{what} {stage}") for what in ("ask", "at"))
    if ctx.subtask == 0 and asked.exists():
        there.touch()
        while asked.exists():
            time.sleep(0.1)

def payments(ctx, events):
    at_a_gate(ctx, "payments")
    return events.select("value.account", "value.amount").where("amount <> 0")

def balances(ctx, payments, known):
    at_a_gate(ctx, "balances")
    new = payments.groupBy("account").agg(F.sum("amount").alias("amount"), F.count("*").alias("number"))
    rows = new.join(known.read(), "account", "left").select(
        "account", (F.coalesce("balance", F.lit(0)) + F.col("amount")).alias("balance"),
        (F.coalesce("payments", F.lit(0)) + F.col("number")).alias("payments"))
    known.upsert(rows)
    return rows

def totals(ctx, balances):
    at_a_gate(ctx, "totals")
    return balances.groupBy((F.col("account") % 5).alias("branch")).agg(
        F.sum("balance").alias("balance"), F.count("*").alias("accounts"))
"""


WITH_PATHS = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from airflow.__main__ import main
main()
"""
"""Runs Airflow with the paths of this process: PYTHONPATH would be handed on to containers."""

ACCOUNTS = 200
TOPICS = {"events": (3, {}), "changes": (2, {}), "latest": (2, {"cleanup.policy": "compact"})}
DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster "


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    from tests.servers.java import JarsMissing
    from tests.servers.kafka import running_kafka

    try:
        with running_kafka(tmp_path_factory.mktemp("kafka") / "of events") as running:
            admin = AdminClient({"bootstrap.servers": running.address})
            topics = [NewTopic(name, number, 1, config=config) for name, (number, config) in TOPICS.items()]
            for made in admin.create_topics(topics).values():
                made.result(60)
            yield running
    except JarsMissing as missing:
        pytest.skip(str(missing))


class Accounts:
    """The DAG, and the folder of its tests."""

    ID = "accounts"

    def __init__(self, folder):
        self.folder = folder

    def run(self, day):
        """Run a day, and return the state of its run and the tries of its task instances."""
        from airflow.dag_processing.dagbag import DagBag
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session

        bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
        dag_run = bag.dags[self.ID].test(logical_date=datetime(2013, 1, day, tzinfo=UTC))
        with create_session() as session:
            tis = session.query(TaskInstance).filter_by(dag_id=self.ID, run_id=dag_run.run_id)
            return dag_run.state, {ti.try_number for ti in tis}

    def begin(self, day):
        """Run a day in a process of its own, and return this when Airflow knows the run."""
        known = len(self.states())
        command = [sys.executable, "-c", WITH_PATHS, json.dumps(sys.path), "dags", "test", self.ID]
        process = subprocess.Popen([*command, f"2013-01-{day:02}"])
        deadline = time.monotonic() + 300
        while len(self.states()) == known:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return process

    def states(self):
        """Return the states of its runs, in the order of their days."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            found = session.query(DagRun.state).filter_by(dag_id=self.ID).order_by(DagRun.logical_date)
            return [str(state) for (state,) in found]

    def failures(self):
        """Return the classes of all failures of attempts."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            return {failure for (failure,) in ledger.execute("select failure from attempt where failure is not null")}

    def is_closing(self):
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session

        with create_session() as session:
            asked = session.query(TaskInstance).filter_by(dag_id=self.ID, task_id="weir_close", state="running")
            return asked.count() > 0


@pytest.fixture(scope="module")
def accounts(airflow_home, cluster, broker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    environ = cluster.environment(packed=True) | {
        "WEIR_STORE": f"{cluster.hdfs.url}/accounts",
        "WEIR_STORE_OPTIONS": json.dumps(cluster.hdfs.storage_options),
        "WEIR_SPARK_CONN_ID": "spark_yarn",
        "WEIR_TEST_FOLDER": str(folder),
        "AIRFLOW_CONN_SPARK_YARN": json.dumps(
            {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
        ),
        "AIRFLOW_CONN_BROKER": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": broker.address}}),
    }
    with deployed(airflow_home, folder, None, "ledger_stages", STAGES, FLOW, Accounts.ID, **environ):
        yield Accounts(folder)


def epoch_of(day):
    """A run at midnight has the day before."""
    return f"{datetime(2013, 1, day, tzinfo=UTC) - timedelta(days=1):%Y%m%dT%H%M%SZ}"


class Books:
    """What came in, and what it comes to, in plain Python."""

    def __init__(self, address):
        self.producer = Producer({"bootstrap.servers": address, "transactional.id": "of the test"})
        self.producer.init_transactions(60)
        self.random = random.Random(35)
        self.events = defaultdict(list)

    def arrive(self, day, number=1000):
        """Have events arrive which a day's epoch is the first to see; an aborted transaction's count nothing."""
        self._send([(account, 999) for account in range(50)])
        self.producer.abort_transaction(60)
        events = [(self.random.randrange(ACCOUNTS), self.random.randrange(-100, 100)) for _ in range(number)]
        self._send(events)
        self.producer.commit_transaction(60)
        self.events[epoch_of(day)] += events

    def told(self):
        """Return the records of both topics, those of `latest` by account, and the rows of the table."""
        latest, changes, rows = {}, Counter(), {}
        for epoch, events in sorted(self.events.items()):
            changed = set()
            for account, amount in events:
                balance, payments = latest.get(account, (0, 0))
                if amount != 0:
                    latest[account] = balance + amount, payments + 1
                    changed.add(account)
            changes.update((epoch, account, *latest[account]) for account in changed)
            for branch in range(5):
                balances = [latest[account][0] for account in changed if account % 5 == branch]
                rows[epoch, branch] = sum(balances), len(balances)
        return changes, latest, rows

    def _send(self, events):
        self.producer.begin_transaction()
        for account, amount in events:
            value = json.dumps({"account": account, "amount": amount})
            self.producer.produce("events", value, str(account))


def records_of(address, topic):
    """Read a whole topic as a consumer that knows nothing of Weir."""
    settings = {"bootstrap.servers": address, "group.id": "of the test", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.subscribe([topic])
    found, ended = [], set()
    while len(ended) < TOPICS[topic][0]:
        record = consumer.poll(60)
        assert record is not None
        if record.error() is None:
            found.append(record)
        else:
            ended.add(record.partition())
    consumer.close()
    return found


def epoch_in(record):
    return dict(record.headers())["weir.epoch"].decode()


def row_of(record):
    row = json.loads(record.value())
    assert json.loads(record.key()) == {"account": row["account"]}
    return row["account"], row["balance"], row["payments"]


def assert_equal(books, accounts, address):
    """Compare both topics and the table with the books."""
    changes, latest, rows = books.told()
    assert Counter((epoch_in(each), *row_of(each)) for each in records_of(address, "changes")) == changes
    assert {account: tuple(rest) for account, *rest in map(row_of, records_of(address, "latest"))} == latest
    found = DeltaTable(accounts.folder / "branches").to_pyarrow_table().to_pylist()
    assert sorted((row["_epoch"], row["branch"], row["balance"], row["accounts"]) for row in found) == sorted(
        (*key, *values) for key, values in rows.items()
    )


class Mishaps:
    """What is to happen to the cluster, and when: done by one thread, which lives as long as the servers it starts."""

    def __init__(self, accounts, cluster, broker):
        self.accounts, self.cluster, self.broker = accounts, cluster, broker
        self.planned, self.errors = [], []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def at(self, stage, act):
        """Do it while the first subtask of a stage is computed."""
        asked, there = (self.accounts.folder / f"{what} {stage}" for what in ("ask", "at"))
        there.unlink(missing_ok=True)
        asked.touch()
        self.planned.append((there.exists, act, asked.unlink))

    def when(self, condition, act):
        self.planned.append((condition, act, lambda: None))

    def end(self):
        self._is_over.set()
        self._thread.join()

    def _watch(self):
        while not self._is_over.wait(0.1):
            for mishap in list(self.planned):
                condition, act, then = mishap
                try:
                    if not condition():
                        continue
                    act()
                except Exception as error:  # noqa: BLE001
                    self.errors.append(error)
                then()
                self.planned.remove(mishap)

    def a_driver_runs(self):
        return any(node.containers(DRIVER) for node in self.cluster.nodes)

    def restart_the_broker(self):
        self.broker.restart()

    def restart_the_namenode(self):
        self.cluster.hdfs.namenode.kill()
        self.cluster.hdfs.namenode.start()

    def kill_a_datanode(self):
        self.cluster.hdfs.datanodes[0].kill()

    def start_the_datanode(self):
        self.cluster.hdfs.datanodes[0].start()

    def kill_the_driver(self):
        for node in self.cluster.nodes:
            for process in node.containers(DRIVER):
                process.kill()

    def restart_the_node_manager(self):
        node = next(node for node in self.cluster.nodes if node.containers(DRIVER))
        node.kill()
        node.start()


@pytest.fixture(scope="module")
def mishaps(accounts, cluster, broker):
    planned = Mishaps(accounts, cluster, broker)
    yield planned
    planned.end()


@pytest.fixture(scope="module")
def books(broker):
    return Books(broker.address)


@pytest.mark.timeout(3600)
def test_each_epoch_is_published_once_and_right_whatever_is_killed(accounts, broker, books, mishaps):
    books.arrive(2)
    assert accounts.run(2) == ("success", {1})
    assert_equal(books, accounts, broker.address)

    books.arrive(3)
    mishaps.when(mishaps.a_driver_runs, mishaps.restart_the_broker)
    mishaps.at("payments", lambda: books.arrive(4))
    mishaps.at("balances", mishaps.kill_the_driver)
    mishaps.at("totals", mishaps.kill_a_datanode)
    mishaps.when(accounts.is_closing, mishaps.restart_the_broker)
    assert accounts.run(3)[0] == "success"
    assert (mishaps.planned, mishaps.errors) == ([], [])

    books.arrive(4)
    mishaps.at("payments", mishaps.restart_the_node_manager)
    mishaps.at("balances", mishaps.restart_the_namenode)
    mishaps.at("totals", mishaps.start_the_datanode)
    mishaps.when(accounts.is_closing, mishaps.restart_the_namenode)
    assert accounts.run(4)[0] == "success"
    assert (mishaps.planned, mishaps.errors) == ([], [])
    assert accounts.failures() <= {"engine", "environment"}
    assert_equal(books, accounts, broker.address)


@pytest.mark.timeout(3600)
def test_two_epochs_that_begin_at_once_read_each_event_once(accounts, broker, books):
    books.arrive(5)
    both = [accounts.begin(5), accounts.begin(6)]
    assert [each.wait() for each in both] == [0, 0]
    assert accounts.states()[-2:] == ["success", "success"]
    assert_equal(books, accounts, broker.address)
