"""`weir.open`: what a notebook gets, what it keeps, and what it is told where it gets nothing."""

import gc
import shutil
import subprocess
import sys
import threading
from datetime import UTC, date, datetime

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed

import weir
from weir.dataflow import Dataflow, sink
from weir.errors import Misconfigured, ResultUnavailable, Retryable
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import LeaseRow, PublicationRow, ResultRow, RunRow
from weir.ledger.results import transition
from weir.reading.availability import Unreadable
from weir.retention.release import delete_released, release

RUN = "ladder@20130101T000000Z"


def rows_of(world, stage):
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.stage == stage, ResultRow.is_current).order_by(ResultRow.subtask)
        return list(session.scalars(query))


def leased(world):
    with world.ledger.transaction() as session:
        query = select(ResultRow.stage).join(LeaseRow, LeaseRow.result == ResultRow.id)
        return set(session.scalars(query))


def press(world):
    """Release all that may go, as where a disk is full."""
    release(world.services, "ladder", is_reclaiming=True)
    return {each.stage for each in delete_released(world.services, "ladder")}


# What is given


def test_the_published_rows_of_the_newest_run_are_given(done):
    done.content["report"] = "of the second day"
    done.run(2)
    with weir.open("ladder") as delays:
        assert (delays.stage, delays.run, delays.version) == ("delays", "ladder@20130102T000000Z", 1)
        assert delays.run_id == "scheduled__2013-01-02"
        table = delays.arrow()
        assert table.column_names == ["k", "content", "at"]
        assert table.num_rows == delays.rows == 2
        assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"
        second = table["content"][0].as_py()
    with weir.open("ladder", date(2013, 1, 1)) as first:
        assert first.arrow()["content"][0].as_py() != second


def test_all_partitions_of_a_stage_are_given_without_weirs_own_column(done):
    with weir.open("ladder", stage="joined") as joined:
        assert [each.subtask for each in joined.partitions] == [0, 1]
        assert joined.version is None
        table = joined.arrow()
        assert table.column_names == ["k", "content", "at"]
        assert table.num_rows == joined.rows == 4
        assert joined.bytes == sum(each.bytes for each in joined.partitions)
        assert joined.arrow(["content"]).column_names == ["content"]
        assert {each.attempt for each in joined.partitions} == {row.attempt for row in rows_of(done, "joined")}
        assert len(joined.files) == 2
        assert "4 rows" in repr(joined)


def test_an_old_timestamp_of_spark_beyond_the_range_of_nanoseconds_is_what_it_was(done):
    done.content["report"] = "late"
    done.airflow.engine.later = 32_503_680_000_000_000
    done.airflow.engine.writing = {"use_deprecated_int96_timestamps": True}
    done.run(2)
    with weir.open("ladder") as delays:
        assert delays.arrow()["at"][0].as_py().year == 3000


def test_the_digest_is_of_all_rows_together(done):
    with weir.open("ladder", stage="joined") as joined:
        first, second = (each.digest for each in joined.partitions)
        assert first != second
        xor = int(first.split(":")[3], 16) ^ int(second.split(":")[3], 16)
        assert joined.digest == f"k:bigint:4:{xor:016x}:2:4"


@pytest.mark.parametrize(
    "named",
    [
        RUN,
        "scheduled__2013-01-01",
        "20130101T000000Z",
        "2013-01-01",
        date(2013, 1, 1),
        datetime(2013, 1, 1, 15, tzinfo=UTC),
        "2013-01-01T15:00:00+00:00",
    ],
)
def test_a_run_is_named_by_its_ids_or_by_a_time_of_its_interval(done, named):
    done.run(2)
    with weir.open("ladder", named) as delays:
        assert delays.run == RUN


def test_no_with_statement_is_needed(done):
    assert weir.open("ladder").arrow().num_rows == 2


def test_importing_weir_imports_none_of_it():
    said = "import weir, sys; print(sorted({'pyarrow', 'sqlalchemy', 'weir.reading'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        weir.opne  # noqa: B018


# What is kept


def test_what_is_open_is_not_released(done):
    with weir.open("ladder", stage="joined") as joined:
        assert leased(done) == {"joined"}
        assert "joined" not in press(done)
        assert joined.arrow().num_rows == 4
    assert leased(done) == set()
    assert press(done) == {"joined"}


