"""A note begins with what happened; what follows is in the first hundred characters, and labels come last."""

from datetime import UTC, datetime

import pytest

from weir.errors import Fault, Loss, ResultUnavailable
from weir.execution.failure_class import FailureClass
from weir.execution.failure_words import (
    BY_PERSON,
    CLEARS,
    HEALED,
    NOTE_LENGTH,
    SAYS,
    VISIBLE,
    WARNED,
    PastFailure,
    PastTries,
    cause_in_short,
    message_of,
    note_of_failure,
    noted,
    own_part,
    succeeded,
    waited,
)

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {"type": "application", "exception": "KeyError", "team": "routes"}


def healed(*failures, is_by_person=False):
    return succeeded("", PastTries(failures, is_by_person))


def lost(fault, count):
    parts = (Loss("shop@20130101T000000Z", "clean", at, "plain", "t1", fault, "x: y, z") for at in range(count))
    return message_of(ResultUnavailable(tuple(parts)))


@pytest.mark.parametrize("kind", FailureClass)
@pytest.mark.parametrize(
    "message", ["KeyError: 'price'", "Misconfigured: no such table", f"ValueError: {'x' * 3000}", "E: "]
)
@pytest.mark.parametrize("delay", [None, 0.5, 86_400.0])
def test_what_happened_and_what_follows_is_visible_and_labels_come_last(kind, message, delay):
    note = note_of_failure(message, f"by the strategy: {message}", LABELS, delay=delay, kind=kind.value)
    shown = note[:VISIBLE]
    own_class, _, text = message.partition(": ")
    assert note.startswith(SAYS)
    assert len(note) <= NOTE_LENGTH
    assert text[:10] in shown
    assert (own_class in shown) == (own_class != "Misconfigured")
    assert ("not tried again." in shown) == (delay is None)
    assert "again" in shown
    assert note.endswith(f"({kind.value}, team=routes)")


@pytest.mark.parametrize("fault", Fault)
def test_what_became_of_inputs_is_told_and_counted(fault):
    one, two = (healed(PastFailure(failure="backtrack", error=lost(fault, n), again=n)) for n in (1, 2))
    assert one.startswith(f"{SAYS}healed: the input clean[0] ")
    assert two.startswith(f"{SAYS}healed: 2 inputs ")
    assert "a task ran again" in one
    assert "2 tasks ran again" in two


@pytest.mark.parametrize("fault", Fault)
def test_a_result_that_a_clear_had_computed_again_is_named(fault):
    loss = Loss("shop@20130101T000000Z", "clean", 0, "k/128", "t1", fault, "x: y, z")
    assert succeeded(f"weir: {loss}; needed by totals[0]", PastTries()).startswith(f"{SAYS}healed: clean[0] ")


def test_the_cause_of_a_failover_is_told_in_short():
    parts = [Loss("shop@20130101T000000Z", "clean", at, "k/128", "t1", Fault.MISSING, "x: y, z") for at in range(5)]
    parts.append(Loss("shop@20130101T000000Z", "rated", 0, "plain", "t1", Fault.DAMAGED, "the manifest, too"))
    told = cause_in_short("; ".join(map(str, parts)))
    assert told.startswith("clean[0], clean[1], clean[2]")
    assert "rated[0] had been damaged" in told
    assert "x: y" not in told
    assert cause_in_short("RuntimeError: no licence\nat line 3").startswith("RuntimeError: no licence")


@pytest.mark.parametrize("note", ["weir: clean[0] (plain) of shop@20130101T000000Z has changed", BY_PERSON])
def test_a_clear_where_nothing_had_gone_wrong_is_no_healing_and_why_it_ran_again_stays(note):
    by_person = not note.startswith("weir: ")
    told = succeeded(note, PastTries(is_by_person=by_person))
    assert told.startswith(SAYS)
    assert "healed" not in told
    assert note.removeprefix("weir: ") in told or by_person
    assert succeeded(told, PastTries()) == told


@pytest.mark.parametrize("kind", [FailureClass.APPLICATION, FailureClass.BACKTRACK])
@pytest.mark.parametrize("delay", [None, 0.5, 7.0])
def test_a_failure_that_only_its_note_knows_is_told_as_mended(kind, delay):
    note = note_of_failure("KeyError: 'price'; more", "because.", LABELS, delay=delay, kind=kind.value)
    assert succeeded(note, PastTries()).startswith(f"{HEALED}KeyError: 'price'; more. ")


