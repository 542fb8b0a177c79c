import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.quality import Policy, expectations
from weir.dataflow.state import keyed_state
from weir.errors import Misconfigured
from weir.formats import codec
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, ResultInFlight, SnapshotKind, StatePartition
from weir.formats.checks import CheckOutcome, CheckReason, CheckReport, CheckToRun, ExpectationResult, GateResult
from weir.formats.manifest import (
    OF_CHAIN,
    OF_RESULT,
    ContentDigest,
    DataFile,
    InputRead,
    Manifest,
    RestoredWith,
    RowRange,
    Segment,
    StageCopy,
    StateContent,
    StateFile,
    UpdateDigest,
    WriteEstimate,
    digest_version,
)
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import (
    ApplicationToRun,
    CheckJob,
    CodeToRun,
    CompactionJob,
    CopyToRead,
    CopyToWrite,
    InputToRead,
    MergeToWrite,
    OutputReport,
    OutputToWrite,
    PartitionToRead,
    RegionJob,
    RegionReport,
    ReplacedState,
    RestoredToCheck,
    ResultToTake,
    SparkJob,
    StageToRun,
    StateFileToRead,
    StateReport,
    StateToRead,
)
from weir.formats.suite import Expectation, Severity, Suite
from weir.topology.partitions import PLAIN, KeyFilter, Layout

