"""Digests: what they tell of their schema and rule, and a Weir with another version of them."""

from dataclasses import replace

import pytest

from weir.attempts.commit import other_schemas
from weir.formats.manifest import ContentDigest, digest_rule, digest_schema


@pytest.fixture
def green(world):
    world.run = world.run_first(1)
    return world


def test_consumers_run_again_and_are_told_that_nobody_knows_whether_their_input_has_changed(green):
    write = green.airflow.engine._write

    def digested_anew(*given):
        report = write(*given)
        return replace(report, digest=replace(report.digest, version=12))

    green.airflow.engine._write = digested_anew
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    again = {task for task, tries in green.airflow.executed(green.run).items() if tries > 1}
    downstream = {"joined[0]", "joined[1]", "totals[0]", "totals[1]", "routes[0]", "report-delays[0]", "weir_close[0]"}
    assert again == {"weather[0]", *downstream}
    said = green.airflow.task(green.run, "joined", 0).notes[-1]
    assert "another version of Weir has digested weather[0]" in said
    assert set(green.airflow.states().values()) == {"success"}


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