def test_a_failure_before_a_clear_by_hand_is_told_as_mended_and_the_clear_too():
    told = healed(PastFailure(failure="application", error="KeyError: 'k'"), is_by_person=True)
    assert told.startswith(f"{HEALED}KeyError: 'k'")
    assert "by hand" in told


def test_what_is_over_stays_until_a_person_has_the_task_run_again():
    for note in (healed(PastFailure(failure="killed", error="")), waited(WHEN), f"{WARNED}late rows"):
        assert succeeded(note, PastTries()) == note
        assert succeeded(note, PastTries(is_by_person=True)) not in (note, "")


def test_of_a_task_without_a_note_or_failures_nothing_is_said():
    assert succeeded("", PastTries()) == succeeded("", PastTries(is_by_person=True)) == ""


@pytest.mark.parametrize("seen", ["", "mine", f"{SAYS}old", f"{CLEARS}old", f"{SAYS}old\n\nmine\n\nand more"])
def test_weirs_words_replace_weirs_and_a_persons_stay_below(seen):
    person = seen.partition("mine")[1] + seen.partition("mine")[2]
    said = noted(f"{SAYS}new\n\nwith an empty line", seen)
    assert said.startswith(f"{SAYS}new\nwith an empty line")
    assert said.removeprefix(own_part(said)).strip() == person
    assert noted("", said) == person


@pytest.mark.parametrize("length", [10, 500, 880, 900, 1_000])
def test_a_persons_note_is_whole_where_there_is_no_place_for_both(length):
    said = noted(SAYS + "x" * 2_000, "p" * length)
    assert said.endswith("p" * length)
    assert len(said) <= NOTE_LENGTH
    assert not own_part(said) or len(own_part(said)) >= VISIBLE


WORKER = """PythonException: \n  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 1, in main
    process()
  File "/trips_stages.py", line 3, in price
ValueError: no price of 'x'
"""
EXECUTOR = """SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent: Lost
0.0: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' cannot be cast to "INT". SQLSTATE
\tat org.apache.spark"""


@pytest.mark.parametrize(
    ("message", "inner"), [(WORKER, "ValueError: no price of 'x'"), (EXECUTOR, "[CAST_INVALID_INPUT] The value 'x'")]
)
def test_what_a_worker_or_an_executor_of_spark_has_raised_comes_first(message, inner):
    assert note_of_failure(message, message, {}, delay=2.0, kind="application").startswith(f"{SAYS}{inner}")
    assert inner in healed(PastFailure(failure="application", error=message))


QUERY = """Misconfigured: stage bad: sql/bad.sql, line 1: SELECT product, sum(prize) AS money FROM rows GROUP BY product
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `prize` cannot be resolved."""
MODULE = (
    "Misconfigured: region tariff-out: a module is missing where the task runs: No module named 'tariffs'. in stage x"
)
SUITE = (
    "QualityFailed: the rows of checked[0] violate lab_rows: expect_column_values_to_be_between(price): 35 of 250 "
    "rows, such as 81.23, 87.24. Policy: fail"
)
LOGIN = (
    'Misconfigured: the connection shop_wrong is refused: connection to server at "127.0.0.1", port 42041 failed: '
    'FATAL:  password authentication failed for user "weir". Mend it'
)


@pytest.mark.parametrize(
    ("message", "causes"),
    [
        (QUERY, ("sql/bad.sql, line 1", "`prize`")),
        (MODULE, ("'tariffs'",)),
        (LOGIN, ("shop_wrong", "password")),
        (SUITE, ("35 of 250 rows", "lab_rows")),
    ],
)
def test_the_cause_is_visible_whatever_stands_before_it(message, causes):
    shown = note_of_failure(message, message, {}, delay=None, kind="fatal")[:VISIBLE]
    assert [cause for cause in causes if cause not in shown] == []


def test_a_released_input_was_not_deleted():
    released = Loss("shop@20130101T000000Z", "clean", 0, "plain", "t1", Fault.MISSING, "it was released")
    assert "released" in healed(PastFailure(failure="backtrack", error=message_of(ResultUnavailable((released,)))))


def test_equal_failures_are_told_once_with_their_number():
    killed = PastFailure(failure="killed", error="")
    assert healed(killed, killed, PastFailure(failure="application", error="KeyError: 'k'")).count("killed") == 1
    assert "(2 times)" in healed(killed, killed)
