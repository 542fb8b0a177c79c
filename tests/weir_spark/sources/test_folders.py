"""Columns in the names of folders, and columns that only some files have."""

import re
from datetime import date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.test_files import put, refused, resolved

from weir.dataflow import files_source
from weir.dataflow.state_schema import declared_fields
from weir.errors import Misconfigured
from weir_spark.sources.folders import columns_of


def parquet(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def of(path, schema="", **more):
    form = str(path).rpartition(".")[2]
    return files_source("rows", str(path), format=form, schema=schema, **more)


def test_the_folders_next_to_each_other_name_columns():
    paths = ["/env=prod/x/year=2013/day=2013-01-01/n=7/a.parquet", "/env=prod/x/year=2014/day=2013-01-02/n=x/b.parquet"]
    types = {each["name"]: each["type"] for each in columns_of(paths, None)}
    assert types == {"year": "INT", "day": "DATE", "n": "STRING"}
    (found,) = columns_of(paths, declared_fields("id BIGINT, Day STRING"))
    assert (found["name"], found["folder"], found["type"]) == ("Day", "day", "string")
    assert columns_of(["/month=01/a", "/month=02/b"], None)[0]["type"] == "STRING"
    assert columns_of([f"/n={2**40}/a", "/n=__HIVE_DEFAULT_PARTITION__/a"], None)[0]["type"] == "BIGINT"


@pytest.mark.spark
def test_a_column_that_only_the_folders_name_is_read_from_there(attempt, tmp_path):
    parquet(tmp_path / "p/day=2013-01-01/a.parquet", id=[1])
    parquet(tmp_path / "p/day=2013-01-02/b.parquet", id=[2])
    for day, name in (("2013-01-01 10%3A00%3A00", "a b"), ("__HIVE_DEFAULT_PARTITION__", "é+#%25")):
        put(tmp_path / f"c/at={day}/name={name}/a.csv", "1\n2\n")
        put(tmp_path / f"j/at={day}/name={name}/a.json", '{"id":1}\n{"id":2}\n')
    one = of(tmp_path / "p/day={start:%Y-%m-%d}/*.parquet", "id BIGINT, day DATE")
    assert attempt.rows(one, resolved(one)) == [(1, date(2013, 1, 1))]
    both = [(1, date(2013, 1, 1)), (2, date(2013, 1, 2))]
    for schema, more in (("", {"parallelism": 2}), ("id BIGINT, day DATE", {})):
        stage = of(tmp_path / "p/day=*/*.parquet", schema, **more)
        assert attempt.rows(stage, resolved(stage)) == both
    assert attempt.read(one, resolved(one)[0]).where("day > '2013-01-01'").count() == 0
    rows = {(1, datetime(2013, 1, 1, 10), "a b"), (1, None, "é+#%")}  # noqa: DTZ001  without a zone
    for form in ("c/**/*.csv", "j/**/*.json"):
        stage = of(tmp_path / form, "id BIGINT, at TIMESTAMP_NTZ, name STRING")
        assert {row for row in attempt.rows(stage, resolved(stage)) if row[0] == 1} == rows


@pytest.mark.spark
def test_a_column_that_files_and_folders_have_is_read_from_the_files_unless_they_disagree(attempt, tmp_path):
    parquet(tmp_path / "day=2013-01-01/a.parquet", id=[1], day=[date(2013, 1, 1)])
    put(tmp_path / "day=2013-01-01/a.csv", "1,2013-01-01\n")
    put(tmp_path / "day=2013-01-01/a.json", '{"id":1,"day":"2013-01-01"}\n')
    for form in ("parquet", "csv", "json"):
        stage = of(tmp_path / f"day=*/*.{form}", "id BIGINT, day DATE")
        assert attempt.rows(stage, resolved(stage)) == [(1, date(2013, 1, 1))]
    (tmp_path / "day=2013-01-01").rename(tmp_path / "day=2013-01-02")
    for form in ("parquet", "csv", "json"):
        stage = of(tmp_path / f"day=*/*.{form}", "id BIGINT, day DATE")
        told = refused(attempt, stage, lambda rows: rows.select("id").collect())
        assert type(told) is Misconfigured
        assert re.search("day=2013-01-02 of .*is contradicted by a row: 2013-01-01", str(told)), told
    parquet(tmp_path / "day=2013-01-03/b.parquet", id=[1])
    with pytest.raises(Misconfigured, check=of_kind("sources.column_in_some_files", name="day")):
        resolved(of(tmp_path / "day=*/*.parquet"))
    told = refused(attempt, of(tmp_path / "day=*/a.csv", "id BIGINT, x STRING, day INT"))
    assert re.search("day=2013-01-02 of .*is no INT", str(told)), told


@pytest.mark.spark
def test_columns_that_only_some_files_have_are_null_in_the_others_in_all_subtasks(attempt, tmp_path):
    parquet(tmp_path / "a.parquet", id=[1], a=["x"])
    parquet(tmp_path / "b.parquet", id=[2], a=["y"], tip=[0.5])
    stage = of(tmp_path / "*.parquet", parallelism=2)
    splits = resolved(stage)
    assert attempt.rows(stage, splits) == [(1, "x", None), (2, "y", 0.5)]
    assert len({attempt.read(stage, each).schema.json() for each in splits}) == 1
    parquet(tmp_path / "c.parquet", id=pa.array([3], pa.int32()), a=["z"])
    told = refused(attempt, stage)
    assert type(told) is Misconfigured
    assert "columns of other types than others" in str(told)


def test_without_a_schema_one_file_of_each_schema_tells_the_columns_of_all(tmp_path):
    for name in "abc":
        parquet(tmp_path / f"{name}.parquet", id=[1])
    parquet(tmp_path / "d.parquet", id=[1], tip=[0.5])
    (split,) = resolved(of(tmp_path / "*.parquet"))
    assert split["like"] == [str(tmp_path / "a.parquet"), str(tmp_path / "d.parquet")]


def test_what_no_parquet_file_has_and_what_is_no_parquet_file_is_refused_when_it_is_listed(tmp_path):
    parquet(tmp_path / "a.parquet", id=[1], user=[{"userId": 1}])
    parquet(tmp_path / "b.parquet", id=[1], tip=[1])
    stage = of(tmp_path / "*.parquet", "ID BIGINT, tip BIGINT, user STRUCT<userId: BIGINT>")
    assert len(resolved(stage)) == 1
    for schema, said in {
        "id BIGINT, tips BIGINT": "has the column 'tips' .is 'tip' meant",
        "id BIGINT, user STRUCT<user_id: BIGINT>": "'user.user_id' .is 'user.userId' meant",
    }.items():
        with pytest.raises(Misconfigured, match=said):
            resolved(of(tmp_path / "*.parquet", schema))
        assert resolved(of(tmp_path / "*.parquet", schema, if_missing="null"))
    parquet(tmp_path / "c.parquet", FOO=[1], foo=[1])
    with pytest.raises(Misconfigured, check=of_kind("sources.parquet_columns_alike", by_name="FOO", each="foo")):
        resolved(of(tmp_path / "*.parquet"))
    put(tmp_path / "c.parquet", "id,foo\n")
    with pytest.raises(Misconfigured, check=of_kind("sources.parquet_unreadable")):
        resolved(of(tmp_path / "*.parquet"))
    put(tmp_path / "c.parquet", "")
    with pytest.raises(Misconfigured, check=of_kind("sources.parquet_empty")):
        resolved(of(tmp_path / "*.parquet", "id BIGINT"))
