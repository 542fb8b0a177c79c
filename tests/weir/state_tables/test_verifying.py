"""Rows of a state's table that somebody has changed by hand are found, and written again."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.weir.reading.state_world import epoch
from tests.weir.state_tables.test_following import (  # noqa: F401  fixtures
    AWAY,
    KEYS,
    correct,
    database,
    run,
    settle,
    table,
    verified,
)

from weir.dataflow.retention_settings import RetentionSettings
from weir.integrity.scrub import scrub_dataflow
from weir.state_tables import postgres as module

DAYS = (1, 2, 3)
EDIT = "update {t}_rows set n = n + 1 where _weir_segment = 3; commit"
WRITTEN = {"All of its checkpoints were written again"}


@pytest.fixture
def filled(table):  # noqa: F811
    for day in DAYS:
        run(table, day)
    return table


def whole(table):  # noqa: F811
    return [table.rows(), *(table.at(day) for day in DAYS)]


@pytest.mark.parametrize(
    ("edit", "differing"),
    [
        ("update {t}_rows set n = n + 1 where _weir_segment = 1 and tail = 'N2'", {1}),
        ("delete from {t}_rows where _weir_segment = 3", {2}),
        ("update {t}_rows set tail = 'N99' where _weir_segment = 3 and n = (select max(n) from {t})", {1}),
        ("insert into {t}_rows select 'N77', 1, false, null, 'another', 1", {1}),
        ("update {t}_rows set _weir_deleted = true where _weir_segment = 1", set(range(1, 9))),
    ],
    ids=["value", "lost", "key", "more", "hidden"],
)
def test_rows_that_somebody_has_changed_are_written_again(filled, monkeypatch, edit, differing):
    before, answers = whole(filled), []
    filled.query(edit + "; commit")
    edited = whole(filled)
    assert edited != before
    usual = module.OpenTable._execute

    def executing(opened, statement, **values):
        usual(opened, statement, **values)
        answers.append(filled.rows())

    with monkeypatch.context() as polled:
        polled.setattr(module.OpenTable, "_execute", executing)
        found = verified(filled)
    assert {mend for _, mend in found} == WRITTEN
    assert {int(detail.split()[0]) for detail, _ in found} <= differing
    assert all(each == edited[0] for each in answers)
    assert whole(filled) == before
    assert verified(filled) == []
    settle(filled)
    assert whole(filled) == before


def test_the_checkpoint_of_a_run_is_compared_alone(filled):
    before = whole(filled)
    filled.query(EDIT)
    assert verified(filled, 1, 2) == []
    assert whole(filled) != before
    assert [detail.partition(" had ")[2] for detail, _ in verified(filled, 3)] == [
        f"other rows than checkpoint 3 of {epoch(3)}"
    ]
    assert whole(filled) == before


def test_while_a_correction_runs_it_is_only_told(table):  # noqa: F811
    """The table keeps what it has of an epoch of which every checkpoint has half of a correction."""
    table.world.airflow.engine.plan = {epoch(day): dict.fromkeys(KEYS, day) for day in (1, 2)}
    for day in (1, 2):
        run(table, day, parallelism=2)
    told = []

    def verify(*_):
        settle(table)
        table.query("update {t}_rows set n = 7; commit")
        told.append({mend for _, mend in verified(table)})

    table.world.airflow.after_commit = verify
    correct(table, 2, dict.fromkeys(KEYS, 20))
    table.world.airflow.after_commit = None
    later = "It has rows of a checkpoint that is being corrected: verify again when that run is closed"
    assert told == [WRITTEN, WRITTEN, {later}]
    assert {mend for _, mend in verified(table)} == WRITTEN
    assert [table.at(day) for day in (1, 2)] == [table.expected(day) for day in (1, 2)]


def test_a_database_that_is_away_is_told(filled, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", AWAY)
    ((detail, mend),) = verified(filled)
    assert detail.startswith("its rows could not be compared: TargetAway: ")
    assert mend == "Nothing is known of its rows: verify again"
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", filled.url)


def test_scrubbing_compares_each_table_once_in_its_share_of_hours(filled):
    before, world = whole(filled), filled.world
    services = replace(world.services, retention=RetentionSettings(scrub_share=0.25))
    filled.query(EDIT)
    hours = [world.services.now() + timedelta(hours=number) for number in range(4)]
    found = [scrub_dataflow(services, world.airflow, "ladder", hour).inconsistencies for hour in hours]
    assert [{each.mend for each in hour} for hour in found if hour] == [WRITTEN]
    assert whole(filled) == before
