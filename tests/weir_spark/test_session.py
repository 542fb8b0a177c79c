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
