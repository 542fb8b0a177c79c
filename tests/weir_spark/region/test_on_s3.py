"""Regions whose results are in an S3: Weir's requests are its own, Spark's those of the S3A connector."""

from __future__ import annotations

import threading
import time
import tracemalloc
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import psutil
import pytest
from pyspark.errors import PySparkException
from tests.builders.jobs import Jobs
from tests.messages.kinds import of_kind
from tests.servers.faulty_http import INTERNAL_ERROR, SLOW_DOWN
from tests.servers.s3 import client_of
from tests.weir_spark.s3a import BUCKET, SECRET

from weir.doctor.examination import Status, examine
from weir.store.errors import AlreadyExists, NotFound
from weir.store.probe import verify_files
from weir.store.store import Store
from weir.topology.partitions import Layout
from weir_spark.region import region
from weir_spark.session import active
from weir_spark.transport.connect import translate
from weir_spark.transport.doctor import ConnectExam

pytestmark = pytest.mark.spark

BY_KEY = Layout(("key",), 128)
NUMBERS = """
def numbers(ctx):
    return ctx.spark.sql("select id key, string(id) text from range(100)")

def even(ctx, numbers):
    return numbers.where("key % 2 = 0")
"""
EXPIRED = (400, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")


@pytest.fixture
def spark(s3a_session):
    with active(s3a_session):
        yield s3a_session


@pytest.fixture
def store(s3_server):
    opened = Store.open(f"s3a://{BUCKET}/{uuid.uuid4().hex}/a folder=%20ü+&", s3_server.storage_options)
    opened.initialise()
    return opened


def run(job, spark, store):
    return region.run(job, spark, store, lambda _line: None)


def job_of(store, pipeline):
    jobs = Jobs(store)
    module = pipeline(NUMBERS)
    return jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", BY_KEY), is_source=True))


def test_a_region_writes_its_results_there_and_the_next_one_reads_them(spark, store, pipeline, proxy) -> None:
    jobs, module = Jobs(store), pipeline(NUMBERS)
    stage = jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", BY_KEY), is_source=True)
    [numbers] = run(jobs.region(stage), spark, store).outputs
    assert numbers.digest.rows == 100
    assert verify_files(store, store.initialise(), {numbers.folder: numbers.files}) == {}
    assert [name for name, _ in store.list(numbers.folder)] == sorted(file.name for file in numbers.files)
    assert proxy.count("PUT"), "Spark's requests pass the proxy"

    read = jobs.read("numbers", numbers, key_groups=(0, 127))
    half = jobs.stage("even", f"{module}:even", jobs.output("even"), inputs=(read,))
    [even] = run(jobs.region(half), spark, store).outputs
    assert even.digest.rows == 50


def test_of_two_that_create_a_name_the_second_is_refused_whichever_side_it_is(spark, store, pipeline) -> None:
    job = job_of(store, pipeline)
    [numbers] = run(job, spark, store).outputs
    taken = f"{numbers.folder}/{numbers.files[0].name}"
    with pytest.raises(AlreadyExists):
        store.create(taken, b"of Weir")
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        run(job, spark, store)
    assert store.size(taken) == numbers.files[0].bytes


def test_an_s3_that_is_busy_for_a_moment_is_asked_again(spark, store, pipeline, proxy) -> None:
    proxy.answer(SLOW_DOWN, "PUT", "*.parquet*")
    proxy.reset("GET", "*")
    [numbers] = run(job_of(store, pipeline), spark, store).outputs
    assert (numbers.digest.rows, proxy.injected) == (100, 2)


@pytest.mark.soak
def test_a_token_that_expires_while_spark_writes_is_told_and_tried_again(spark, store, pipeline, proxy) -> None:
    proxy.answer(EXPIRED, "PUT", "*.parquet*", times=None)
    with pytest.raises(PySparkException) as failed:
        run(job_of(store, pipeline), spark, store)
    told = translate(failed.value, "numbers", "sc://here", is_server_alive=True)
    assert of_kind("transport.token_expired", region="numbers")(told)


WRITING = ("PUT", "*.parquet*")
READING = ("GET", "*.parquet*")


@pytest.mark.soak
@pytest.mark.parametrize(
    "break_requests",
    [
        lambda proxy: proxy.answer(SLOW_DOWN, *WRITING, times=None),
        lambda proxy: proxy.answer(SLOW_DOWN, times=None),
        lambda proxy: proxy.answer(INTERNAL_ERROR, *WRITING, times=None),
        lambda proxy: proxy.reset(times=None),
        lambda proxy: proxy.hang(*WRITING, times=None),
        lambda proxy: proxy.hang(times=None),
    ],
    ids=["503 to writes", "503", "500 to writes", "resets", "silence to writes", "silence"],
)
def test_an_s3_that_never_takes_a_result_ends_the_try_within_minutes(
    spark, store, pipeline, proxy, break_requests
) -> None:
    job = job_of(store, pipeline)
    break_requests(proxy)
    require_silence(job, spark, store)


@pytest.mark.soak
@pytest.mark.parametrize(
    "break_requests",
    [
        lambda proxy: proxy.answer(SLOW_DOWN, *READING, times=None),
        lambda proxy: proxy.hang(*READING, times=None),
    ],
    ids=["503", "silence"],
)
def test_an_s3_that_never_gives_an_input_ends_the_try_within_minutes(
    spark, store, pipeline, proxy, break_requests
) -> None:
    [numbers] = run(job_of(store, pipeline), spark, store).outputs
    jobs, module = Jobs(store), pipeline(NUMBERS)
    read = jobs.read("numbers", numbers, key_groups=(0, 127))
    job = jobs.region(jobs.stage("even", f"{module}:even", jobs.output("even"), inputs=(read,)))
    break_requests(proxy)
    require_silence(job, spark, store)


def require_silence(job, spark, store):
    """The job fails, and is tried again by Airflow, before anybody looks whether it hangs."""
    failed, seconds = timed(lambda: error_of(job, spark, store))
    told = translate(failed, job.region, "sc://here", is_server_alive=True)
    assert of_kind("transport.s3_silent", region=job.region)(told)
    assert seconds < 480


def error_of(job, spark, store):
    with pytest.raises(PySparkException) as failed:
        run(job, spark, store)
    return failed.value


@pytest.mark.soak
def test_an_s3_that_is_busy_for_ten_seconds_or_silent_once_delays_a_region(spark, store, pipeline, proxy) -> None:
    proxy.answer(SLOW_DOWN, times=None)
    healed = threading.Timer(10, proxy.heal)
    healed.start()
    [numbers] = run(job_of(store, pipeline), spark, store).outputs
    healed.join()
    proxy.hang(*WRITING)
    [again] = run(job_of(store, pipeline), spark, store).outputs
    assert (proxy.injected, numbers.digest.rows, again.digest.rows) == (1, 100, 100)


@pytest.mark.soak
def test_a_server_on_s3_is_ok(s3a_server, store) -> None:
    url = f"{s3a_server.url};user_id=weir"
    found = {each.name: each for each in examine([ConnectExam("spark", url, store).checks()])}
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert "S3A" in found


@pytest.mark.soak
def test_the_secret_of_spark_s_account_is_nowhere(s3a_server, spark, store, capsys) -> None:
    spark.range(3).write.parquet(store.spark_url("plain"))
    spark.read.parquet(store.spark_url("plain")).explain("extended")
    plan = capsys.readouterr().out
    assert "s3a://" in plan
    url = f"{s3a_server.ui_url}/api/v1/applications/{spark.conf.get('spark.app.id')}/environment"
    with urlopen(url) as answer:  # noqa: S310  # the server's own
        environment = answer.read().decode()
    assert "fs.s3a.path.style.access" in environment
    assert all(SECRET not in each for each in (plan, environment, s3a_server.log.read_text()))


MANY = 50_000


@pytest.mark.soak
def test_a_prefix_of_fifty_thousand_objects_is_listed_by_both_sides_and_deleted(
    spark, store, s3_server, s3a_server, capsys
) -> None:
    client, key = client_of(s3_server.url), store.url.removeprefix(f"s3://{BUCKET}/")
    names = [f"part-{number:05}.txt" for number in range(MANY)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: client.put_object(Bucket=BUCKET, Key=f"{key}/many/{name}", Body=b"a row"), names))
    listed, seconds = timed(lambda: store.list("many"))
    assert [name for name, _ in listed] == names
    tracemalloc.start()
    store.list("many")
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    found, planning = timed(lambda: spark.read.schema("value STRING").text(store.spark_url("many")).inputFiles())
    assert len(found) == MANY
    server = psutil.Process(s3a_server.leader.pid)
    heap = max(each.memory_info().rss for each in (server, *server.children(recursive=True))) / 2**20
    _, deleting = timed(lambda: store.delete_folder("many"))
    with pytest.raises(NotFound):
        store.list("many")
    with capsys.disabled():
        print(f"\n{MANY} objects: listed by Weir in {seconds:.1f} s with {peak:.0f} MiB, deleted in {deleting:.1f} s")
        print(f"by Spark listed in {planning:.1f} s; its process has {heap:.0f} MiB")


def timed(call):
    start = time.monotonic()
    return call(), time.monotonic() - start