def test_what_is_forgotten_is_closed(done):
    opened = weir.open("ladder", stage="joined")
    assert leased(done) == {"joined"}
    holder = opened._lease.holder
    del opened
    gc.collect()
    for thread in threading.enumerate():
        if holder in thread.name:
            thread.join(30)
    assert leased(done) == set()


def test_what_was_closed_is_not_read(done):
    opened = weir.open("ladder")
    opened.close()
    opened.close()
    with pytest.raises(Misconfigured, check=of_kind("reading.lease_ended")):
        opened.arrow()
    with pytest.raises(Misconfigured, check=of_kind("reading.lease_ended")):
        opened.spark(None)


def test_nothing_is_claimed_where_nothing_is_given(done):
    shutil.rmtree(done.folder / "store" / rows_of(done, "delays")[0].folder)
    with pytest.raises(Unreadable):
        weir.open("ladder")
    assert leased(done) == set()


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "opened.spark(Frame())"])
def test_a_program_that_ends_gives_up_its_claims(done, end):
    program = f"""
import weir
class Frame:
    read = property(lambda self: self)
    options = schema = parquet = lambda self, *files, **options: self
opened = weir.open("ladder", stage="joined")
again = weir.open("ladder", stage="clean")
print("open", flush=True)
input()
{end}
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "open\n"
        assert leased(done) == {"joined", "clean"}
        process.communicate("\n", timeout=60)
    assert process.returncode in (0, 3)
    assert leased(done) == set()


class Reader:
    """What Spark's reader is asked for."""

    def __init__(self):
        self.asked = {}
        self.read = self

    def options(self, **options):
        self.asked["options"] = options
        return self

    def schema(self, ddl):
        self.asked["schema"] = ddl
        return self

    def parquet(self, *files):
        return {**self.asked, "files": files}


def test_spark_gets_exactly_the_recorded_files_and_columns_and_keeps_its_claim(done):
    opened = weir.open("ladder", stage="joined")
    frame, files = opened.spark(Reader()), opened.files
    assert frame["files"] == files
    assert all(file.startswith("file:") for file in files)
    assert frame["schema"] == "`k` long, `content` string, `at` timestamp"
    assert frame["options"]["ignoreMissingFiles"] == "false"
    end = opened._lease._claim.end
    del opened
    gc.collect()
    assert leased(done) == {"joined"}
    end()
    assert leased(done) == set()


# What is told instead


def told(*asked, **more):
    with pytest.raises((ResultUnavailable, Misconfigured)) as refused:
        weir.open(*asked, **more)
    return str(refused.value)


def brought_back(world, said):
    """Type what an error says, and let Airflow follow."""
    command = said.split("`")[1]
    typed(*[word.strip("'") for word in command.split()[1:]])
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()


def test_what_was_released_says_when_and_why_and_comes_back(done):
    press(done)
    said = told("ladder", stage="joined")
    assert "joined[0]" in said
    assert "released on 2026-01-01" in said
    assert "because every consumer has committed a result made from it" in said
    assert f"`weir plan {RUN} --lost 'joined[0]' --lost 'joined[1]' --apply` recomputes it" in said
    brought_back(done, said)
    with weir.open("ladder", stage="joined") as joined:
        assert joined.arrow().num_rows == 4


def test_what_is_gone_says_so_and_comes_back(done):
    shutil.rmtree(done.folder / "store" / rows_of(done, "joined")[0].folder)
    said = told("ladder", stage="joined")
    assert "missing, expected the manifest" in said
    assert f"`weir plan {RUN} --apply` recomputes it" in said
    brought_back(done, said)
    with weir.open("ladder", stage="joined") as joined:
        assert joined.arrow().num_rows == 4


def test_a_flipped_bit_is_found_by_reading_and_named(done):
    row = rows_of(done, "joined")[0]
    file = done.folder / "store" / row.folder / "part-0.zstd.parquet"
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    with weir.open("ladder", stage="joined") as joined, pytest.raises(Unreadable, match="expected SHA-256") as refused:
        joined.arrow()
    assert "`weir plan ladder@20130101T000000Z --lost 'joined[0]' --apply`" in str(refused.value)


