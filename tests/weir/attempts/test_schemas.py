import pytest

from weir.attempts.commit import other_schemas
from weir.formats.manifest import ContentDigest, digest_rule, digest_schema


def text(schema="aa", rows=1, version=1, rule=""):
    return str(ContentDigest(schema=schema, rows=rows, xor=1, low_sum=2, high_sum=3, version=version, rule=rule))


def test_siblings_with_other_columns_are_named_in_their_order():
    siblings = {2: text("bb"), 0: text("aa"), 1: text("cc", rows=7)}
    assert other_schemas(siblings, text("aa", rows=9)) == (2, 1)


def test_other_rows_and_another_rule_are_no_other_schema():
    assert other_schemas({0: text(rows=5), 1: text(rule="0f0f")}, text()) == ()


def test_a_first_result_has_no_siblings_to_disagree_with():
    assert other_schemas({}, text()) == ()


def test_nothing_is_said_across_definitions_of_digests():
    assert other_schemas({0: text("bb", version=2)}, text("aa")) == ()
    assert other_schemas({0: text("bb", version=2)}, text("aa", version=2)) == (0,)


@pytest.mark.parametrize("version", [1, 2, 12])
@pytest.mark.parametrize("rule", ["", "0f0f"])
def test_a_digest_tells_its_schema_and_its_rule(version, rule):
    digest = text("5f1c", version=version, rule=rule)
    assert (digest_schema(digest), digest_rule(digest)) == ("5f1c", rule)


def test_digests_under_different_rules_are_never_equal():
    assert len({text(rule=rule) for rule in ("", "0f0f", "f0f0")}) == 3
