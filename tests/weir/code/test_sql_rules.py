"""What a SQL file of a stage may hold, and what is bound in it."""

from __future__ import annotations

import pytest

from weir.code.sql_rules import sql_problems, statement_of, version_of

PARAMETERS = {"least": 3, "zones": ["a", "b"], "deep": {"a": 1}}


def problems(text, *inputs):
    return sql_problems(text, inputs or ("clean",), PARAMETERS)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT zone, count(*) AS trips FROM clean GROUP BY zone",
        "select extract(year from day), trim(both from zone) from `clean` where a is distinct from b;  -- the end\n",
        "WITH far AS (SELECT * FROM clean), near (zone) AS (SELECT zone FROM far) SELECT * FROM near JOIN FAR f",
        "SELECT /*+ BROADCAST(clean) */ * FROM CLEAN c, range(3) /* from nowhere /* at all */ ; */ JOIN explode(c.b)",
        "FROM clean |> WHERE n > {{ ctx.parameters.least }} |> SELECT n",
        "(SELECT a FROM clean) UNION ALL (SELECT '-- ''it'' {} {{' || \"join x\" FROM clean)",
        "SELECT * FROM (SELECT * FROM clean) LATERAL VIEW explode(b) t AS x WHERE EXISTS (TABLE clean)",
        "SELECT {{ ctx.epoch }}, {{ctx.interval[0]}}, {{ ctx.interval[1] }} FROM clean",
        "SELECT {{ ctx.subtask }}, {{ ctx.parallelism }}, array_contains({{ ctx.parameters.zones }}, zone) FROM clean",
    ],
)
def test_a_query_has_no_problems(text):
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- nothing\n ;", "it has no query: write SELECT ..."),
        ("SELECT 'a FROM clean", "line 1: a quote ' is opened and not closed"),
        ("SELECT 1\n/* FROM clean", "line 2: a comment /* is opened and not closed"),
        ("SELECT (1 FROM clean", "a ( is opened and not closed"),
        ("SELECT 1) FROM clean", "line 1: this ) closes no ("),
        ("INSERT INTO x SELECT * FROM clean", "line 1: it begins with 'INSERT', but a stage is one query"),
        ("SELECT * FROM clean;\nSELECT 1", "line 1: a second statement follows"),
        ("SELECT\n {{ ds }} FROM clean", "line 2: {{ ds }} is unknown: write to_date({{ ctx.interval[0] }})"),
        ("SELECT {{ params.least }} FROM clean", "write {{ ctx.parameters.least }}"),
        ("SELECT {{ ctx.spark }} FROM clean", "there are {{ ctx.epoch }}, {{ ctx.interval[0] }} (its start)"),
        ("SELECT {{ ctx.parameters.leasd }} FROM clean", "has no parameter 'leasd': did you mean 'least'?"),
        ("SELECT {{ ctx.parameters.other }} FROM clean", 'write Dataflow(..., parameters={"other": ...})'),
        ("SELECT {{ ctx.parameters.deep }} FROM clean", "only texts, numbers, truth values and lists"),
        ("SELECT * FROM clean WHERE day = '{{ ds }}'", "line 1: {{ ds }} stands in quotes: leave them out"),
        ("SELECT * FROM clean {% if x %} WHERE a {% endif %}", "{% if x %} is a block of Jinja"),
        (
            "SELECT * FROM clean\nJOIN cleam USING (a)",
            "line 2: it reads 'cleam', which is no input of the stage: did you",
        ),
        ("SELECT * FROM lake.raw.trips, clean", "it reads 'lake.raw.trips', which is no input"),
        ("SELECT 1", "it does not read the input 'clean': leave it out of inputs="),
    ],
)
def test_what_cannot_be_the_query_of_a_stage_is_answered_with_its_line(text, problem):
    assert problem in " | ".join(problems(text))


def test_values_become_named_parameters_and_nothing_else_changes():
    text = "SELECT {{ ctx.epoch }}, {{ ctx.parameters.least }} -- {{ ds }}\nFROM clean WHERE a > {{ctx.epoch}} ; -- so"
    statement = statement_of(text)
    assert statement.text == (
        "SELECT :ctx_epoch_1, :ctx_parameters_least_2 -- {{ ds }}\nFROM clean WHERE a > :ctx_epoch_1 "
    )
    values = {"ctx.epoch": "20130101T000000Z", "ctx.parameters.least": "1; DROP TABLE x", "ctx.subtask": 0}
    assert statement.bound(values) == {
        "ctx_epoch_1": "20130101T000000Z",
        "ctx_parameters_least_2": "1; DROP TABLE x",
    }


def test_comments_and_white_space_are_no_part_of_the_version():
    version = version_of("SELECT a  FROM clean")
    assert version_of("select a from clean") != version
    assert version_of("-- why\nSELECT a /* all */\n  FROM clean -- so") == version
    assert version_of("SELECT /*+ BROADCAST(a) */ a FROM clean") != version
    assert version_of("SELECT 'a  b'") != version_of("SELECT 'a b'")
    assert version_of("SELECT 'a") != version_of("SELECT 'b")
