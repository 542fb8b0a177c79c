"""Regions whose results are in a real HDFS: Weir reaches it over HTTP, and Spark by its own client.

Each commit has a region on YARN whose store is in HDFS (`test_yarn.py`): a second HDFS takes a quarter of a minute.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from pyspark.errors import PySparkException
from tests.builders.jobs import Jobs
from tests.messages.kinds import of_kind
from tests.servers.hadoop import BLOCK_BYTES

from weir.errors import StoreFull
from weir.store.probe import verify_files
from weir.store.store import Store
from weir.topology.partitions import Layout
from weir_spark.region import region
from weir_spark.transport.failures import disk_full

pytestmark = [pytest.mark.spark, pytest.mark.soak]

BY_KEY = Layout(("key",), 128)
NUMBERS = """
def numbers(ctx):
    return ctx.spark.sql("select id key, string(id) text from range(100)")

def even(ctx, numbers):
    return numbers.where("key % 2 = 0")
"""


@pytest.fixture
def store(hdfs_server, hdfs_url):
    opened = Store.open(hdfs_url, hdfs_server.storage_options)
    opened.initialise()
    return opened


def test_a_region_writes_its_results_there_and_the_next_one_reads_them(spark, store, pipeline) -> None:
    jobs, module = Jobs(store), pipeline(NUMBERS)

    def run(*stages):
        return region.run(jobs.region(*stages), spark, store, lambda _line: None)

    written = run(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", BY_KEY), is_source=True))
    [numbers] = written.outputs
    assert numbers.digest.rows == 100
    assert verify_files(store, store.initialise(), {numbers.folder: numbers.files}) == {}
    assert [name for name, _ in store.list(numbers.folder)] == sorted(file.name for file in numbers.files)
    assert store.folders(numbers.folder) == []

    read = jobs.read("numbers", numbers, key_groups=(0, 127))
    [even] = run(jobs.stage("even", f"{module}:even", jobs.output("even"), inputs=(read,))).outputs
    assert even.digest.rows == 50


def test_a_quota_that_spark_meets_is_a_full_store(spark, store, hdfs_server, pipeline) -> None:
    jobs, module = Jobs(store), pipeline(NUMBERS)
    job = jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", BY_KEY), is_source=True))
    folder = urlsplit(store.url).path
    hdfs_server.ask("PUT", "SETQUOTA", folder, namespacequota=2**63 - 1, storagespacequota=BLOCK_BYTES // 2)
    with pytest.raises(PySparkException) as failed:
        region.run(job, spark, store, lambda _line: None)
    full = disk_full(failed.value, "numbers")
    assert isinstance(full, StoreFull)
    assert of_kind("transport.store_disk_full", message="DSQuotaExceededException")(full)
