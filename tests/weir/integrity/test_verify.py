"""Results are under lease while they are verified; a result of other rows is quarantined."""

import pytest
from sqlalchemy import select

from weir.formats.paths import MANIFEST
from weir.formats.programs import ContentAnswer, ResultToCheck, answer_from_json
from weir.integrity.content import contents_to_check, with_contents
from weir.integrity.records import published_inconsistencies, released_inconsistencies
from weir.integrity.repair import repair_runs
from weir.integrity.verify import VerifyOutcome, verify_results
from weir.ledger.database.tables import ResultRow, RunRow
from weir.recovery.pending_clears import deliver
from weir.retention.release import delete_released, release
from weir.typed_json import message_from_json, message_to_json

RUN = "ladder@20130101T000000Z"


@pytest.fixture
def closed(world):
    world.run_first(1)
    return world


def rows(world, stage=None):
    with world.ledger.transaction() as session:
        found = list(session.scalars(select(ResultRow).order_by(ResultRow.id)))
    return [row for row in found if stage in (None, row.stage)]


def verified(world, watch=lambda _bytes: None):
    return list(verify_results(world.services, rows(world), "a test", watch))


def pressed(world):
    release(world.services, "ladder", is_reclaiming=True)
    return delete_released(world.services, "ladder")


def test_what_is_read_is_not_released_until_it_has_been_read(closed):
    seen = []

    def watch(_bytes):
        seen.append(pressed(closed))

    assert {each.outcome for each in verified(closed, watch)} == {VerifyOutcome.WHOLE}
    assert seen
    assert not any(seen)
    assert len(pressed(closed)) == 8  # all but what is published


def test_what_was_released_meanwhile_is_no_finding(closed):
    before = rows(closed)
    pressed(closed)
    found = list(verify_results(closed.services, before, "a test"))
    assert [each.stage for each in found if each.outcome is not VerifyOutcome.GONE] == ["delays"]


def test_the_manifest_of_a_released_result_is_looked_at(closed):
    pressed(closed)
    assert released_inconsistencies(closed.services, [RUN]) == ()
    gone, other = rows(closed, "joined")
    closed.store.delete(f"{gone.folder}/{MANIFEST}")
    closed.store.replace(f"{other.folder}/{MANIFEST}", b"{}")
    found = released_inconsistencies(closed.services, [RUN])
    assert [each.path for each in found] == [f"{gone.folder}/{MANIFEST}", f"{other.folder}/{MANIFEST}"]


def judged(world, stage, digest):
    found = verified(world)
    asked = contents_to_check(world.services, found)
    wrong = {row.id for row in rows(world, stage)}
    answers = [ContentAnswer(each.number, digest if each.number in wrong else each.expected) for each in asked]
    return with_contents(world.services, found, asked, answers)


def test_equal_digests_change_nothing(closed):
    found = judged(closed, "nothing", "")
    assert {each.outcome for each in found} == {VerifyOutcome.WHOLE}


def test_what_has_other_rows_is_quarantined_and_nothing_made_from_it_is_valid(closed):
    found = judged(closed, "routes", "another")
    assert [each.stage for each in found if each.outcome is VerifyOutcome.QUARANTINED] == ["routes"]
    (row,) = rows(closed, "routes")
    assert (row.state, row.verified_at) == ("quarantined", None)
    with closed.ledger.transaction() as session:
        assert session.get_one(RunRow, RUN).closed_at is None
    (repair,) = repair_runs(closed.services, found)
    assert repair.owed == 1
    deliver(closed.services, closed.airflow)
    closed.airflow.run_until_quiet()
    assert [row.state for row in rows(closed, "routes")] == ["superseded", "finished"]
    with closed.ledger.transaction() as session:
        assert session.get_one(RunRow, RUN).closed_at is not None
    assert len(rows(closed, "delays")) == 1  # its input came out as it was


def test_a_published_result_of_other_rows_is_published_anew_whichever_attempt_recomputes_it(closed):
    judged(closed, "delays", "another")
    assert [each.is_published for each in published_inconsistencies(closed.services, [RUN])] == [True]
    closed.airflow.clear_by_hand("scheduled__2013-01-01", "report-delays")
    closed.airflow.run_until_quiet()
    assert published_inconsistencies(closed.services, [RUN]) == ()
    newest = closed.store.list("_sinks/ladder/delays/20130101T000000Z")[-1][0]
    assert newest == "000002.json"


def test_no_digest_is_no_doubt(closed):
    found = judged(closed, "routes", None)
    assert [each.outcome for each in found if each.stage == "routes"] == [VerifyOutcome.UNREADABLE]
    assert rows(closed, "routes")[0].state == "finished"


def test_what_the_program_is_asked_and_answers_is_json(closed):
    asked = contents_to_check(closed.services, verified(closed))
    assert message_from_json(tuple[ResultToCheck, ...], message_to_json(asked)) == asked
    answer = ContentAnswer(7, "digest")
    assert answer_from_json(answer.to_json()) == answer
    assert answer_from_json("24/01/01 12:00:00 WARN Utils: something else") is None
