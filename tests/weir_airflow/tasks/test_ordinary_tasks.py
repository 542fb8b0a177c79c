"""A dataflow among ordinary tasks of Airflow, with a query in a SQL file and secrets, in Airflow's own `dag.test()`."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from datetime import UTC, date, datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as parquet
import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.ledger.ledger import Ledger
from weir.store.catalogue import published
from weir.store.store import Store

pytestmark = pytest.mark.spark

DAG = """
import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow import dataflow_group, stage_task

numbers = source("numbers", "city_stages:numbers", resolve="city_stages:resolve", parallelism=2)
sums = Stage("sums", sql="sql/sums.sql", inputs=[blocking(numbers, by="k")], parallelism=2)
flow = Dataflow("city", [numbers, sums, sink(sums, "report")], parameters={"least": 2})

daily = CronDataIntervalTimetable("@daily", timezone="Asia/Kolkata")
with DAG("town", schedule=daily, start_date=datetime(2013, 1, 1, tzinfo=UTC)):
    @task
    def told(what):
        with Path(os.environ["WEIR_TEST_TOLD"]).open("a") as file:
            file.write(what + "\\n")

    group = dataflow_group(flow, retries=0)
    told.override(task_id="before")("before") >> group >> told.override(task_id="after")("after")
    stage_task(group, "numbers") >> told.override(task_id="between")("between") >> stage_task(group, sums)
"""
STAGES = """
import json
import os
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote

def noted(what):
    with Path(os.environ["WEIR_TEST_TOLD"]).open("a") as file:
        file.write(what + "\\n")

def resolve(ctx):
    assert ctx.connection("bank").password == ctx.variable("bank_token")[::-1]
    assert [each.isoformat()[10:] for each in ctx.local_interval] == ["T00:00:00+05:30"] * 2
    return list(range(ctx.parallelism))

def numbers(ctx, split):
    bank, token = ctx.connection("bank"), ctx.variable("bank_token")
    noted("numbers")
    if f"{ctx.local_interval[0]:%Y-%m-%d}" == "2013-01-01":
        password, basic = bank.password, b64encode(f"{bank.login}:{bank.password}".encode()).decode()
        forms = [quote(password, safe=""), json.dumps(json.dumps(password)), repr(password), basic, basic.rstrip("=")]
        print("forms", *forms)
        raise LookupError(f"{bank.login} may not: {password} {token} {bank.extra['api_key']} {forms}")
    return ctx.spark.range(split, 10, 2).selectExpr("id AS k", f"length('{token}') AS n")
"""
QUERY = """SELECT k, n, {{ ctx.epoch }} AS epoch, {{ ctx.local_interval[0].date }} AS day
FROM numbers WHERE k < {{ ctx.parameters.least }}"""
# None is the beginning of a secret of another test: the masker of a process knows all that it has seen.
SECRETS = ('orchard#town"!%7', '7%!"nwot#drahcro', "8-town-key")
BASIC = b64encode(b"me:" + SECRETS[0].encode()).decode()
FORMS = (quote(SECRETS[0], safe=""), json.dumps(SECRETS[0])[1:-1], BASIC.rstrip("="), BASIC[4:-4])


@pytest.fixture(scope="module")
def world(airflow_home, server, tmp_path_factory):
    """Store, ledger, connections, stages and a DAG file with its SQL file."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "city_stages.py").write_text(STAGES)
    password, token, key = SECRETS
    bank = {"conn_type": "http", "login": "me", "password": password, "extra": {"api_key": key}}
    environ = {
        "WEIR_STORE": str(folder / "store"),
        "WEIR_LEDGER": f"sqlite:///{folder}/ledger.db",
        "WEIR_TEST_TOLD": str(folder / "told"),
        "AIRFLOW_CONN_WEIR_API": json.dumps({"conn_type": "weir-db"}),
        "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(server.connection),
        "AIRFLOW_CONN_BANK": json.dumps(bank),
        "AIRFLOW_VAR_BANK_TOKEN": token,
    }
    file, sql = airflow_home / "dags" / "town.py", airflow_home / "dags" / "sql"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(folder))
        file.write_text(DAG)
        sql.mkdir()
        (sql / "sums.sql").write_text(QUERY)
        yield folder
        file.unlink()
        (sql / "sums.sql").unlink()
        sql.rmdir()
        sys.modules.pop("city_stages", None)


@pytest.fixture(scope="module")
def dag(world):
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(f"{os.environ['AIRFLOW__CORE__DAGS_FOLDER']}/town.py", bundle_name="dags-folder")
    assert not bag.import_errors
    return bag.dags["town"]


def states_of(dag_run):
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        tis = session.query(TaskInstance).filter_by(dag_id="town", run_id=dag_run.run_id).all()
        return {(ti.task_id, ti.map_index): ti.state for ti in tis}


def test_ordinary_tasks_run_before_between_and_after_regions(world, dag):
    run = dag.test(logical_date=datetime(2013, 1, 1, tzinfo=UTC))
    assert set(states_of(run).values()) == {"success"}
    told = (world / "told").read_text().split()
    assert told == ["before", "numbers", "numbers", "between", "after"]
    store, epoch = Store.open(str(world / "store")), "20121230T183000Z"  # of a run by hand: the interval that has ended
    partitions = published(store, "city", "report", epoch).partitions
    files = [world / "store" / each.folder / name for each in partitions for name in each.files]
    rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
    assert sorted(row["k"] for row in rows) == [0, 1]
    assert {(row["n"], row["epoch"], row["day"]) for row in rows} == {(len(SECRETS[1]), epoch, date(2012, 12, 31))}


def test_a_stage_without_a_task_is_named(dag):
    from weir_airflow import stage_task

    with pytest.raises(
        Misconfigured, check=of_kind("dag.stage_unknown", hint="did you mean 'sums'?", name="town", wanted="summs")
    ):
        stage_task(dag, "summs")


def test_no_secret_is_recorded_or_logged(world, dag, airflow_home, capfd):
    """The first day has used them; on the second day, the function fails with all of them in its message."""
    from airflow.sdk._shared.secrets_masker import redact

    from weir.ledger.database.tables import AttemptRow

    run = dag.test(logical_date=datetime(2013, 1, 2, tzinfo=UTC))
    assert states_of(run)["city.numbers", 0] == "failed"
    logged = redact("".join(capfd.readouterr()))  # as Airflow writes the log of a task
    assert "me may not: *** *** ***" in logged
    with Ledger.open(os.environ["WEIR_LEDGER"]).transaction() as session:
        recorded = [row.error or "" for row in session.query(AttemptRow)]
    assert any("me may not: *** *** ***" in error for error in recorded)
    files = [path for place in (world, airflow_home) for path in place.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes().decode("latin-1") for path in files}
    assert {Path(path).name for path in texts} >= {"ledger.db", "airflow.db", "job.json", "manifest.json"}
    texts["log"] = logged
    assert [(path, each) for path, text in texts.items() for each in (*SECRETS, *FORMS) if each in text] == []
