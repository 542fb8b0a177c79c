"""What matches a pattern is listed, hidden, or refused by name."""

import uuid

import pytest
from botocore.exceptions import EndpointConnectionError
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of, options_of, running_s3
from tests.weir_spark.sources.conftest import looked_up

from weir.connections import Connection
from weir.errors import Misconfigured, Retryable
from weir_spark.sources.listing import listed, reaching


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def put(path, text="1,x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(pattern):
    return [each["path"] for each in listed(str(pattern), None, looked_up())]


def test_links_to_files_and_to_folders_are_followed(data, tmp_path):
    a = put(data / "a.csv")
    (data / "b.csv").symlink_to(put(tmp_path / "elsewhere/b.csv"))
    put(data / "real/c.csv")
    (data / "linked").symlink_to(put(tmp_path / "elsewhere/deep/d.csv").parent)
    assert found(data / "*.csv") == [str(a), str(data / "b.csv")]
    assert found(data / "**/*.csv") == [str(data / each) for each in ("a.csv", "b.csv", "linked/d.csv", "real/c.csv")]
    assert found(data / "linked/*.csv") == found(data / "l*/*") == [str(data / "linked/d.csv")]
    assert found(data / "b.csv") == [str(data / "b.csv")]


def test_what_a_files_sink_has_published_is_listed(data):
    version = put(data / ".t.versions/2013-01-01-1-x/part-0.parquet").parent
    put(version / "_weir.json")
    (data / "t").mkdir()
    (data / "t/day=2013-01-01").symlink_to("../.t.versions/2013-01-01-1-x")
    one = [str(data / "t/day=2013-01-01/part-0.parquet")]
    assert found(data / "t/day=*/*.parquet") == found(data / "t/**") == found(data / "**/*.parquet") == one


@pytest.mark.parametrize("target", ["a.csv", "../data/a.csv"])
def test_a_file_that_two_names_lead_to_is_refused(data, target):
    put(data / "a.csv")
    (data / "b.csv").symlink_to(target)
    with pytest.raises(Misconfigured, check=of_kind("sources.file_twice")):
        found(data / "*.csv")
    assert found(data / "b*.csv") == [str(data / "b.csv")]


def test_a_folder_that_two_names_lead_to_is_refused(data):
    put(data / "2013-01-01/a.csv")
    (data / "latest").symlink_to("2013-01-01")
    with pytest.raises(Misconfigured, check=of_kind("sources.file_twice")):
        found(data / "**/*.csv")


def test_links_that_lead_nowhere_or_back_are_refused(data):
    put(data / "a.csv")
    (data / "b.csv").symlink_to("gone.csv")
    with pytest.raises(
        Misconfigured, check=of_kind("sources.match_unreadable", what="a link to gone.csv, which is not there")
    ):
        found(data / "*.csv")
    (data / "b.csv").unlink()
    (data / "again").symlink_to(".")
    with pytest.raises(Misconfigured, check=of_kind("sources.link_without_end")):
        found(data / "**/*.csv")


@pytest.mark.parametrize("pattern", ["*.csv", "c.csv", "*"])
def test_a_folder_that_matches_is_refused_unless_its_files_match_too_or_there_are_none(data, pattern):
    put(data / "c.csv/part-0.csv")
    put(data / "c.csv/_SUCCESS")
    with pytest.raises(Misconfigured, check=of_kind("sources.match_is_a_folder")):
        found(data / pattern)
    assert found(data / f"{pattern}/*") == found(data / "**") == [str(data / "c.csv/part-0.csv")]
    (data / "c.csv/part-0.csv").unlink()
    assert found(data / pattern) == []


@pytest.mark.parametrize("name", ["2026-01-01T00:00:00.csv", "at:10/x[1].csv"])
def test_a_colon_that_hadoop_refuses_is_refused_before_a_try(data, name):
    put(data / name)
    with pytest.raises(Misconfigured, check=of_kind("sources.file_name_with_colon")):
        found(data / "**/*.csv")
    assert found(put(data / "at:11/x.csv")) == [str(data / "at:11/x.csv")]


def test_objects_that_stand_for_folders_are_left_out():
    with running_s3() as server:
        bucket, client = f"of-tests-{uuid.uuid4()}", client_of(server.url)
        server.make_bucket(bucket)
        lake = Connection(id="lake", kind="generic", extra={"storage_options": options_of(server.url)})

        def found_there(pattern):
            return [each["path"] for each in listed(f"s3://{bucket}/{pattern}", "lake", looked_up(lake))]

        for key in ("t/", "t/day=1/", "t/day=2_$folder$", "t/_x/d.csv", "t/_SUCCESS"):
            client.put_object(Bucket=bucket, Key=key, Body=b"")
        names = ["t/a b#c?%+[1]:ü.csv", "t/day=1/a.csv", "t/empty.csv", "t/e.csv/p.csv"]
        for key in names:
            client.put_object(Bucket=bucket, Key=key, Body=b"" if "empty" in key else b"1,x")
        with pytest.raises(Misconfigured, check=of_kind("sources.file_name_with_colon")):
            found_there("t/**")
        client.delete_object(Bucket=bucket, Key=names[0])
        assert found_there("t/**") == [f"s3://{bucket}/{key}" for key in sorted(names[1:])]
        assert found_there("t/**/*.csv") == found_there("t/**")
        for pattern in ("t/*", "t/*.csv", "t/day=*", "t/e.csv"):
            with pytest.raises(Misconfigured, check=of_kind("sources.match_is_a_folder")):
                found_there(pattern)
        assert found_there("none/*") == []
        with pytest.raises(Misconfigured, check=of_kind("sources.listing_refused")):
            listed("s3://no-such-bucket/*", "lake", looked_up(lake))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Misconfigured, PermissionError("The AWS Access Key Id you provided does not exist in our records.")),
        (Misconfigured, OSError("certificate verify failed: self-signed certificate")),
        (Retryable, EndpointConnectionError(endpoint_url="http://s3")),
        (Retryable, OSError(16, "Please reduce your request rate.")),
        (Retryable, FileNotFoundError("gone since it was found")),
        (ValueError, ValueError("not of a file system")),
    ],
)
def test_what_a_listing_meets_is_refused_or_may_pass(kind, error):
    with pytest.raises(kind), reaching("s3://lake/*"):
        raise error
