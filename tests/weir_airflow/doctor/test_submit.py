"""The checks of a connection to spark-submit."""

from __future__ import annotations

import json

import pytest

from weir.doctor.examination import Status, examine


def checked(**fields):
    from airflow.sdk import Connection

    from weir_airflow.doctor.submit import submit_checks

    extra = json.dumps(fields.pop("extra", {}))
    connection = Connection(conn_id="spark_default", conn_type="spark", extra=extra, **fields)
    return {each.name: each for each in examine([submit_checks("spark", connection)])}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a spark-submit first on the PATH that prints this text."""

    def make(text, code=0):
        path = tmp_path / "bin" / "spark-submit"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        return path

    return make


def test_the_spark_submit_of_pyspark_is_ok_also_off_the_path(monkeypatch):
    found = checked(host="local[2]")
    assert {each.status for each in found.values()} == {Status.OK}
    assert "spark-submit, Spark 4." in found["spark-submit"].found


def test_a_spark_submit_of_another_version_is_a_problem(program):
    path = program("version 3.5.1")
    found = checked(host="local[2]")["spark-submit"]
    assert found.status is Status.PROBLEM
    assert f"{path} is of Spark 3.5.1" in found.found


def test_a_spark_submit_that_fails_says_why(program):
    program("JAVA_HOME is not set", 1)
    found = checked(host="local[2]")["spark-submit"]
    assert found.status is Status.PROBLEM
    assert "JAVA_HOME is not set" in found.found


def test_a_program_that_is_not_on_the_path_is_named():
    found = checked(host="local[2]", extra={"spark-binary": "spark9-submit"})["spark-submit"]
    assert found.status is Status.PROBLEM
    assert "PATH has no spark9-submit" in found.found


def test_the_master_is_named_and_not_asked(program):
    program("version 4.3.0")
    assert checked(host="yarn")["master"].found == "yarn"
    assert checked(host="spark://127.0.0.1", port=1)["master"].found == "spark://127.0.0.1:1"


def test_a_connection_without_a_master_is_a_problem(program):
    program("version 4.3.0")
    found = checked()["master"]
    assert found.status is Status.PROBLEM
    assert "has no host" in found.found


def test_a_connection_to_yarn_needs_the_settings_of_the_cluster(tmp_path, monkeypatch):
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    found = checked(host="yarn")
    assert found["HADOOP_CONF_DIR"].status is Status.PROBLEM
    assert found["HADOOP_CONF_DIR"].found == f"{tmp_path} has no yarn-site.xml"
    monkeypatch.delenv("HADOOP_CONF_DIR")
    assert checked(host="yarn")["HADOOP_CONF_DIR"].status is Status.PROBLEM


@pytest.mark.parametrize(
    ("settings", "uploaded"),
    [
        ("", "Spark's jars"),
        ("#spark.yarn.archive hdfs:///spark.zip", "Spark's jars"),
        ("spark.yarn.archive /spark.zip", "/spark.zip"),
        ("spark.yarn.jars file:/spark/jars/*", "file:/spark/jars/*"),
        ("spark.yarn.jars=local:/spark/jars/*", ""),
        ("spark.yarn.archive: s3a://bucket/spark.zip", ""),
        ("spark.yarn.archive hdfs:///spark.zip\nspark.yarn.dist.archives hdfs:///e.tar.gz#e", ""),
        (
            "spark.yarn.archive hdfs:///spark.zip\nspark.yarn.dist.archives hdfs:///e.zip#e,envs/f.tar.gz#f",
            "envs/f.tar.gz#f",
        ),
    ],
)
def test_what_each_submission_to_yarn_would_upload_is_a_warning(tmp_path, monkeypatch, settings, uploaded):
    from airflow.sdk import Connection

    from weir_airflow.doctor.submit import yarn_checks

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(settings)
    checks = yarn_checks("spark", Connection(conn_id="spark_default", conn_type="spark", host="yarn"))
    [found] = examine([[each for each in checks if each.item.name == "uploads"]])
    assert found.status is (Status.WARNING if uploaded else Status.OK)
    assert not uploaded or found.found == uploaded
