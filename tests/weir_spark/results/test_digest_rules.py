"""What a stage's own rule counts as a change of its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.errors import Misconfigured
from weir.topology.partitions import PLAIN, Layout
from weir_spark.region import region
from weir_spark.results import writer
from weir_spark.results.digest import digest_of

pytestmark = pytest.mark.spark

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "digest-rules.json").read_text())
ROUNDED = DigestRule({"a": 2})
IGNORED = DigestRule(ignore=("b",))

EQUAL = {
    "doubles that differ behind the last place": (ROUNDED, "select 1.231D a", "select 1.2349D a"),
    "floats": (ROUNDED, "select float(1.231) a", "select float(1.2349) a"),
    "decimals": (ROUNDED, "select cast(1.231 as decimal(9, 4)) a", "select cast(1.2349 as decimal(9, 4)) a"),
    "the widest decimals": (
        ROUNDED,
        "select cast('99999999999999999999999999999999999.991' as decimal(38, 3)) a",
        "select cast('99999999999999999999999999999999999.994' as decimal(38, 3)) a",
    ),
    "halves are rounded up, as they are written": (ROUNDED, "select 2.675D a", "select 2.68D a"),
    "negative halves are rounded away from zero": (ROUNDED, "select -2.675D a", "select -2.68D a"),
    "what becomes a negative zero": (ROUNDED, "select -0.001D a", "select 0D a"),
    "all NaNs": (ROUNDED, "select double('NaN') a", "select sqrt(-1D) a"),
    "an ignored column": (IGNORED, "select 1 a, 'x' b", "select 1 a, 'y' b"),
    "a null of an ignored column": (IGNORED, "select 1 a, 'x' b", "select 1 a, string(null) b"),
    "an ignored column that no digest could hold": (
        DigestRule(ignore=("b",)),
        "select 1 a, interval '1' month b",
        "select 1 a, interval '2' month b",
    ),
    "all columns ignored": (DigestRule(ignore=("a",)), "select 1 a", "select 2 a"),
    "a floating-point sum in another order": (
        DigestRule({"a": 9}),
        "select 0.1D + 0.2D + 0.3D a",
        "select 0.3D + 0.2D + 0.1D a",
    ),
}

DIFFERENT = {
    "doubles that differ before the last place": (ROUNDED, "select 1.23D a", "select 1.24D a"),
    "either side of a half": (ROUNDED, "select 1.2349D a", "select 1.235D a"),
    "null and zero": (ROUNDED, "select double(null) a", "select 0.001D a"),
    "the infinities": (ROUNDED, "select double('Infinity') a", "select double('-Infinity') a"),
    "NaN and infinity": (ROUNDED, "select double('NaN') a", "select double('Infinity') a"),
    "whole numbers, which have no places": (DigestRule({"a": 0}), "select 1 a", "select 2 a"),
    "another column than the rounded one": (ROUNDED, "select 1D a, 1.231D b", "select 1D a, 1.2349D b"),
    "another column than the ignored one": (IGNORED, "select 1 a, 'x' b", "select 2 a, 'x' b"),
    "the type of an ignored column": (IGNORED, "select 1 a, 1 b", "select 1 a, 1L b"),
    "whether there is the ignored column under another name": (
        DigestRule(ignore=("b",)),
        "select 1 a, 1 b, 1 c",
        "select 1 a, 1 b, 1 d",
    ),
    "the number of rows where all columns are ignored": (
        DigestRule(ignore=("a",)),
        "select 1 a",
        "select 1 a union all select 1",
    ),
    "a number within a struct, which a rule cannot name": (
        DigestRule({"b": 2}),
        "select struct(1.231D x) a, 1D b",
        "select struct(1.2349D x) a, 1D b",
    ),
}


@pytest.mark.parametrize("case", EQUAL.values(), ids=EQUAL)
def test_rows_that_do_not_differ_by_the_rule_have_equal_digests(spark: SparkSession, case) -> None:
    rule, one, other = case
    assert digest_of(spark.sql(one), rule) == digest_of(spark.sql(other), rule)


@pytest.mark.parametrize("case", DIFFERENT.values(), ids=DIFFERENT)
def test_rows_that_differ_by_the_rule_have_different_digests(spark: SparkSession, case) -> None:
    rule, one, other = case
    assert digest_of(spark.sql(one), rule) != digest_of(spark.sql(other), rule)


def test_the_schema_of_a_digest_is_of_all_columns_and_its_text_names_the_rule(spark: SparkSession) -> None:
    rows = spark.sql("select 1.5D a, 'x' b")
    plain, ruled = digest_of(rows), digest_of(rows, DigestRule({"a": 2}, ("b",)))
    assert ruled.schema == plain.schema
    assert str(ruled).endswith(f":rule-{DigestRule({'a': 2}, ('b',)).fingerprint}")
    assert "rule" not in str(plain)


def test_digests_under_different_rules_are_never_equal(spark: SparkSession) -> None:
    rows = spark.sql("select 1D a, 2D b")
    rules = (PLAIN_RULE, DigestRule({"a": 2}), DigestRule({"a": 3}), DigestRule({"b": 2}), DigestRule({"a": 2, "b": 2}))
    assert len({str(digest_of(rows, rule)) for rule in rules}) == len(rules)


@pytest.mark.parametrize("vector", GOLDEN["vectors"], ids=lambda vector: vector["name"])
def test_a_digest_by_a_rule_never_changes_without_another_version(spark: SparkSession, vector) -> None:
    rule = DigestRule(vector["round"], tuple(vector["ignore"]))
    assert str(digest_of(spark.sql(vector["query"]), rule)) == vector["digest"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            DigestRule({"fare": 2}),
            "rounds the column 'fare', but there is no such column .*: there are a double, b str",
        ),
        (DigestRule(ignore=("A",)), "ignores the column 'A', but there is no such column .*spelled exactly so"),
        (DigestRule({"b": 2}), "rounds the column 'b', but that is of type string, and only numbers can be rounded"),
        (DigestRule({"s": 2}), "rounds the column 's', but that is of type struct<x:double>"),
        (
            DigestRule({"s.x": 2}),
            "rounds the column 's.x', but there is no such column .a rule names columns at the top",
        ),
    ],
)
def test_a_rule_that_does_not_fit_the_rows_is_refused_with_the_stage_and_what_there_is(spark, rule, message) -> None:
    rows = spark.sql("select 1D a, 'x' b, struct(1D x) s")
    with pytest.raises(Misconfigured, match=f"stage clean: its digest {message}"):
        writer.check_rows(rows, "clean", [PLAIN], rule)


def test_a_result_is_written_whole_and_digested_by_its_stages_rule(spark, store, jobs, pipeline) -> None:
    module = pipeline("def a(ctx):\n    return ctx.spark.sql('select 1 key, uuid() loaded, 1.004D fare')\n")
    rule = DigestRule({"fare": 2}, ("loaded",))

    def written():
        stage = jobs.stage("a", f"{module}:a", jobs.output("a"), jobs.output("a", Layout(("key",), 128)), digest=rule)
        return region.run(jobs.region(stage), spark, store, lambda _line: None)

    first, second = written(), written()
    assert [each.digest for each in first.outputs] == [each.digest for each in second.outputs]
    assert {each.digest.rule for each in first.outputs} == {rule.fingerprint}
    rows = [spark.read.parquet(store.spark_url(each.folder)).collect()[0] for each in (*first.outputs, *second.outputs)]
    assert {row["fare"] for row in rows} == {1.004}
    assert rows[0]["loaded"] != rows[2]["loaded"]
