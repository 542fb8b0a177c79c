"""The key of what results are made of differs with each of its parts, and with nothing else."""

from dataclasses import fields, replace

import pytest

from weir.dataflow import keyed_state
from weir.formats.made_of import keys_with_contexts, made_of, with_context
from weir.formats.region_job import (
    CodeToRun,
    InputToRead,
    OutputToWrite,
    PartitionToRead,
    RegionJob,
    StageToRun,
    StateToRead,
)
from weir.topology.partitions import PLAIN, KeyFilter, Layout

BY_K = Layout(("k",), 128)
READ = InputToRead(
    argument="x",
    layout=BY_K,
    spark_schema="{}",
    partitions=(PartitionToRead("a", 0, ("/1",), "t1", "run"), PartitionToRead("a", 1, ("/2",), "t2", "run")),
    key_groups=(0, 63),
)
STAGE = StageToRun(
    name="b",
    function="m:b",
    is_source=False,
    subtask=0,
    parallelism=2,
    pipelined={},
    inputs=(READ,),
    outputs=(OutputToWrite(PLAIN, "own", "/own", 2),),
)
JOB = RegionJob(
    attempt="t1",
    dataflow="flow",
    epoch="20130101T000000Z",
    interval=("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
    region="b",
    subtask=0,
    store="/store",
    report="report.json",
    spark_conf={"spark.a": "1"},
    stages=(STAGE,),
    parameters={"rate": 1},
    code=CodeToRun(version="code:1", archive="f", path="p"),
)
DECLARED = [{"name": "b", "digest": {}}]
DIGESTS = {("b", "x"): ["1:aa", "1:bb"]}
KEY = made_of(JOB, DECLARED, DIGESTS)


def key(job=JOB, declared=DECLARED, digests=DIGESTS, **stage):
    if stage:
        job = replace(job, stages=(replace(STAGE, **stage),))
    return made_of(job, declared, digests)


def reading(**more):
    return key(inputs=(replace(READ, **more),))


def partitions(**more):
    return reading(partitions=(replace(READ.partitions[0], **more), READ.partitions[1]))


OTHERS = {
    "code": lambda: key(replace(JOB, code=replace(JOB.code, version="code:2"))),
    "parameters": lambda: key(replace(JOB, parameters={"rate": 2})),
    "settings": lambda: key(replace(JOB, spark_conf={})),
    "declaration": lambda: key(declared=[{"name": "b", "digest": {"ignore": ["k"]}}]),
    "subtask": lambda: key(subtask=1),
    "parallelism": lambda: key(parallelism=3),
    "plan": lambda: key(pipelined={"y": "a"}),
    "digest": lambda: key(digests={("b", "x"): ["1:aa", "1:cc"]}),
    "order": lambda: key(digests={("b", "x"): ["1:bb", "1:aa"]}),
    "argument": lambda: key(inputs=(replace(READ, argument="y"),), digests={("b", "y"): ["1:aa", "1:bb"]}),
    "layout": lambda: reading(layout=PLAIN),
    "key groups": lambda: reading(key_groups=(64, 127)),
    "filter": lambda: reading(filter=KeyFilter(BY_K, (0, 63))),
    "columns": lambda: reading(spark_schema="[]"),
    "declared columns": lambda: reading(declared_schema="k INT"),
    "partition": lambda: partitions(subtask=7),
    "producer": lambda: partitions(stage="c"),
    "layout of a partition": lambda: partitions(layout="plain"),
    "output": lambda: key(outputs=(OutputToWrite(BY_K, "own", "/own", 2),)),
    "version of the digest": lambda: key(outputs=(OutputToWrite(PLAIN, "own", "/own", 1),)),
}


@pytest.mark.parametrize("part", OTHERS)
def test_each_part_counts(part):
    assert OTHERS[part]() not in ("", KEY)


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, attempt="t2", report="other.json", revision=7, notes=("a",)),
        replace(JOB, epoch="20130102T000000Z", interval=JOB.interval[::-1], zone="Europe/Berlin"),
        replace(JOB, code=replace(JOB.code, archive="g", path="q")),
    ],
)
def test_whose_it_is_and_where_it_lies_do_not(job):
    assert key(job) == KEY


SEEN = StateToRead(state=keyed_state("seen", key="k", schema="k BIGINT"), digest="state:1:aa")


