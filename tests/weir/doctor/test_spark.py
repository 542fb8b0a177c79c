import pytest

from weir.doctor import spark
from weir.doctor.examination import Status

STRICT = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
S3 = "s3a://bucket/weir"


def test_a_server_like_this_environment_is_ok():
    facts = spark.ServerFacts("4.3.0", java="17.0.9", hadoop="3.4.2", settings=STRICT)
    assert {each.status for each in spark.judge_server("spark", facts, "4.3.0")} == {Status.OK}


@pytest.mark.parametrize(
    ("facts", "name", "status", "advice"),
    [
        (spark.ServerFacts("4.2.0"), "version", "problem", "pyspark[connect]==4.2.0"),
        (spark.ServerFacts("4.3.0", java="11.0.2"), "Java", "problem", "JAVA_HOME"),
        (spark.ServerFacts("4.3.0", java="25.0.1"), "Java", "warning", "17 or 21"),
        (
            spark.ServerFacts("4.3.0", settings={**STRICT, "spark.sql.files.ignoreMissingFiles": "true"}),
            "missing and corrupt files",
            "warning",
            "--conf spark.sql.files.ignoreMissingFiles=false",
        ),
    ],
)
def test_what_does_not_fit_at_a_server_is_found(facts, name, status, advice):
    found = {each.name: each for each in spark.judge_server("spark", facts, "4.3.0")}
    assert found[name].status is Status(status)
    assert advice in found[name].mend


@pytest.mark.parametrize(
    ("there", "status"), [("3.11.7", "ok"), ("3.11.1", "ok"), ("3.12.0", "problem"), ("", "problem")]
)
def test_the_server_s_python_has_the_minor_version_of_ours(there, status):
    assert spark.judge_python("spark", there, "3.11.7", said="PYTHON_VERSION_MISMATCH").status is Status(status)


@pytest.mark.parametrize(
    ("said", "url", "advice"),
    [
        (
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            S3,
            "--packages org.apache.hadoop:hadoop-aws:3.4.2",
        ),
        ('No FileSystem for scheme "gs"', "gs://bucket", "file system of gs://"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/data/weir", "file:///data/weir", "mount the store on every"),
        ("AccessDeniedException: 403 Forbidden", S3, "the right to read and write"),
        ("something else", S3, "server's log"),
    ],
)
def test_what_spark_says_of_the_store_decides_the_advice(said, url, advice):
    found = spark.judge_trouble("spark", "reads the store", f"{said}\n at java", url, "3.4.2")
    assert found.status is Status.PROBLEM
    assert said in found.found
    assert advice in found.mend


def test_files_that_spark_does_not_see_are_missed():
    assert spark.judge_reading("spark", "file:///x", 8, 8).status is Status.OK
    assert spark.judge_reading("spark", "file:///x", 8, 5).status is Status.PROBLEM
    assert spark.judge_writing("spark", "file:///x", 8, 8).status is Status.OK
    assert "every machine of Spark" in spark.judge_writing("spark", "file:///x", 8, 3).mend


def test_a_folder_is_no_store_of_a_cluster_unless_it_is_shared():
    assert list(spark.judge_scope("spark", "local[4]", "client", "file:///x")) == []
    assert list(spark.judge_scope("spark", "spark://m:7077", "client", "s3a://b/x")) == []
    [client] = spark.judge_scope("spark", "spark://m:7077", "client", "file:///x")
    [cluster] = spark.judge_scope("spark", "yarn", "cluster", "file:///x")
    assert (client.status, cluster.status) == (Status.WARNING, Status.WARNING)
    assert "the driver and every executor" in cluster.expected


@pytest.mark.parametrize(("version", "status"), [("4.3.0", "ok"), ("4.1.0", "problem"), (None, "unknown")])
def test_spark_submit_has_the_version_of_pyspark(version, status):
    assert spark.judge_submit("spark", version, "4.3.0", "/bin/spark-submit").status is Status(status)
