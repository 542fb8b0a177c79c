import pytest

from weir.doctor import spark
from weir.doctor.examination import Status
from weir.doctor.table import READS_STORE, WRITES_STORE

S3 = "s3a://bucket/weir"


@pytest.mark.parametrize(
    ("finding", "status", "advice"),
    [
        (spark.version_finding("spark", "4.3.0", "4.3.0"), "ok", ""),
        (spark.version_finding("spark", "4.2.0", "4.3.0"), "problem", "'pyspark-client==4.2.0', never both"),
        (spark.version_finding("spark", "4.3.0", "4.2.0"), "ok", ""),
        (spark.version_finding("spark", "5.0.0", "4.3.0"), "problem", "pyspark[connect]==5.0.0"),
        (spark.java_finding("spark", "17.0.9"), "ok", ""),
        (spark.java_finding("spark", "11.0.2"), "problem", "JAVA_HOME"),
        (spark.java_finding("spark", "25.0.1"), "warning", "JAVA_HOME to a Java 17 or 21"),
    ],
)
def test_versions_that_do_not_fit_are_reported(finding, status, advice):
    assert finding.status is Status(status)
    assert advice in finding.mend


@pytest.mark.parametrize(
    ("there", "status"), [("3.11.7", "ok"), ("3.11.1", "ok"), ("3.12.0", "problem"), ("", "problem")]
)
def test_the_server_s_python_has_the_minor_version_of_ours(there, status):
    assert spark.python_finding("spark", there, "3.11.7", error="PYTHON_VERSION_MISMATCH").status is Status(status)


@pytest.mark.parametrize(
    ("error", "url", "advice"),
    [
        (
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            S3,
            "--packages org.apache.hadoop:hadoop-aws:3.4.2",
        ),
        ('No FileSystem for scheme "gs"', "gs://bucket", "file system of gs://"),
        ("java.net.UnknownHostException: cluster", "hdfs://cluster/weir", "HADOOP_CONF_DIR"),
        ("AccessControlException: Permission denied: user=spark", "hdfs://nn:8020/weir", "HADOOP_USER_NAME"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/data/weir", "file:///data/weir", "mount the store on every"),
        ("AccessDeniedException: 403 Forbidden", S3, "the right to read and write"),
        ("something else", S3, "server's log"),
    ],
)
def test_spark_s_error_about_the_store_selects_the_advice(error, url, advice):
    found = spark.store_error_finding(READS_STORE, f"{error}\n at java", url, "3.4.2")
    assert found.status is Status.PROBLEM
    assert error in found.found
    assert advice in found.mend


def test_files_that_one_side_does_not_see_are_a_problem():
    assert spark.store_finding(READS_STORE, "file:///x", 8, 8).status is Status.OK
    missing = spark.store_finding(WRITES_STORE, "file:///x", 8, 3)
    assert missing.status is Status.PROBLEM
    assert "every machine of Spark" in missing.mend
