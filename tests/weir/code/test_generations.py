"""Which code a try runs, and which results are of one code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.code.generations import Cause, Choice, Code, RepairCode, TaskCode, agreed, choose, lacking, versions_after

OLD, NEW, NEWER = (Code(each, f"archive of {each}") for each in ("old", "new", "newer"))
ANY = st.sets(st.sampled_from("abcd"), min_size=1)


def task(*, opened=OLD, current=OLD, inherited=OLD, done=2, subtasks=3):
    return TaskCode(opened=opened, current=current, inherited=inherited, done=done, subtasks=subtasks)


@pytest.mark.parametrize("cause", [Cause.FIRST, Cause.BY_WEIR])
def test_what_weir_runs_by_itself_runs_the_code_that_made_what_is_there(cause):
    assert choose(task(), NEW, cause) == Choice(OLD)


def test_a_generation_that_has_not_committed_is_not_what_repairs_run():
    assert choose(task(opened=NEW), NEW, Cause.BY_WEIR) == Choice(OLD)


def test_the_first_try_of_a_task_has_the_code_of_the_run():
    assert choose(task(opened=None, current=None, done=0), NEW, Cause.FIRST) == Choice(OLD, opens=True)


def test_a_subtask_that_begins_later_joins_the_generation_that_another_has_opened():
    assert choose(task(opened=NEW, current=None, done=0), NEWER, Cause.FIRST) == Choice(NEW)


def test_a_persons_clear_runs_the_newest_code():
    assert choose(task(), NEW, Cause.BY_PERSON) == Choice(NEW, opens=True)


def test_a_sibling_that_is_cleared_too_joins_the_generation():
    assert choose(task(opened=NEW), NEW, Cause.BY_PERSON) == Choice(NEW)


def test_a_clear_without_other_code_goes_on_with_the_generation():
    deployed = Code(OLD.version, "another archive")
    assert choose(task(), deployed, Cause.BY_PERSON) == Choice(OLD)


def test_a_dataflow_that_repairs_as_it_was_keeps_its_code():
    assert choose(task(), NEW, Cause.BY_PERSON, RepairCode.AS_IT_WAS) == Choice(OLD)


def test_a_function_that_has_failed_is_tried_with_the_fix_where_nothing_was_made_by_older_code():
    assert choose(task(current=None, done=0), NEW, Cause.OWN_FAILURE) == Choice(NEW, opens=True)


def test_a_function_that_has_failed_beside_results_of_its_code_keeps_it_and_says_so():
    choice = choose(task(), NEW, Cause.OWN_FAILURE)
    assert (choice.code, choice.opens) == (OLD, False)
    assert choice.note.startswith("newer code is deployed; 2 of 3 subtasks were made by older")


def test_nothing_is_said_where_no_newer_code_is_deployed():
    assert choose(task(), OLD, Cause.OWN_FAILURE) == Choice(OLD)


def test_a_result_that_other_code_makes_alike_is_of_both():
    assert versions_after({"old"}, "new", is_same=True) == {"old", "new"}
    assert versions_after({"old"}, "new", is_same=False) == {"new"}


def test_results_are_of_one_code_if_one_version_makes_all():
    assert agreed([{"old"}, {"old", "new"}]) == {"old"}
    assert agreed([{"old"}, {"new"}]) == set()
    assert agreed([]) == set()


def test_versions_that_a_person_has_declared_equal_count_as_one():
    same = [("a", "b"), ("c", "d"), ("b", "c")]
    assert agreed([{"a"}, {"d"}, {"b", "x"}], same)
    assert not agreed([{"a"}, {"x"}], same)
    assert lacking({0: {"a"}, 1: {"x"}}, "d", same) == (1,)


@given(st.lists(ANY, min_size=1), st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"))))
def test_more_equal_versions_never_divide_what_agreed(sets, same):
    assert bool(agreed(sets, same)) >= bool(agreed(sets))


@given(st.lists(ANY, min_size=1), st.sampled_from("abcd"))
def test_after_the_lacking_are_made_again_all_agree(sets, version):
    made = dict(enumerate(sets))
    made |= {subtask: {version} for subtask in lacking(made, version)}
    assert version in agreed(made.values())
