"""What counts as a change of a stage's rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.dataflow import DigestRule, digest
from weir.dataflow.digest_rule import rule_problems

columns = st.sampled_from("abc")
rules = st.builds(digest, round=st.dictionaries(columns, st.integers(0, 15)), ignore=st.lists(columns))


def said(rule):
    return dict(rule.round), set(rule.ignore)


@given(rules, rules)
def test_equal_rules_and_no_others_share_a_fingerprint(one, other):
    assert (one.fingerprint == other.fingerprint) == (said(one) == said(other))


def test_the_plain_rule_has_no_fingerprint():
    assert digest() == DigestRule()
    assert digest().fingerprint == ""
    assert digest().is_plain


def test_a_fingerprint_stays_as_it_is_for_digests_that_are_kept():
    assert digest(round={"fare": 6}, ignore=["loaded_at"]).fingerprint == "a1a3c9ae67c7"


def test_one_column_may_be_ignored_without_a_list():
    assert digest(ignore="loaded_at") == digest(ignore=["loaded_at"])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (digest(), "all columns"),
        (
            digest(round={"b": 2, "a": 0}, ignore=["z", "y"]),
            "a rounded to 0 places, b rounded to 2 places, without y, without z",
        ),
    ],
)
def test_a_rule_reads_as_a_sentence(rule, text):
    assert str(rule) == text


@given(rules)
def test_a_rule_is_sound_unless_it_names_a_column_twice(rule):
    assert bool(list(rule_problems(rule))) == bool(set(rule.round) & set(rule.ignore))
