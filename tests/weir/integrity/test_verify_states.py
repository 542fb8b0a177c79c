"""The rows of keyed state are digested from all of its files; compactions and checkpoints must have them."""

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.keeping import aircraft, run_days
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import broadcast_state, list_state
from weir.formats.programs import ContentAnswer, ResultToCheck
from weir.integrity.content import contents_to_check, with_contents
from weir.integrity.repair import repair_runs
from weir.integrity.states import state_copies, state_inconsistencies
from weir.integrity.verify import VERIFIED, VerifyOutcome, results_to_verify, verify_results
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import CompactionRow, ResultRow
from weir.ledger.runs import runs_named
from weir.recovery.pending_clears import deliver
from weir.state.file_rules import epoch_seconds
from weir.typed_json import message_from_json, message_to_json
from weir.upkeep import RESULTS, settle_everywhere

EPOCHS = tuple(f"201301{day:02d}T000000Z" for day in range(1, 8))
CURRENT = select(ResultRow).where(ResultRow.stage == "history", ResultRow.is_current).order_by(ResultRow.run)


FLOW = aircraft(
    history={"runs": 3, "ttl": "10 days"}, states=(list_state("offsets"), broadcast_state("rates", schema="k BIGINT"))
)


@pytest.fixture(scope="module")
def saved():
    """Four days, of which the fourth was compacted and then checkpointed once more."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", FLOW)
        run_days(world, 1, 2, 3, 4)
        world.airflow.clear_by_hand("scheduled__2013-01-04", "weir_close")
        world.airflow.run_until_quiet()
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(saved, tmp_path):
    return saved.go_on(tmp_path)


def verify(world, other=lambda asked: asked.expected):
    """What is found of all results, and beside them, where `other` says what digest each question is answered with."""
    with world.ledger.transaction() as session:
        runs = runs_named(session, "ladder")
        results = results_to_verify(session, runs, VERIFIED)
    found = tuple(verify_results(world.services, results, "a test"))
    asked = contents_to_check(world.services, found)
    copies = state_copies(world.services, runs, found, asked)
    answers = [ContentAnswer(each.number, other(each)) for each in (*asked, *(copy.asked for copy in copies))]
    inconsistencies = state_inconsistencies(world.services, copies, answers)
    return asked, copies, with_contents(world.services, found, asked, answers), inconsistencies


def rows(world, query):
    with world.ledger.transaction() as session:
        return list(session.scalars(query))


def checkpoints(world):
    """Which are retained, as (number, day)."""
    with world.ledger.transaction() as session:
        return [(row.number, EPOCHS.index(row.epoch) + 1) for row in retained_checkpoints(session, "ladder")]


def test_a_state_is_asked_about_with_all_its_files_as_of_its_epoch_and_lists_as_other_results(days):
    asked, copies, found, inconsistencies = verify(days)
    assert {each.outcome for each in found} == {VerifyOutcome.WHOLE}
    assert inconsistencies == ()
    history = [each for each in asked if each.name.startswith("history")]
    assert [len(each.state.files) for each in history] == [2, 3, 4]  # the first day is subsumed
    assert [each.state.expired_until for each in history] == [epoch_seconds(each) - 10 * 86400 for each in EPOCHS[1:4]]
    assert {each.name.partition("[")[0] for each in asked if each.state is None} == {
        "flights",
        "known",
        "offsets",
        "rates",
    }
    assert all(each.files for each in asked if each.state is None)
    told = message_from_json(tuple[ResultToCheck, ...], message_to_json(asked))
    assert message_to_json(told) == message_to_json(asked)
    assert [(each.name, each.state and each.state.files) for each in told] == [
        (each.name, each.state and each.state.files) for each in asked
    ]
    (copy,) = copies  # of the fourth day, and of its checkpoint; the others name the results' own files
    assert (len(copy.checkpoints), len(copy.asked.state.files) < 4) == (1, True)
    assert len({each.number for each in (*asked, copy.asked)}) == len(asked) + 1


def test_a_state_of_other_rows_is_quarantined_and_recomputed_with_all_later_epochs(days):
    before = [(row.digest, row.state) for row in rows(days, CURRENT)]
    *_, found, inconsistencies = verify(days, lambda asked: "another" if EPOCHS[2] in asked.name else asked.expected)
    bad = {each.stage for each in found if each.outcome is VerifyOutcome.QUARANTINED}
    assert bad == {"flights", "known", "history", "offsets", "rates"}
    assert inconsistencies == ()
    repair_runs(days.services, found)
    deliver(days.services, days.airflow)
    days.airflow.run_until_quiet()
    assert [(row.digest, row.state) for row in rows(days, CURRENT)] == before


def test_a_compaction_of_other_rows_is_dropped_and_its_run_is_checkpointed_once_more_without_it(days):
    (compacted,) = rows(days, select(CompactionRow))
    *_, found, inconsistencies = verify(days, lambda asked: "another" if "compacted" in asked.name else asked.expected)
    assert {each.outcome for each in found} == {VerifyOutcome.WHOLE}
    (inconsistency,) = inconsistencies
    assert (inconsistency.run, inconsistency.path.endswith(compacted.attempt)) == (f"ladder@{EPOCHS[3]}", True)
    assert rows(days, select(CompactionRow)) == []
    settle_everywhere(days.services, RESULTS)
    assert checkpoints(days) == [(2, 2), (3, 3), (6, 4)]
    asked, copies, *_ = verify(days)
    assert copies == ()
    run_days(days, 5)
    assert [len(each.state.files) for each in verify(days)[0] if EPOCHS[4] in each.name and each.state] == [5]


def test_a_state_that_could_not_be_digested_is_reported_and_nothing_follows(days):
    *_, inconsistencies = verify(days, lambda asked: None if "compacted" in asked.name else asked.expected)
    (inconsistency,) = inconsistencies
    assert "could not be digested" in inconsistency.detail
    assert len(rows(days, select(CompactionRow))) == 1
    assert checkpoints(days) == [(2, 2), (3, 3), (5, 4)]


def test_a_checkpoint_of_other_rows_is_reported_as_long_as_it_is_retained(days):
    with days.ledger.transaction("ladder") as session:
        session.delete(session.scalar(select(CompactionRow)))
    _, copies, _, inconsistencies = verify(
        days, lambda each: "another" if "checkpoint 5" in each.name else each.expected
    )
    assert [each.path for each in inconsistencies] == ["ladder/_checkpoints/00000005.json"]
    assert checkpoints(days) == [(2, 2), (3, 3), (5, 4)]
    subsumed = [replace(each, checkpoints=()) for each in copies]
    answers = [ContentAnswer(each.asked.number, "another") for each in copies]
    assert state_inconsistencies(days.services, subsumed, answers) == ()
