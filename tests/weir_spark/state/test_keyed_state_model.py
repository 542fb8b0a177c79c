"""Keyed state against a dictionary: random epochs leave what the same changes make of a Python dictionary."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pyspark.sql.types import IntegerType, StructType
from tests.builders.state_chain import StateChain

from weir.dataflow.state import keyed_state
from weir.topology.partitions import Layout
from weir_spark.results.digest import digest_of
from weir_spark.results.writer import key_group
from weir_spark.state import reader as state_reader
from weir_spark.state import writer as state_writer
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

FIRST = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = "a STRING, b INT, n BIGINT, x DOUBLE, m MAP<STRING, ARRAY<INT>>, s STRUCT<at: TIMESTAMP, d: DECIMAL(9, 2)>"
VALUES = ("n", "x", "m", "s")
TEXTS = (None, "", "é", "a", "b`c")
NUMBERS = (None, 0, 1, -7)


def epoch_of(day: int) -> str:
    return (FIRST + timedelta(days=day)).strftime("%Y%m%dT%H%M%SZ")


class Subject:
    """One state, on Spark and as a dictionary from keys to (values, day of the last update)."""

    def __init__(self, session, store, *, ttl_days=None, incremental=True):
        ttl = None if ttl_days is None else f"{ttl_days} days"
        self.chain = StateChain(
            store, keyed_state("h", key=("a", "b"), schema=SCHEMA, ttl=ttl, incremental=incremental), 16
        )
        self.session, self.ttl_days = session, ttl_days
        self.schema = session.createDataFrame([], SCHEMA).schema
        self.model: dict[tuple, tuple[tuple, int]] = {}
        self.written: list[int] = []

    def visible(self, day):
        return {
            key: found for key, found in self.model.items() if self.ttl_days is None or found[1] + self.ttl_days > day
        }

    def epoch(self, day, parallelism, steps):
        """Let each subtask of a stage make its share of the changes; the dictionary takes all of them."""
        before, asked = self.visible(day), []
        for kind, rows, options in steps:
            asked.append((self._frame(rows), kind, options))
        group = key_group(self.schema, "h", Layout(("a", "b"), 16))
        reports = {}
        for mine in self.chain.key_groups(parallelism):
            state = KeyedState(StoredState(self.session, self.chain.read(epoch_of(day), mine), mine))
            for frame, kind, options in asked:
                own = frame.where(group.between(*mine))
                state.delete(own) if kind == "delete" else state.upsert(own, **options)
            reports[mine] = write_state(state, "h", self.chain.output(epoch_of(day)), self.chain.store)
        self.chain.go_on(epoch_of(day), reports)
        self.written.append(self._apply(before, day, steps))
        return reports

    def _apply(self, before, day, steps):
        """The later change of a key wins; returns how many rows are to be written."""
        asked = {}
        for kind, rows, options in steps:
            named = {}
            for row in rows:
                key, values, order = (row["a"], row["b"]), tuple(row[name] for name in VALUES), row["by"]
                if kind == "delete" or key not in named or named[key][1] < order:
                    named[key] = (values, order)
            asked.update({key: (kind, values, options) for key, (values, _) in named.items()})
        changed = 0
        self.model = dict(before)
        for key, (kind, values, options) in asked.items():
            if kind == "delete":
                changed += self.model.pop(key, None) is not None
            elif not (options.get("only_changed") and key in before and before[key][0] == values):
                self.model[key] = (values, day)
                changed += 1
        return changed

    def _frame(self, rows):
        schema = StructType([*self.schema.fields]).add("by", IntegerType())
        return self.session.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)

    def check(self, day, reports):
        """What is visible in the next epoch, whoever reads it, and how much was written for it."""
        expected = {key: values for key, (values, _) in self.visible(day + 1).items()}
        halves = [
            KeyedState(StoredState(self.session, self.chain.read(epoch_of(day + 1), mine), mine)).read()
            for mine in self.chain.key_groups(2)
        ]
        rows = halves[0].unionByName(halves[1]).collect()
        assert {(row["a"], row["b"]): plain(row) for row in rows} == expected
        assert len(rows) == len(expected)
        assert sum(report.state.changed for report in reports.values()) == self.written[-1]

    def check_digests(self, day, reports):
        """That they are those of all rows, which are read for that."""
        for mine, report in reports.items():
            stored = StoredState(self.session, self.chain.read(epoch_of(day), mine), mine)
            measured = digest_of(stored.rows().select(*stored.counted.fieldNames()))
            assert report.digest == replace(measured, schema=report.digest.schema)
            assert sum(each.rows for each in report.state.tallies) == measured.rows
        assert sum(report.digest.rows for report in reports.values()) == len(self.visible(day))


def plain(row):
    given = row["s"]
    return (row["n"], row["x"], row["m"], None if given is None else (given["at"].replace(tzinfo=UTC), given["d"]))


def a_row(chance, order=0):
    values = {
        "n": chance.choice(NUMBERS),
        "x": chance.choice((None, 0.5, -1.25)),
        "m": chance.choice((None, {}, {"k": [1, None]}, {"k": [1, 2], "l": []})),
        "s": chance.choice((None, (FIRST, Decimal("1.50")), (FIRST, None))),
    }
    return {"a": chance.choice(TEXTS), "b": chance.choice(NUMBERS), "by": order, **values}


def some_steps(chance):
    steps = []
    for _ in range(chance.choice((0, 1, 1, 2, 2))):
        rows = [a_row(chance, order) for order in range(chance.choice((0, 4, 7, 9)))]
        kind = chance.choice(("delete", "upsert", "upsert"))
        options = {"only_changed": chance.random() < 0.5}
        if kind == "upsert" and chance.random() < 0.5:
            options["order_by"] = "by"
        else:
            rows = list({(row["a"], row["b"]): row for row in rows}.values())
        steps.append((kind, rows, options))
    return steps


@pytest.mark.spark
@pytest.mark.parametrize(
    ("seed", "ttl_days", "settings"),
    [
        (191, 2, {}),
        pytest.param(253, 3, {"OBSERVED_UPDATES": 1}, marks=pytest.mark.soak),
        pytest.param(244, None, {"BROADCAST_ROWS": 1, "ROWS_A_FILE": 3}, marks=pytest.mark.soak),
    ],
    ids=["ttl", "many updates", "many changes"],
)
def test_random_epochs_leave_what_a_dictionary_has(spark, store, monkeypatch, seed, ttl_days, settings):
    chance = random.Random(seed)
    for name, value in settings.items():
        for module in (state_reader, state_writer):
            monkeypatch.setattr(module, name, value, raising=False)
    subject = Subject(spark, store, ttl_days=ttl_days)
    parallelism = 1
    for day in range(4):
        if day in (1, 3):
            parallelism = 3 - parallelism
        steps = (
            some_steps(chance)
            if day
            else [("upsert", [a_row(chance, order) for order in range(15)], {"order_by": "by"})]
        )
        reports = subject.epoch(day, parallelism, steps)
        subject.check(day, reports)
        assert all(len(report.files) <= 1 or "ROWS_A_FILE" in settings for report in reports.values())
    subject.check_digests(day, reports)
    assert sum(subject.written) > 10


@pytest.mark.spark
def test_a_state_that_is_written_whole_is_one_file_of_all_rows(spark, store):
    chance = random.Random(5)
    subject = Subject(spark, store, ttl_days=3, incremental=False)
    for day in range(4):
        reports = subject.epoch(day, 1, [("upsert", [a_row(chance)], {}), *some_steps(chance)])
        (report,) = reports.values()
        assert report.state.is_whole
        assert sum(file.rows for file in report.files) == len(subject.visible(day)) == report.digest.rows
        (content,) = subject.chain.partitions.values()
        assert content.files[0].epoch == epoch_of(day)
    stored = StoredState(spark, subject.chain.read(epoch_of(4)))
    expected = {key: values for key, (values, _) in subject.visible(4).items()}
    assert {(row["a"], row["b"]): plain(row) for row in stored.rows().collect()} == expected


@pytest.mark.spark
def test_equal_contents_have_equal_digests_whatever_their_files(spark, store):
    chance = random.Random(6)
    rows = list({(row["a"], row["b"]): row for row in (a_row(chance) for _ in range(12))}.values())
    one, other = Subject(spark, store), Subject(spark, store)
    first = one.epoch(0, 1, [("upsert", rows, {})])
    other.epoch(0, 1, [("upsert", [{**row, "n": 5} for row in rows[:7]], {})])
    other.epoch(1, 1, [("delete", rows[:2], {}), ("upsert", rows[1:], {})])
    last = other.epoch(2, 1, [("upsert", rows, {"only_changed": True})])
    assert [report.digest for report in first.values()] == [report.digest for report in last.values()]
    assert other.written[-1] == 1
    assert next(iter(last.values())).digest == digest_of(
        StoredState(spark, one.chain.read(epoch_of(1))).rows().select(*one.schema.names)
    )


def all_keys(value, *, keys=40):
    return [{"a": "a", "b": key, "by": 0, "n": value, "x": None, "m": None, "s": None} for key in range(keys)]


@pytest.mark.spark
def test_all_of_a_state_is_written_where_that_is_less_and_its_digest_is_that_of_the_changes(spark, store):
    """Rows that replace all, few of many, many that change nothing, and deletions of nearly all."""
    days = [
        ("upsert", all_keys(0), {}, None),
        ("upsert", all_keys(1), {}, True),
        ("upsert", all_keys(2, keys=3), {}, False),
        ("upsert", all_keys(1), {"only_changed": True}, False),
        ("delete", all_keys(0, keys=35), {}, True),
        ("upsert", all_keys(5, keys=80)[40:], {}, False),
    ]
    auto, changes = (Subject(spark, store, ttl_days=6, incremental=each) for each in ("auto", True))
    for day, (kind, rows, options, is_whole) in enumerate(days):
        mine, others = (each.epoch(day, 1, [(kind, rows, options)]) for each in (auto, changes))
        auto.check(day, mine)
        (report,), (other,) = mine.values(), others.values()
        assert (report.digest, report.state.tallies) == (other.digest, other.state.tallies)
        assert report.state.is_whole is bool(is_whole)
        assert (report.state.estimate and report.state.estimate.is_full) is is_whole
        (content,) = auto.chain.partitions.values()
        assert not is_whole or {each.epoch for each in content.files} <= {epoch_of(day)}
