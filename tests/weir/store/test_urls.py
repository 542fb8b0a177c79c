"""How the place of a store is spelt by people, and what Weir and Spark make of it."""

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.store.store import Store
from weir.store.urls import canonical, spark_root

AZURE = "abfss://box@lake.dfs.core.windows.net/weir"


@pytest.mark.parametrize(
    ("url", "one", "spark"),
    [
        ("s3://bucket/weir", "s3://bucket/weir", "s3a://bucket/weir"),
        ("s3a://bucket/weir/", "s3://bucket/weir", "s3a://bucket/weir"),
        ("s3n://bucket", "s3://bucket", "s3a://bucket"),
        ("gs://bucket/weir", "gs://bucket/weir", "gs://bucket/weir"),
        ("gcs://bucket/weir", "gs://bucket/weir", "gs://bucket/weir"),
        (AZURE, AZURE, AZURE),
        ("abfs://box@lake.dfs.core.windows.net/weir", AZURE, AZURE),
        ("wasbs://box@lake.blob.core.windows.net/weir", AZURE, AZURE),
        ("hdfs://namenode:8020/weir/", "hdfs://namenode:8020/weir", "hdfs://namenode:8020/weir"),
        ("webhdfs://namenode:9870/weir", "hdfs://namenode:8020/weir", "hdfs://namenode:8020/weir"),
        ("memory://root/weir", "memory://root/weir", "memory://root/weir"),
    ],
)
def test_each_place_has_one_spelling_and_one_for_spark(url, one, spark):
    assert canonical(url, {}) == one
    assert spark_root(one) == spark


@pytest.mark.parametrize("url", ["az://box/weir", "abfs://box/weir", "abfss://box/weir/"])
def test_azures_short_spelling_needs_the_account(url):
    assert canonical(url, {"account_name": "lake"}) == AZURE
    with pytest.raises(
        Misconfigured, check=of_kind("store.no_storage_account", azure_host=".dfs.core.windows.net", container="box")
    ):
        canonical(url, {})


@pytest.mark.parametrize("scheme", ["http", "sftp", "dbfs", "no-such-scheme"])
def test_a_file_system_without_an_exclusive_create_is_refused_with_what_to_use(scheme):
    with pytest.raises(Misconfigured, check=of_kind("store.file_system_unknown", scheme=scheme)):
        Store.open(f"{scheme}://place/weir")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://key:hush@bucket/weir", of_kind("store.password_in_url")),
        ("s3:///weir", of_kind("store.no_bucket")),
        ("s3://bucket/20*", of_kind("store.path_is_a_pattern")),
        ("s3://bucket/a//b", of_kind("store.path_not_plain")),
        ("s3://bucket/../b", of_kind("store.path_not_plain")),
    ],
)
def test_a_place_that_spark_could_not_read_or_that_gives_a_secret_away_is_refused(url, says):
    with pytest.raises(Misconfigured, check=says) as refused:
        Store.open(url)
    assert "hush" not in str(refused.value)


def test_spark_gets_the_whole_path():
    assert Store.open("s3://bucket/weir").spark_url("flow/epoch") == "s3a://bucket/weir/flow/epoch"
    assert Store.open("s3://bucket").spark_url("") == "s3a://bucket"