def test_a_file_that_goes_while_it_is_open_is_a_loss(done):
    with weir.open("ladder", stage="joined") as joined:
        (done.folder / "store" / rows_of(done, "joined")[1].folder / "part-0.zstd.parquet").unlink()
        with pytest.raises(Unreadable, match=r"joined\[1\].*found no such file"):
            joined.arrow()


def test_stale_rows_are_not_given(done):
    """A result whose input has been made again with another content."""
    done.content["joined"] = "other"
    name = "scheduled__2013-01-01"
    done.airflow.clear_by_hand(name, "joined", 0)
    done.airflow.step(done.airflow.task(name, "joined", 0))
    said = told("ladder", stage="totals")
    assert "stale, an input of its producer has changed since" in said
    assert "computes it now: try again when that has ended" in said
    with weir.open("ladder") as delays:
        assert delays.version == 1  # what was published stays what readers see
    done.airflow.run_until_quiet()
    with weir.open("ladder") as delays:
        assert delays.version == 2


def test_rows_in_doubt_are_not_given(done):
    with done.ledger.transaction("ladder") as session:
        row = session.get_one(ResultRow, rows_of(done, "joined")[0].id)
        transition(session, row, PartitionState.QUARANTINED, "another content", done.airflow.time)
    said = told("ladder", stage="joined")
    assert "its content is in doubt; it was quarantined on 2026-01-01" in said
    assert "because another content" in said


def test_what_was_found_damaged_is_not_given(done):
    with done.ledger.transaction("ladder") as session:
        row = session.get_one(ResultRow, rows_of(done, "delays")[0].id)
        transition(session, row, PartitionState.LOST, "damaged: page 3", done.airflow.time)
        row.fault = "damaged"
    assert "damaged, it was found lost on 2026-01-01 " in told("ladder")


def test_what_was_not_made_so_far_is_awaited_or_asked_for(world):
    name = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(name, "raw-clean", 0))
    said = told("ladder", stage="clean")
    assert "never committed, its producer has committed nothing" in said
    assert "run ladder@20130101T000000Z has not published delays" in told("ladder")


def test_a_version_that_was_removed_says_so(done):
    with done.ledger.transaction("ladder") as session:
        session.scalars(select(PublicationRow)).one().expired_at = done.airflow.time
    assert "version 1 of delays" in (said := told("ladder"))
    assert "keep_published" in said


def test_names_that_fit_nothing_are_refused_with_those_that_are_known(done):
    assert "knows no dataflow flights: it knows ladder" in told("flights")
    assert f"has no run 2014-01-01: it knows {RUN} (scheduled__2013-01-01)" in told("ladder", "2014-01-01")
    assert "has no run yesterday" in told("ladder", "yesterday")
    assert "has no stage other; it writes clean, weather, joined" in told("ladder", stage="other")
    assert "raw are never written" in told("ladder", stage="raw")
    with (
        weir.open("ladder") as delays,
        pytest.raises(
            Misconfigured, check=of_kind("reading.column_unknown", names=["k", "content", "at"], unknown="x")
        ),
    ):
        delays.arrow(["x"])


def test_several_runs_of_one_day_are_told_apart(done):
    done.run(2)
    with done.ledger.transaction("ladder") as session:
        first, second = session.scalars(select(RunRow)).all()
        second.interval_start = first.interval_start
    assert "has several runs of 2013-01-01: name one of" in told("ladder", "2013-01-01")


def test_a_dataflow_of_two_sinks_asks_which_one(world):
    world.airflow.flow = Dataflow("ladder", [*world.airflow.flow.stages, sink("weather", "forecast")])
    world.run()
    assert "publishes delays, forecast: say which stage, stage=... out of clean, weather" in told("ladder")
    assert weir.open("ladder", stage="forecast").rows == 2


def test_a_store_that_is_not_there_loses_nothing(done):
    shutil.move(done.folder / "store", done.folder / "elsewhere")
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        weir.open("ladder")
    shutil.move(done.folder / "elsewhere", done.folder / "store")
    assert weir.open("ladder").arrow().num_rows == 2