GOLDEN = Path(__file__).parents[2] / "golden"
KEYED = Layout(("origin", "hour"), 128)
SCHEMA = '{"fields":[{"metadata":{},"name":"origin","nullable":true,"type":"string"}],"type":"struct"}'
DIGEST = ContentDigest(schema="5f1c", rows=3, xor=-(2**63), low_sum=2**70, high_sum=0)
RULED = replace(DIGEST, rule="0123456789abcdef")
FILE = DataFile(
    "part-00000.zstd.parquet",
    3,
    500,
    "ab" * 32,
    (Segment(0, 400, "cd" * 32, key_groups=(0, 31)), Segment(400, 100, "ef" * 32, is_tail=True)),
)
MANIFEST = Manifest(
    dataflow="flight_delays",
    epoch="20130101T000000Z",
    run="scheduled__2013-01-02",
    stage="clean",
    subtask=2,
    layout=KEYED.id,
    attempt="t0001-0123456789ab",
    try_number=1,
    lineage=1,
    keys=KEYED.keys,
    max_parallelism=KEYED.max_parallelism,
    spark_schema=SCHEMA,
    digest=RULED,
    files=(FILE,),
    inputs=(
        InputRead(
            argument="flights",
            run="scheduled__2013-01-02",
            stage="flights",
            subtask=2,
            layout="plain",
            attempt="t0001-ba9876543210",
            digest=str(DIGEST),
        ),
    ),
    code="sha256:11",
    session={"spark.sql.session.timeZone": "UTC"},
    parameters={"airports": ["EWR", "JFK"], "limit": None, "nested": {"é": 1.5}},
    created_at="2013-01-02T00:00:07.500000+00:00",
    versions=("sha256:11",),
    source={"files": ["a.csv"], "marks": {"a.csv": 7}},
    metrics={"write": 1.25},
)
STAGE = StageToRun(
    name="clean",
    function="pipelines.flight_delays:clean",
    is_source=False,
    subtask=2,
    parallelism=3,
    pipelined={"flights": "flights"},
    inputs=(
        InputToRead(
            argument="weather",
            layout=KEYED,
            spark_schema=SCHEMA,
            partitions=(PartitionToRead("weather", 0, ("file:///store/a.parquet",)),),
            key_groups=(0, 42),
        ),
        InputToRead(
            argument="planes", layout=PLAIN, spark_schema=SCHEMA, partitions=(PartitionToRead("planes", 0, ()),)
        ),
        InputToRead(
            argument="before",
            layout=PLAIN,
            spark_schema=SCHEMA,
            partitions=(PartitionToRead("clean", 0, (), "t0002-ba9876543210", "scheduled__2013-01-01"),),
            declared_schema="origin STRING",
        ),
    ),
    outputs=(OutputToWrite(KEYED, "flight_delays/e/clean/k/2/t", "file:///store/flight_delays/e/clean/k/2/t"),),
    split={"files": ["a.csv"]},
    resolved="91f0c4d2ab6e7358",
    digest=DigestRule({"delay": 6}, ("loaded_at",)),
    copy=CopyToWrite("flight_delays/e/clean/copy/2/t", "file:///store/flight_delays/e/clean/copy/2/t", "0a" * 32, "b"),
    resume=CopyToRead(
        attempt="t0001-0123456789ab",
        folder="flight_delays/e/clean/copy/2/s",
        files=("file:///store/flight_delays/e/clean/copy/2/s/part-00000.zstd.parquet",),
        spark_schema=SCHEMA,
        code="sha256:11",
        session={"spark.version": "4.3.0"},
        inputs=("t0001-ba9876543210",),
        copies=("flight_delays/e/flights/copy/2/s",),
    ),
    is_persisted=True,
)
JOB = RegionJob(
    attempt="t0001-0123456789ab",
    dataflow="flight_delays",
    epoch="20130101T000000Z",
    interval=("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
    region="flights-clean",
    subtask=2,
    store="file:///store",
    report="flight_delays/20130101T000000Z/_regions/flights-clean/2/t0001-0123456789ab/report.json",
    stages=(STAGE,),
    parameters={"airports": ["EWR", "JFK"]},
    spark_conf={"spark.sql.shuffle.partitions": "2"},
    notes=("the copy of flights is not used",),
)
REPORT = RegionReport(
    attempt="t0001-0123456789ab",
    outputs=(
        OutputReport(
            stage="clean",
            layout=KEYED,
            folder="flight_delays/e/clean/k/2/t",
            spark_schema=SCHEMA,
            digest=DIGEST,
            files=(FILE,),
        ),
    ),
    code="sha256:11",
    session={"spark.sql.ansi.enabled": "true"},
    metrics={"read": 0.5, "write": 2.0},
    resumed=("clean",),
)
COPY = StageCopy(
    dataflow="flight_delays",
    epoch="20130101T000000Z",
    region="flights-clean",
    stage="clean",
    subtask=2,
    attempt="t0001-0123456789ab",
    made_from="0a" * 32,
    code="sha256:11",
    session={"spark.version": "4.3.0"},
    spark_schema=SCHEMA,
    digest=DIGEST,
    files=(FILE,),
    inputs=("t0001-ba9876543210",),
    copies=("flight_delays/e/flights/copy/2/t",),
)
FAILURE = RegionFailure(
    attempt="t0001-0123456789ab",
    kind="application",
    error="ValueError",
    message="no luck",
    traceback="Traceback (most recent call last):\nValueError: no luck",
)
HISTORY = keyed_state(
    "history", key=("origin", "hour"), schema="origin STRING, hour INT, n BIGINT", ttl="7 days", runs=4, budget="8 MB"
)
TALLIES = (UpdateDigest(1356998400, 2, 2**64 - 1, 7, 8), UpdateDigest(1357084800, 1, 5, 6, 7))
STATE_FILES = (
    StateFile("flight_delays/20121231T000000Z/history/k/1/t", FILE, "20121231T000000Z", (0, 20)),
    StateFile("flight_delays/20130101T000000Z/history/k/2/t", FILE, "20130101T000000Z", (0, 42)),
)
ESTIMATE = WriteEstimate(full=900, changes=700, compaction=200)
STATE_MANIFEST = replace(MANIFEST, stage="history", state=StateContent(STATE_FILES, TALLIES, 3))
STATE_INPUT = InputToRead(
    argument="history",
    layout=KEYED,
    spark_schema=SCHEMA,
    partitions=(
        PartitionToRead("history", 2, ("file:///store/h.parquet",), "t0001-ba9876543210", "scheduled__2013-01-01"),
    ),
    key_groups=(0, 42),
    declared_schema=HISTORY.schema,
    state=StateToRead(
        state=HISTORY,
        files=(StateFileToRead("file:///store/h.parquet", "20121231T000000Z", (0, 20), 3, 500),),
        tallies=TALLIES,
        updated=1356998400,
        expired_until=1356393600,
        is_full=False,
    ),
)
STATE_STAGE = replace(
    STAGE,
    name="history",
    function="",
    pipelined={"clean": "clean"},
    inputs=(),
    split=None,
    digest=PLAIN_RULE,
    keeps_state_of="clean",
    copy=None,
    resume=None,
    is_persisted=False,
)
MERGE = MergeToWrite(
    stage="history",
    layout=KEYED,
    state=replace(STATE_INPUT.state, tallies=None),
    is_bottom=True,
    parts=2,
    folder="flight_delays/e/history/k/2/c/m0",
    spark_folder="file:///store/flight_delays/e/history/k/2/c/m0",
)
OF_SUITES = replace(HISTORY, grows=True, quality=(expectations("history_whole", when="restored", policy="retry"),))
NOT_NULL = Expectation(
    "expect_column_values_to_not_be_null", {"column": "origin", "mostly": 0.9}, Severity.FAIL, ("weather",), ("é",)
)
CHECK = CheckToRun(
    Suite("flights_clean", "0c" * 32, (NOT_NULL, Expectation("expect_table_row_count_to_equal", {"value": 3}))),
    Policy.BACKTRACK,
    CheckReason.RECOMPUTED,
    (str(DIGEST),),
)
RESTORED = RestoredToCheck(
    run="scheduled__2013-01-01",
    stage="history",
    subtask=2,
    layout=KEYED,
    attempt="t0000-ba9876543210",
    digest=str(DIGEST),
    rows=3,
    spark_schema=SCHEMA,
    files=(),
    state=STATE_INPUT.state,
    key_groups=(0, 42),
    at_least=2,
    checks=(CHECK,),
)
CHECK_REPORT = CheckReport(
    "clean",
    2,
    "flights_clean",
    "0c" * 32,
    Policy.BACKTRACK,
    CheckReason.RECOMPUTED,
    str(DIGEST),
    3,
    (
        ExpectationResult(
            NOT_NULL.type,
            NOT_NULL.kwargs,
            Severity.FAIL,
            success=False,
            rows=3,
            unexpected=1,
            examples=(None, "x", 1.5),
        ),
        ExpectationResult("expect_table_row_count_to_equal", {"value": 3}, Severity.WARN, success=True, observed=3),
    ),
    0.25,
)
GATED_MANIFEST = replace(
    STATE_MANIFEST,
    quality=(GateResult("flights_clean", "0c" * 32, CheckOutcome.FAILED), GateResult("weir", "", CheckOutcome.PASSED)),
)
GATED_STAGE = replace(STAGE, inputs=(*STAGE.inputs, replace(STATE_INPUT, restored=(RESTORED,))), checks=(CHECK,))
STATE_JOB = replace(JOB, stages=(replace(STAGE, inputs=(*STAGE.inputs, STATE_INPUT)), STATE_STAGE))
STATE_REPORT = replace(
    REPORT,
    outputs=(
        *REPORT.outputs,
        replace(REPORT.outputs[0], stage="history", state=StateReport(TALLIES, 3, is_whole=True)),
    ),
)
GATED_JOB = replace(STATE_JOB, stages=(GATED_STAGE, STATE_STAGE))
OF_ALL_KINDS = {each.name: getattr(JOB, each.name) for each in fields(SparkJob)}
COMPACTION_JOB = CompactionJob(**OF_ALL_KINDS, merges=(MERGE,))
CHECK_JOB = CheckJob(**OF_ALL_KINDS, to_check=(RESTORED,), why=CheckReason.RESTORE_TEST)
GATED_REPORT = replace(STATE_REPORT, checks=(CHECK_REPORT, replace(CHECK_REPORT, is_same=True, argument="history")))
VERSIONED_MANIFEST = replace(
    GATED_MANIFEST, code="code:11", archive="0e" * 32, generation=2, versions=("code:11", "code:22")
)
VERSIONED_JOB = replace(
    GATED_JOB,
    code=CodeToRun(version="code:11", archive="0e" * 32, path=f"flight_delays/_code/{'0e' * 32}-0123abcd.zip"),
)
CHECKPOINT = Checkpoint(
    dataflow="flight_delays",
    number=7,
    kind=SnapshotKind.CHECKPOINT,
    epoch="20130101T000000Z",
    run="scheduled__2013-01-02",
    lineage=1,
    attempt="t0001-0123456789ab",
    states=(
        KeyedSnapshot(
            HISTORY,
            "clean",
            128,
            SCHEMA,
            (
                StatePartition(
                    subtask=2,
                    key_groups=(0, 42),
                    attempt="t0001-0123456789ab",
                    digest=str(DIGEST),
                    rows=3,
                    tallies=(UpdateDigest(0, 3, 7, 8, 9),),
                    files=STATE_FILES,
                    versions=("code:11",),
                ),
            ),
        ),
    ),
    results=(
        ResultInFlight(
            stage="clean",
            subtask=2,
            layout=KEYED.id,
            attempt="t0001-0123456789ab",
            folder="flight_delays/e/clean/k/2/t",
            manifest_sha256="0b" * 32,
            digest=str(DIGEST),
            files=(FILE,),
            versions=("code:11",),
        ),
    ),
    pinned={"name": "flight_delays", "stages": [{"name": "clean"}]},
    triggered_at="2013-01-02T00:00:07.500000+00:00",
    completed_at="2013-01-02T00:00:08.500000+00:00",
    full_bytes=1000,
    incremental_bytes=500,
    new_files=1,
    shared_files=1,
)
GATED_CHECKPOINT = replace(CHECKPOINT, states=(replace(CHECKPOINT.states[0], state=OF_SUITES),))
VERSIONED_CHECKPOINT = replace(
    GATED_CHECKPOINT,
    states=(
        replace(
            GATED_CHECKPOINT.states[0],
            partitions=(replace(GATED_CHECKPOINT.states[0].partitions[0], versions=("code:11", "code:22")),),
        ),
    ),
    results=(replace(GATED_CHECKPOINT.results[0], versions=("code:11",)),),
)
REVISED_MANIFEST = replace(
    VERSIONED_MANIFEST, revision=41, pinned_to="5ad0c3e8b1f2a947", resolved={"flights": "91f0c4d2ab6e7358"}
)
REVISED_JOB = replace(VERSIONED_JOB, revision=40)
FILTERED_INPUT = InputToRead(
    argument="carriers",
    layout=PLAIN,
    spark_schema=SCHEMA,
    partitions=(PartitionToRead("carriers", 0, ("file:///store/c.parquet",)),),
    filter=KeyFilter(KEYED, (43, 85)),
)
LAID_OUT_STAGE = replace(
    GATED_STAGE,
    name="routes",
    inputs=(FILTERED_INPUT,),
    outputs=(OutputToWrite(PLAIN, "flight_delays/e/routes/plain/2/t", "file:///store/routes", OF_RESULT),),
)
LAID_OUT_JOB = replace(REVISED_JOB, stages=(*REVISED_JOB.stages, LAID_OUT_STAGE))
REVISED_CHECKPOINT = replace(VERSIONED_CHECKPOINT, revision=42)
CHAINED = replace(DIGEST, version=OF_CHAIN, xor=2**64 - 1)
ROWS = RowRange(2, 5)
BLIND_CONTENT = StateContent(STATE_FILES, None, 3, ROWS, 1356393600, ESTIMATE)
BLIND_MANIFEST = replace(REVISED_MANIFEST, digest=CHAINED, state=BLIND_CONTENT)
RESTORED_MANIFEST = replace(BLIND_MANIFEST, restored_with=RestoredWith("r-0123456789ab", 3))
BLIND_INPUT = replace(
    STATE_INPUT,
    state=replace(
        STATE_INPUT.state,
        tallies=None,
        epoch="20130101T000000Z",
        digest=str(CHAINED),
        rows=ROWS,
        replaced=ReplacedState(
            digest=str(replace(CHAINED, xor=1)), files=STATE_INPUT.state.files, expired_until=1356393600
        ),
    ),
)
BLIND_STAGE = replace(GATED_STAGE, name="delays", inputs=(BLIND_INPUT,))
BLIND_JOB = replace(LAID_OUT_JOB, stages=(*LAID_OUT_JOB.stages, BLIND_STAGE))
BLIND_OUTPUT = replace(
    REPORT.outputs[0], stage="delays", digest=CHAINED, state=StateReport(None, 3, rows=ROWS, estimate=ESTIMATE)
)
BLIND_REPORT = replace(
    GATED_REPORT,
    outputs=(*GATED_REPORT.outputs, BLIND_OUTPUT),
    taken="t0001-ba9876543210",
    looked_at=("epoch",),
)
BLIND_PARTITION = replace(
    REVISED_CHECKPOINT.states[0].partitions[0],
    digest=str(CHAINED),
    rows=5,
    rows_at_least=2,
    tallies=None,
    estimate=ESTIMATE,
)
BLIND_CHECKPOINT = replace(
    REVISED_CHECKPOINT, states=(replace(REVISED_CHECKPOINT.states[0], partitions=(BLIND_PARTITION,)),)
)
SOURCED_CHECKPOINT = replace(
    BLIND_CHECKPOINT,
    sources={"orders": [{"table": "/lake/orders", "version": 12}]},
    positions={"orders": {"value": {"version": 12}}},
)
APPLICATION_STAGE = replace(
    GATED_STAGE,
    name="tariffs",
    function="jars/tariffs.jar",
    application=ApplicationToRun(("--in={{ inputs.read }}", "{{ output }}"), "com.example.Tariffs"),
)
TO_TAKE = ResultToTake(
    attempt="t0001-ba9876543210",
    run="flight_delays@20130101T000000Z",
    code="code:1",
    session={"spark.sql.ansi.enabled": "true"},
    looked_at=("epoch",),
    outputs=REPORT.outputs,
)
APPLICATION_JOB = replace(BLIND_JOB, stages=(*BLIND_JOB.stages, APPLICATION_STAGE), made_of="a" * 64, take=TO_TAKE)
ZONED = {"zone": "Asia/Kolkata"}
FORMATS = {
    "manifest": (RESTORED_MANIFEST, Manifest),
    "region-job": (replace(APPLICATION_JOB, **ZONED), None),
    "compaction-job": (replace(COMPACTION_JOB, **ZONED), None),
    "check-job": (replace(CHECK_JOB, **ZONED), None),
    "region-report": (BLIND_REPORT, RegionReport),
    "checkpoint": (SOURCED_CHECKPOINT, Checkpoint),
    "stage-copy": (COPY, StageCopy),
    "region-failure": (FAILURE, RegionFailure),
}


def decoder(name):
    target = FORMATS[name][1]
    return codec.region_job_from_json if target is None else partial(codec.from_json, target)


@pytest.fixture(params=list(FORMATS))
def name(request):
    return request.param


def changed(name, change) -> bytes:
    value, _ = FORMATS[name]
    document = json.loads(codec.to_json(value))
    change(document)
    return json.dumps(document).encode()


def test_what_is_written_reads_as_the_same_value(name):
    (value, _), encode, decode = FORMATS[name], codec.to_json, decoder(name)
    assert decode(encode(value)) == value
    assert encode(decode(encode(value))) == encode(value)


def test_the_format_on_disk_has_not_changed(name):
    (value, _), encode, decode = FORMATS[name], codec.to_json, decoder(name)
    golden = (GOLDEN / f"{name}-v{codec.VERSIONS[name.replace('-', ' ')]}.json").read_bytes()
    assert encode(value) == golden
    assert decode(golden) == value


def test_equal_values_give_equal_bytes_whatever_the_order_of_their_dicts():
    reordered = replace(MANIFEST, parameters=dict(reversed(MANIFEST.parameters.items())))
    assert codec.to_json(reordered) == codec.to_json(MANIFEST)


def test_the_smallest_values_survive():
    smallest = replace(MANIFEST, files=(), inputs=(), keys=(), session={}, parameters={}, source=None, metrics={})
    assert codec.from_json(Manifest, codec.to_json(smallest)) == smallest
    report = replace(REPORT, outputs=())
    assert codec.from_json(RegionReport, codec.to_json(report)) == report


@pytest.mark.parametrize("version", [0, 99, "1", True, None])
def test_an_unknown_version_is_refused_with_both_versions(name, version):
    decode = decoder(name)
    with pytest.raises(Misconfigured, check=of_kind("formats.another_version", found=version, versions="1")):
        decode(changed(name, lambda document: document.update(version=version)))


@pytest.mark.parametrize("name", ["region-job", "compaction-job", "check-job"])
def test_a_driver_reads_its_own_job_as_everybody_does(name):
    value, _ = FORMATS[name]
    assert codec.own_job_from_json(codec.to_json(value)) == value


def test_another_kind_of_document_is_refused(name):
    decode = decoder(name)
    for data in (b"", b"[]", b"{}", b'{"weir": "other", "version": 1}', b"\xff\xfe", b'{"weir":'):
        with pytest.raises(Misconfigured, match=r"expected a .* of Weir"):
            decode(data)


def test_an_unknown_or_missing_field_is_refused_by_name(name):
    decode = decoder(name)
    with pytest.raises(Misconfigured, check=of_kind("formats.not_typed")):
        decode(changed(name, lambda document: document.update(novelty=1)))
    with pytest.raises(Misconfigured, check=of_kind("formats.not_typed")):
        decode(changed(name, lambda document: document.pop("attempt")))


def test_a_field_that_has_a_default_has_to_be_there_too():
    with pytest.raises(
        Misconfigured,
        check=of_kind("formats.not_typed", error="manifest.digest: unknown fields [], missing fields ['rule']"),
    ):
        codec.from_json(Manifest, changed("manifest", lambda document: document["digest"].pop("rule")))


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("subtask", "2", of_kind("formats.not_typed")),
        ("subtask", True, of_kind("formats.not_typed")),
        ("files", {}, of_kind("formats.not_typed")),
        ("keys", ["a", 1], of_kind("formats.not_typed")),
        ("digest", [], of_kind("formats.not_typed")),
        ("session", [], of_kind("formats.not_typed")),
        ("metrics", {"write": "fast"}, of_kind("formats.not_typed")),
        ("quality", [{"suite": "a", "fingerprint": "b", "outcome": "c"}], of_kind("formats.not_typed")),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(field, value, where):
    with pytest.raises(Misconfigured, check=where):
        codec.from_json(Manifest, changed("manifest", lambda document: document.update({field: value})))


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object(), b"bytes"])
def test_parameters_that_are_not_json_are_refused_and_say_what_may_be_written(value):
    with pytest.raises(Misconfigured, check=of_kind("formats.value_not_json")):
        codec.to_json(replace(JOB, parameters={"bad": value}))


