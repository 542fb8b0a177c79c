from __future__ import annotations

import re
import sys

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir_spark.session import FORCED, configure, packages

pytestmark = pytest.mark.spark


def test_a_session_has_the_settings_of_weir_and_of_its_region(session_of) -> None:
    session = session_of()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    recorded = configure(session, {"spark.sql.shuffle.partitions": "7"})
    assert {key: session.conf.get(key) for key in FORCED} == dict(FORCED)
    assert session.conf.get("spark.sql.shuffle.partitions") == "7"
    assert recorded == {
        **FORCED,
        "spark.sql.shuffle.partitions": "7",
        "spark.version": session.version,
        "python.version": "{}.{}".format(*sys.version_info),
    }
    assert re.fullmatch("[0-9a-f]{16}", packages())


@pytest.fixture
def write_library(tmp_path, monkeypatch):
    """Write the files that tell of a distribution, as an installer does; answers the fingerprint of all."""
    info = tmp_path / "of_shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of_shop\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(record, origin=None, archived=()):
        (info / "RECORD").write_text(record)
        if origin:
            (info / "direct_url.json").write_text(origin)
        packages.cache_clear()
        return packages(frozenset(archived))

    yield write
    packages.cache_clear()


OWN = "of_shop.py,sha256=a,9\n"
FROM_GIT = '{"url": "https://git.test/of_shop", "vcs_info": {"vcs": "git", "commit_id": "1"}}'


def test_a_library_of_an_index_is_known_by_its_version(write_library):
    assert write_library(OWN) == write_library("of_shop.py,sha256=b,9\n")


def test_a_library_from_a_repository_is_another_one_with_other_files(write_library):
    before = write_library(OWN, FROM_GIT)
    assert write_library("of_shop.py,sha256=b,9\n") != before
    assert write_library(f"{OWN}rates.csv,sha256=c,9\n") != before
    assert write_library(OWN, FROM_GIT.replace("1", "2")) == before


def test_what_a_library_has_in_the_archive_is_known_by_the_code(write_library):
    before = write_library(OWN, FROM_GIT, archived=["of_shop"])
    assert write_library("of_shop.py,sha256=b,9\nof_shop/tables.py,sha256=c,9\n", archived=["of_shop"]) == before
    assert write_library(f"{OWN}rates.py,sha256=c,9\n", archived=["of_shop"]) != before


def test_where_and_how_a_library_was_installed_does_not_count(write_library):
    before = write_library(OWN, FROM_GIT)
    by_another = (
        "../../bin/of_shop,sha256=d,9\n/usr/bin/of_shop,sha256=d,9\n__pycache__/of_shop.cpython-311.pyc,,\n"
        "of_shop-1.0.dist-info/INSTALLER,sha256=e,2\n"
    )
    assert write_library(f"{by_another}{OWN}") == before


def test_a_region_cannot_change_what_weir_forces(session_of) -> None:
    session = session_of()
    with pytest.raises(
        Misconfigured,
        check=of_kind("session.setting_forced", forced="true", key="spark.sql.ansi.enabled", value="false"),
    ):
        configure(session, {"spark.sql.ansi.enabled": "false"})
    configure(session, {"spark.sql.ansi.enabled": "TRUE"})


@pytest.mark.parametrize(("key", "value"), [("spark.executor.memory", "8g"), ("spark.sql.shuffle.partitions", "many")])
def test_a_setting_that_no_session_takes_is_named(session_of, key, value) -> None:
    with pytest.raises(Misconfigured, check=of_kind("session.setting_refused", key=key, value=value)):
        configure(session_of(), {key: value})


def test_s3a_gives_up_within_minutes_unless_a_region_or_the_start_of_spark_says_otherwise(session_of) -> None:
    session = session_of()
    assert session.conf.get("fs.s3a.retry.throttle.limit") == "4"
    configure(session, {"fs.s3a.retry.throttle.limit": "7"})
    assert session.conf.get("fs.s3a.retry.throttle.limit") == "7"
    session.conf.unset("fs.s3a.retry.throttle.limit")
    session.conf.set("spark.hadoop.fs.s3a.retry.throttle.limit", "9")  # as one has it from spark-defaults.conf
    recorded = configure(session, {})
    assert session.conf.get("fs.s3a.retry.throttle.limit", None) is None
    assert not any("s3a" in name for name in recorded)
