"""Which code a try runs, and which results are of one code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.code.generation_rules import (
    Cause,
    Choice,
    Code,
    Generation,
    RepairCode,
    TaskCode,
    agreed,
    choose,
    versions_after,
    with_equal,
)

CODES = OLD_CODE, NEW, NEWER = tuple(Code(each, f"archive of {each}") for each in ("old", "new", "newer"))
OLD, SECOND, THIRD = (Generation(number, code) for number, code in enumerate(CODES, 1))
ANY = st.sets(st.sampled_from("abcd"), min_size=1)


def task(*, opened=OLD, current=OLD, done=2, repeated=None):
    return TaskCode(opened=opened, current=current, inherited=OLD_CODE, done=done, subtasks=3, repeated=repeated)


@pytest.mark.parametrize("cause", [Cause.FIRST, Cause.BY_WEIR])
def test_what_weir_runs_by_itself_runs_the_code_that_made_what_is_there(cause):
    assert choose(task(), NEW, cause) == Choice(OLD)


def test_a_generation_that_has_not_committed_is_not_what_repairs_run():
    assert choose(task(opened=SECOND), NEW, Cause.BY_WEIR) == Choice(OLD)


def test_a_try_after_a_kill_goes_on_with_the_code_of_the_killed_one():
    assert choose(task(opened=SECOND, repeated=SECOND), NEWER, Cause.BY_WEIR) == Choice(SECOND)


def test_a_try_after_a_conflict_with_newer_code_runs_the_newer():
    assert choose(task(opened=SECOND, current=SECOND, repeated=OLD), NEWER, Cause.BY_WEIR) == Choice(SECOND)


def test_the_first_try_of_a_task_has_the_code_of_the_run():
    assert choose(task(opened=None, current=None, done=0), NEW, Cause.FIRST) == Choice(OLD)


def test_a_subtask_that_begins_later_joins_the_generation_that_another_has_opened():
    assert choose(task(opened=SECOND, current=None, done=0), NEWER, Cause.FIRST) == Choice(SECOND)


def test_a_persons_clear_runs_the_newest_code():
    assert choose(task(), NEW, Cause.BY_PERSON) == Choice(SECOND)


def test_a_sibling_that_is_cleared_too_joins_the_generation():
    opened = Generation(2, Code("new", "archive before a comment was edited"))
    assert choose(task(opened=opened), NEW, Cause.BY_PERSON) == Choice(opened)


def test_a_fix_of_a_fix_that_never_committed_is_a_generation_of_its_own():
    assert choose(task(opened=SECOND), NEWER, Cause.BY_PERSON) == Choice(THIRD)


def test_a_clear_without_other_code_goes_on_with_the_generation():
    deployed = Code(OLD_CODE.version, "another archive")
    assert choose(task(), deployed, Cause.BY_PERSON) == Choice(OLD)


def test_a_dataflow_that_repairs_as_it_was_keeps_its_code():
    assert choose(task(), NEW, Cause.BY_PERSON, RepairCode.AS_IT_WAS) == Choice(OLD)


def test_a_function_that_has_failed_is_tried_with_the_fix_where_nothing_was_made_by_older_code():
    assert choose(task(current=None, done=0, repeated=OLD), NEW, Cause.OWN_FAILURE) == Choice(SECOND)


def test_a_function_that_has_failed_beside_results_of_its_code_keeps_it_and_says_so():
    choice = choose(task(repeated=OLD), NEW, Cause.OWN_FAILURE)
    assert choice.generation == OLD
    assert choice.note.startswith("other code is deployed than this try has run, which made 2 of 3 subtasks")


def test_nothing_is_said_where_no_newer_code_is_deployed():
    assert choose(task(), OLD_CODE, Cause.OWN_FAILURE) == Choice(OLD)


def test_a_result_that_other_code_makes_alike_is_of_both():
    assert versions_after({"old"}, "new", is_same=True) == {"old", "new"}
    assert versions_after({"old"}, "new", is_same=False) == {"new"}


def test_results_are_of_one_code_if_one_version_makes_all():
    assert agreed([{"old"}, {"old", "new"}]) == {"old"}
    assert agreed([{"old"}, {"new"}]) == set()
    assert agreed([]) == set()


def test_versions_that_a_person_has_declared_equal_count_as_one():
    same = [("a", "b"), ("c", "d"), ("b", "c")]
    assert with_equal({"a"}, same) == set("abcd")
    assert with_equal({"d", "x"}, same) == set("abcdx")
    assert with_equal({"x"}, same) == {"x"}


@given(st.lists(ANY, min_size=1), st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"))))
def test_more_equal_versions_never_divide_what_agreed(sets, same):
    assert bool(agreed([with_equal(each, same) for each in sets])) >= bool(agreed(sets))


def test_a_clear_with_the_code_before_a_fix_that_has_not_committed_undoes_the_fix():
    assert choose(task(opened=SECOND), OLD_CODE, Cause.BY_PERSON) == Choice(Generation(3, OLD_CODE))


def test_a_clear_of_a_task_that_has_made_nothing_runs_the_fix_whatever_repairs_run():
    assert choose(task(current=None, done=0), NEW, Cause.BY_PERSON, RepairCode.AS_IT_WAS) == Choice(SECOND)


def test_a_clear_runs_the_fix_where_only_code_that_fails_was_opened_whatever_repairs_run():
    """After a restore generations count anew, beside results of code that none of them is."""
    assert choose(task(opened=OLD, current=None), NEW, Cause.BY_PERSON, RepairCode.AS_IT_WAS) == Choice(SECOND)
    assert choose(task(opened=None, current=None), NEW, Cause.BY_PERSON, RepairCode.AS_IT_WAS) == Choice(OLD)


def test_a_try_of_which_it_is_not_known_who_was_cleared_goes_on_with_its_code_and_says_so():
    choice = choose(task(opened=SECOND, repeated=SECOND), NEWER, Cause.PERHAPS_BY_PERSON)
    assert choice.generation == SECOND
    assert "It is not known whether it was this task" in choice.note
    assert choose(task(), OLD_CODE, Cause.PERHAPS_BY_PERSON) == Choice(OLD)


def test_the_note_names_the_command_where_a_clear_runs_the_code_as_it_was():
    assert "--code newest" in choose(task(repeated=OLD), NEW, Cause.OWN_FAILURE, RepairCode.AS_IT_WAS).note


VERSIONS = st.sampled_from(["old", "new", "newer"])


@st.composite
def tasks(draw):
    """A task with some generations; the newest that has committed and that of the last try are among them."""
    codes = draw(st.lists(VERSIONS, max_size=3))
    known = [Generation(number, Code(each, f"archive of {each}")) for number, each in enumerate(codes, 1)]
    current, repeated = (draw(st.sampled_from([None, *known])) for _ in range(2))
    done = draw(st.integers(0, 3)) if current is not None else 0
    opened = known[-1] if known else None
    return TaskCode(opened=opened, current=current, inherited=OLD_CODE, done=done, subtasks=3, repeated=repeated)


@given(tasks(), VERSIONS, st.sampled_from(Cause), st.sampled_from(RepairCode))
def test_what_nobody_wants_newer_goes_on_with_the_newest_that_has_committed_or_its_own(drawn, version, cause, repair):
    deployed = Code(version, f"archive of {version}")
    found = choose(drawn, deployed, cause, repair).generation
    is_persons = cause is Cause.BY_PERSON and (repair is RepairCode.NEWEST or not drawn.done)
    if is_persons or (cause is Cause.OWN_FAILURE and not drawn.done):
        last = 0 if drawn.opened is None else drawn.opened.number
        assert found.code.version == version
        assert found.number >= last
        assert (found == drawn.opened) is (drawn.opened is not None and drawn.opened.code.version == version)
        return
    goes_on_with = [each for each in (drawn.current, drawn.repeated) if each is not None]
    assert found == max(goes_on_with, key=lambda each: each.number, default=drawn.opened or Generation(1, OLD_CODE))