def test_the_description_of_a_copy_that_is_not_as_it_was_written_is_refused():
    data = codec.to_json(COPY)
    for old, new in ((b"origin", b"orig1n"), (b'"rows": 3', b'"rows": 4'), (b"sha256:11", b"sha256:12"), (b"}", b"} ")):
        assert old in data
        with pytest.raises(Misconfigured, check=of_kind("formats.not_as_written")):
            codec.from_json(StageCopy, data.replace(old, new, 1))


def test_a_checkpoint_that_is_not_as_it_was_written_is_refused():
    data = codec.to_json(CHECKPOINT)
    for old, new in (
        (b"origin", b"orig1n"),
        (b'"rows": 3', b'"rows": 4'),
        (b'"number": 7', b'"number": 8'),
        (b"}", b"} "),
    ):
        assert old in data
        with pytest.raises(Misconfigured, check=of_kind("formats.not_as_written")):
            codec.from_json(Checkpoint, data.replace(old, new, 1))


def test_a_checkpoint_names_each_file_once_whoever_shares_it():
    partition = CHECKPOINT.states[0].partitions[0]
    other = replace(partition, subtask=3, files=(replace(STATE_FILES[0], key_groups=(43, 60)),))
    shared = replace(CHECKPOINT, states=(replace(CHECKPOINT.states[0], partitions=(partition, other)),))
    assert sorted(shared.files) == [file.path for file in STATE_FILES]


def test_a_digest_says_by_which_definition_it_was_made():
    newer = replace(DIGEST, version=12)
    assert (str(newer), digest_version(str(newer))) == (f"v12:{DIGEST}", 12)
    assert digest_version(str(DIGEST)) == digest_version("") == 1
    assert newer != DIGEST
