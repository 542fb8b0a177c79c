"""What an application of YARN costs a small region, in both deploy modes, against spark-submit on this machine.

    pytest tests/benchmarks/test_yarn.py --benchmark-only -s

The ResourceManager, a NodeManager and the HDFS with the results are on the same machine. Ways take turns, so that no
one of them is always the first.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
from tests.benchmarks.test_sinks import seconds
from tests.builders.jobs import Jobs
from tests.servers.java import JarsMissing
from tests.servers.yarn.cluster import running_yarn
from tests.servers.yarn.environment import packed_environment

from weir.formats.codec import to_json
from weir.store.store import Store

ROUNDS = 3
PIPELINE = """
def numbers(ctx):
    return ctx.spark.range(1000)
"""
CLUSTER = {"host": "yarn", "extra": json.dumps({"deploy-mode": "cluster"})}
WAYS = {
    "local[2]": ({"host": "local[2]"}, False, False),
    "YARN, client mode": ({"host": "yarn"}, False, False),
    "YARN, cluster mode": (CLUSTER, True, False),
    "YARN, cluster mode, uploading": (CLUSTER, True, True),
}
"""Connections; whether containers get a packed environment of Python; whether each submission uploads it, and Spark."""


@pytest.mark.timeout(3600)
def test_a_small_region(hdfs_server, hdfs_url, tmp_path, monkeypatch, benchmark):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "measured_pipeline.py").write_text(PIPELINE)
    store = Store.open(hdfs_url, hdfs_server.storage_options)
    store.initialise()
    took = {way: [] for way in WAYS}
    try:
        with running_yarn(hdfs_server, tmp_path / "yarn", nodes=1) as yarn:
            for number in range(ROUNDS):
                ways = list(WAYS)
                for way in ways[number:] + ways[:number]:
                    connection, packed, uploading = WAYS[way]
                    for name, value in yarn.environment(packed=packed).items():
                        monkeypatch.setenv(name, value)
                    if uploading:
                        monkeypatch.setenv("SPARK_CONF_DIR", uploads(yarn, tmp_path / "uploading"))
                    took[way].append(region(connection, store, hdfs_server.storage_options))
                    print(f"{way}: {took[way][-1]:.1f} s", flush=True)
    except JarsMissing as missing:
        pytest.skip(str(missing))
    finally:
        sys.modules.pop("measured_pipeline", None)
    shortest = statistics.median(took["local[2]"])
    for way, found in took.items():
        middle = statistics.median(found)
        print(f"| {way} | {middle:.1f} ({min(found):.1f}-{max(found):.1f}) | {middle / shortest:.2f} |")
    benchmark.pedantic(lambda: None, rounds=1)


def uploads(yarn, conf):
    """Return settings with which each submission copies Spark's jars and the environment of Python into the cluster."""
    if not conf.exists():
        conf.mkdir()
        usual = Path(yarn.environment(packed=True)["SPARK_CONF_DIR"], "spark-defaults.conf").read_text()
        lines = [line for line in usual.splitlines() if not line.startswith(("spark.yarn.jars", "spark.yarn.dist."))]
        lines.append(f"spark.yarn.dist.archives file://{packed_environment()}#environment")
        (conf / "spark-defaults.conf").write_text("\n".join(lines))
    return str(conf)


def region(connection, store, options):
    """Have a region computed, and return the seconds that it took."""
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    jobs = Jobs(store)
    job = jobs.region(jobs.stage("numbers", "measured_pipeline:numbers", jobs.output("numbers"), is_source=True))
    store.create(f"{job.folder}/job.json", to_json(job))
    engine = engine_for(Connection(conn_id="spark_default", conn_type="spark", **connection), store, options)
    return seconds(lambda: engine.run(job, "", lambda _: None))
