"""Regions that the real spark-submit runs on this machine, with their results in an S3 or a real HDFS."""

from __future__ import annotations

import sys
import uuid

import pytest
from tests.builders.jobs import Jobs
from tests.servers.java import JarsMissing
from tests.servers.s3 import running_s3
from tests.weir_spark import s3a

from weir.formats.codec import from_json, to_json
from weir.formats.region_job import RegionReport
from weir.store.probe import verify_files
from weir.store.store import Store
from weir.store.walk import files_below
from weir.topology.partitions import Layout
from weir_airflow.engines.engines import engine_for

pytestmark = [pytest.mark.spark, pytest.mark.soak]

BY_KEY = Layout(("key",), 128)
PIPELINE = """
from pathlib import Path

def numbers(ctx):
    return ctx.spark.sql("select id key, string(id) text from range(100)")

def even(ctx, numbers):
    commands = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(process.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            pass
    Path(ctx.parameters["seen"]).write_text("\\n".join(commands))
    return numbers.where("key % 2 = 0")
"""


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as started:
        started.make_bucket(s3a.BUCKET)
        yield started


@pytest.fixture
def on_s3(s3_server, monkeypatch):
    """URL and options of a store in an S3, which drivers of Spark reach by the environment, and Spark's settings."""
    for name, value in s3a.variables(s3_server.url).items():
        monkeypatch.setenv(name, value)
    try:
        settings = s3a.settings()
    except JarsMissing as missing:
        pytest.skip(str(missing))
    return f"s3://{s3a.BUCKET}/{uuid.uuid4()}", s3_server.storage_options, settings


@pytest.fixture
def on_hdfs(hdfs_server, hdfs_url):
    """The same of a store in HDFS, which needs no settings."""
    return hdfs_url, hdfs_server.storage_options, {}


@pytest.fixture(params=["on_s3", "on_hdfs"])
def place(request, tmp_path, monkeypatch):
    """Store and options; spark-submit has its settings, and records events, among them plans, on this disk."""
    url, options, settings = request.getfixturevalue(request.param)
    events, conf = tmp_path / "events", tmp_path / "conf"
    events.mkdir()
    conf.mkdir()
    settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    settings["spark.eventLog.compress"] = "false"  # to look into it
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    store = Store.open(url, options)
    store.initialise()
    return store, options


@pytest.fixture
def jobs(place, tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "on_stores_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(folder))
    yield Jobs(place[0])
    sys.modules.pop("on_stores_pipeline", None)


@pytest.fixture
def run(place, jobs, tmp_path):
    """Submit a region of one stage, and return the report of its output."""
    from airflow.sdk import Connection

    store, options = place
    connection = Connection(conn_id="spark_default", conn_type="spark", host="local[2]")

    def submit(*stage, **more):
        job = jobs.region(jobs.stage(*stage, **more), parameters={"seen": str(tmp_path / "commands")})
        store.create(f"{job.folder}/job.json", to_json(job))
        engine_for(connection, store, options).run(job, "", print)
        [output] = from_json(RegionReport, store.read(job.report)).outputs
        return output

    return submit


def test_a_region_writes_its_results_there_and_the_next_one_reads_them_and_no_secret_is_told(
    run, place, jobs, tmp_path, capfd, caplog
):
    store, options = place
    with caplog.at_level("INFO"):
        numbers = run("numbers", "on_stores_pipeline:numbers", jobs.output("numbers", BY_KEY), is_source=True)
        assert numbers.digest.rows == 100
        assert verify_files(store, store.initialise(), {numbers.folder: numbers.files}) == {}
        read = jobs.read("numbers", numbers, key_groups=(0, 127))
        even = run("even", "on_stores_pipeline:even", jobs.output("even"), inputs=(read,))
        assert even.digest.rows == 50
    told = {
        "commands": (tmp_path / "commands").read_text(),
        "events": "".join(each.read_text() for each in (tmp_path / "events").rglob("*") if each.is_file()),
        "log": f"{caplog.text}{''.join(capfd.readouterr())}",
        "store": "".join(store.read(each.path).decode(errors="replace") for each in files_below(store, ["flow"])),
    }
    assert [name for name, text in told.items() if not text] == []
    assert store.spark_url("") in told["events"]
    secrets = {s3a.SECRET, str(options.get("secret", s3a.SECRET))}
    assert [(name, each) for name, text in told.items() for each in secrets if each in text] == []