def with_state(job=JOB, **more):
    """The key of a stage that goes on from a state."""
    seen = replace(READ, argument="seen", partitions=READ.partitions[:1], state=replace(SEEN, **more))
    return key(job, digests={**DIGESTS, ("b", "seen"): ["state:1:aa"]}, inputs=(READ, seen))


def test_what_a_state_was_and_in_which_epoch_it_goes_on_count():
    known = with_state()
    others = [
        with_state(replace(JOB, epoch="20130102T000000Z")),
        with_state(digest="state:1:bb"),
        with_state(expired_until=7),
        with_state(is_full=True),
        KEY,
    ]
    assert len({known, *others}) == 1 + len(others)
    assert with_state(files=(), updated=3, rows=None) == known
    assert with_state(state=replace(SEEN.state, grows=True)) == ""  # the job alone can count its rows


def test_files_attempts_and_runs_of_what_is_read_do_not():
    assert partitions(files=("/3",), attempt="t3", run="another") == KEY


def test_without_code_or_under_another_rule_it_is_not_known():
    assert key(replace(JOB, code=None)) == ""
    assert key(digests={("b", "x"): ["1:aa:rule-f", "1:bb"]}) == ""


def source(function, split, **more):
    return key(function=function, split=split, is_source=True, inputs=(), digests={}, **more)


FILE = {"path": "/data/planes.csv", "size": 7, "sha256": "ab"}


def files(*marks, **more):
    return source("weir_spark.sources.files:read", {"reads": "2 file(s)", "files": list(marks), **more})


def test_a_source_is_known_by_the_content_of_its_files():
    known = files(FILE)
    assert known not in ("", files({**FILE, "sha256": "cd"}), files(FILE, FILE), files(FILE, reader={"header": "true"}))
    assert files(FILE, reads="1 file, told otherwise") == known
    etag = {"path": "s3://b/planes.csv", "size": 7, "ETag": "1"}
    assert files(etag) not in ("", files({**etag, "ETag": "2"}))
    by_time = {"path": "/data/planes.csv", "size": 7, "modified_ns": 1}
    assert files(by_time) == files(FILE, by_time) == ""


def test_a_version_of_a_table_is_known_and_what_a_database_had_is_not():
    delta = "weir_spark.sources.delta:read"
    assert source(delta, {"version": 1, "groups": []}) not in ("", source(delta, {"version": 2, "groups": []}))
    assert source("weir_spark.sources.iceberg:read", {"snapshot": 1, "groups": []}) != ""
    assert source("weir_spark.sources.jdbc:read", {"table": "planes"}) == ""


def test_a_source_of_ones_own_is_known_by_its_split_where_somebody_vouches_for_it():
    assert source("m:planes", {"path": "x"}) == ""
    one, other = (source("m:planes", {"path": path}, is_vouched_for=True) for path in "xy")
    assert "" != one != other


def test_no_field_of_a_job_or_a_stage_is_forgotten():
    """A field that is added is to be in the key, or here."""
    known = {
        "attempt",
        "dataflow",
        "epoch",
        "interval",
        "region",
        "store",
        "report",
        "zone",
    }  # whose it is, or looked at
    known |= {"notes", "revision", "made_of", "take"}
    assert {each.name for each in fields(RegionJob)} - known == {
        *("subtask", "spark_conf", "stages", "parameters", "code"),
    }
    of_declaration = {"function", "is_source", "resolved", "digest", "keeps_state_of", "application", "is_vouched_for"}
    of_the_attempt = {"copy", "resume", "is_persisted", "checks"}
    assert {each.name for each in fields(StageToRun)} - of_declaration - of_the_attempt == {
        *("name", "subtask", "parallelism", "pipelined", "inputs", "outputs", "split"),
    }
    of_states = {"state", "restored"}
    assert {each.name for each in fields(InputToRead)} - of_states == {
        *("argument", "layout", "spark_schema", "partitions", "key_groups", "filter", "declared_schema"),
    }


def test_what_was_looked_at_counts_with_its_value():
    job = replace(JOB, made_of=KEY)
    later = replace(job, epoch="20130102T000000Z")
    assert with_context(job, ()) == with_context(later, ())
    assert with_context(job, ["epoch"]) != with_context(later, ["epoch"])
    assert with_context(job, ["interval"]) == with_context(later, ["interval"])
    assert with_context(job, ["zone"]) != with_context(replace(job, zone="Europe/Berlin"), ["zone"])
    found = dict(keys_with_contexts(job))
    assert len(found) == 2 ** len(job.context)
    assert found[with_context(job, ["zone", "epoch"])] == ("epoch", "zone")
