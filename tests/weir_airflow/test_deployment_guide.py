"""What guides to deployment, storage and migration have people type is right, as far as can be told without that."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from airflow.sdk import Connection

from weir.environment import API_VARIABLE
from weir.settings import read_settings
from weir_airflow.connections.connections import ledger_url, store_connection
from weir_airflow.dag import dataflow_dag
from weir_airflow.engines.engines import engine_address

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / "docs" / page).read_text() for page in ("deployment.md", "storage.md", "changing.md"))
BLOCKS = re.findall(r"(?s)```sh\n(.*?)```", TEXT)
README = (ROOT / "README.md").read_text()


def connections():
    """Each connection that an example exports, with its id."""
    for block in BLOCKS:
        for name, value in re.findall(r"AIRFLOW_CONN_(\w+)='(.*?)'(?=\n|$)", block, re.DOTALL):
            yield Connection.from_json(value, conn_id=name.lower())


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_each_block_of_shell_is_shell(page):
    for block in re.findall(r"(?s)```sh\n(.*?)```", page.read_text()):
        subprocess.run(["bash", "-n", "-c", block], check=True)


def test_each_connection_is_one_that_weir_accepts():
    found = list(connections())
    for connection in found:
        if connection.conn_id == "weir_store":
            assert store_connection(connection).url
        elif connection.conn_id == "weir_ledger":
            assert ledger_url(connection).startswith("postgresql+psycopg2://weir:")
        elif connection.conn_type == "http":
            assert (connection.conn_id, connection.login) == (
                read_settings({"WEIR_STORE": "/", "WEIR_LEDGER": "/"}).api_conn_id,
                "weir",
            )
        else:
            assert engine_address(connection) in {"sc://master:15002", "spark-submit:spark://master:7077"}
    assert {each.conn_id for each in found} == {
        *("weir_api", "weir_ledger", "weir_store", "spark_connect_weir", "spark_default")
    }


def test_airflow_knows_each_setting():
    import airflow

    sections = yaml.safe_load((Path(airflow.__file__).parent / "config_templates" / "config.yml").read_text())
    found = set(re.findall(r"AIRFLOW__([A-Z]+(?:_[A-Z]+)*)__([A-Z_]+)", TEXT + README))
    assert len(found) > 5
    assert [
        (section, option) for section, option in found if option.lower() not in sections[section.lower()]["options"]
    ] == []


def test_weir_reads_each_variable():
    named = set(re.findall(r"\bWEIR_[A-Z_]+", TEXT + README))
    given = {"WEIR_STORE": "s3://b/w", "WEIR_LEDGER": "sqlite:///l", "WEIR_STORE_OPTIONS": '{"key": "k"}'}
    given |= {"WEIR_SPARK_CONN_ID": "other", "WEIR_SMALL_RESULT": "1 MiB"}
    given |= {"WEIR_KEEP_PUBLISHED": "1 hour", "WEIR_EXPIRE_RUNS": "2 hours", "WEIR_RETAINED_CHECKPOINTS": "1"}
    assert named == {*given, API_VARIABLE}, "API_VARIABLE is read by commands only"
    found = read_settings(given)
    assert (found.store, found.ledger, found.store_options, found.spark_conn_id, found.small_result) == (
        "s3://b/w",
        "sqlite:///l",
        {"key": "k"},
        "other",
        2**20,
    )
    kept = found.retention
    assert (kept.keep_published, kept.expire_runs, kept.retained_checkpoints) == (
        timedelta(hours=1),
        timedelta(hours=2),
        1,
    )


def test_the_command_line_has_each_command():
    typed = {tuple(words) for words in re.findall(r"(?m)(?:^|[`.] ?|/)weir ([a-z]+)(?: ([a-z]+))?", TEXT + README)}
    usage = subprocess.run(
        [sys.executable, "-m", "weir_dev.main", "--help"], capture_output=True, text=True, check=True
    )
    commands = {verb for verb, _ in typed} - {"is", "on"}
    assert {"doctor", "up", "down", "chaos"} <= commands
    assert [verb for verb in commands if not re.search(rf"\b{verb}\b", usage.stdout)] == []


def test_a_dag_and_a_stage_name_their_connection_as_the_table_says():
    from inspect import signature

    from weir.dataflow import TaskSettings

    assert 'dataflow_dag(..., spark_conn_id="spark_default")' in TEXT
    assert "spark_conn_id" in signature(dataflow_dag).parameters
    assert "task=TaskSettings(spark_conn_id=" in TEXT
    assert TaskSettings(spark_conn_id="spark_default").spark_conn_id == "spark_default"


def test_the_version_of_hadoop_is_that_of_pyspark():
    from weir_dev.stack.spark_server import spark_home

    (jar,) = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    assert set(re.findall(r"hadoop-aws:([\d.]+)", TEXT)) == {jar.stem.rpartition("-")[2]}


def test_every_file_that_is_named_is_there():
    links = [(ROOT / "docs", link) for link in re.findall(r"\]\(([\w./-]+)\)", TEXT)]
    links += [(ROOT, link) for link in re.findall(r"\]\(([\w./-]+)\)", README)]
    assert links
    assert [link for folder, link in links if not (folder / link).exists()] == []


def test_settings_of_the_image_step_name_what_compose_asks_for():
    made = re.search(r"for name in (.*?); do", TEXT)[1].split()
    made += re.findall(r'echo "(\w+)=\$\(openssl rand -base64', TEXT)
    assert set(made) == set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))


def test_the_secrets_of_compose_are_made_as_they_must_be(tmp_path):
    (block,) = (each for each in BLOCKS if "docker compose" in each)
    steps = block[: block.index("docker compose")]
    subprocess.run(["sh", "-c", steps], cwd=tmp_path, check=True)
    made = dict(shlex.split(line)[0].split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    from cryptography.fernet import Fernet

    Fernet(made["FERNET_KEY"])
    assert len(made["JWT_SECRET"]) >= 64  # bytes, for the algorithm that Airflow signs with
    assert all(json.loads(json.dumps(value)).isalnum() for name, value in made.items() if name != "FERNET_KEY")


def test_the_migrated_dag_has_the_tasks_that_its_guide_names():
    functions, declaration, _ = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs/migrating.md").read_text())
    modules = [{}, {}]
    for text, module in zip((functions, declaration), modules, strict=True):
        exec(compile(text, "docs/migrating.md", "exec"), module)  # noqa: S102  it is ours
    dag = modules[1]["dag"]
    named = {stage.function.removeprefix("trips_jobs:") for stage in (modules[1]["clean"], modules[1]["by_zone"])}
    assert named <= set(modules[0])
    after = {task.task_id: task.downstream_task_ids for task in dag.tasks}
    assert after["fetch"] == {"trips.trips-clean"}
    assert "count" in after["trips.trips-clean"]
    assert after["count"] == {"trips.by_zone-zones"}
    assert after["trips.weir_close"] == {"mail"}
