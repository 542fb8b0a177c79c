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
        ("SELECT (1 FROM clean", "line 1: a ( is opened and not closed"),
        ("SELECT 1,\n  f((2)\nFROM clean", "line 2: a ( is opened and not closed"),
        ("SELECT 1,\n{{ ctx.epoch }\nFROM clean", "line 2: a { is opened and not closed"),
        ("SELECT k[(1)\nFROM clean", "line 1: a [ is opened and not closed"),
        ("SELECT 1) FROM clean", "line 1: this ) closes nothing"),
        ("SELECT (\nk[1)] FROM clean", "line 2: this ) closes nothing, where the [ of line 2 is open"),
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


READ = {
    "comma": "SELECT * FROM clean, prices",
    "comma after a join": "SELECT * FROM clean c JOIN clean d ON c.a = d.a AND f(c.a, d.a), prices",
    "comma after values": "SELECT * FROM VALUES (1, 2), (3, 4) AS v(a, b), clean, prices",
    "comma after an inner query": "SELECT * FROM (SELECT * FROM clean) c, prices p",
    "comma after a sample": "SELECT * FROM clean TABLESAMPLE (5 ROWS), prices",
    "table": "TABLE prices",
    "table of a union": "TABLE clean UNION ALL TABLE prices",
    "table after with": "WITH a AS (TABLE clean) TABLE prices",
    "table of a pipe": "FROM clean |> UNION ALL TABLE prices",
    "join of a pipe": "FROM clean |> LEFT JOIN prices USING (a)",
    "table in exists": "SELECT * FROM clean WHERE EXISTS (TABLE prices)",
    "argument": "SELECT * FROM clean, f(TABLE prices)",
    "argument in parentheses": "SELECT * FROM clean, f(1, TABLE(prices) PARTITION BY a)",
    "named argument": "SELECT * FROM clean, f(rows => TABLE(prices))",
    "path": "SELECT * FROM clean, parquet.`/lake/prices`",
    "path with a quote": "SELECT * FROM clean, csv.`/a``b.csv`",
    "identifier": "SELECT * FROM clean, identifier('prices')",
    "identifier of parts": "SELECT * FROM clean JOIN IDENTIFIER('lake' || '.prices')",
    "identifier of a parameter": "SELECT * FROM clean, identifier({{ ctx.parameters.least }})",
    "value": "SELECT * FROM clean JOIN {{ ctx.parameters.least }}",
    "first": "FROM prices, clean SELECT a",
    "lateral": "SELECT * FROM clean, LATERAL (SELECT * FROM prices WHERE prices.a = clean.a)",
    "in parentheses": "SELECT * FROM ((prices) JOIN clean USING (a))",
    "in a scalar subquery": "SELECT (SELECT max(a) FROM prices) FROM clean",
    "in the order": "SELECT * FROM clean ORDER BY (SELECT max(a) FROM prices)",
    "in quotes": "SELECT * FROM clean, `prices`",
    "of the system": "SELECT * FROM clean, information_schema.tables",
    "of another time": "SELECT * FROM clean, prices VERSION AS OF 1",
    "with of an inner query": "SELECT * FROM (WITH prices AS (TABLE clean) TABLE prices) p, prices",
    "with that follows": "WITH a AS (SELECT * FROM prices), prices AS (TABLE clean) SELECT * FROM a",
    "with that is not recursive": "WITH prices AS (SELECT * FROM prices) SELECT * FROM prices, clean",
    "with without as": "WITH a (SELECT * FROM clean) SELECT * FROM a, prices",
    "prices of the server": "SELECT * FROM clean, ${env:prices}",
    "a setting": "SELECT * FROM clean WHERE a > ${my.least}",
    "a setting by its kind": "SELECT * FROM clean WHERE a > ${hivevar:least}",
    "an unknown name, which is replaced by nothing": "SELECT regexp_count(a, '${2}') FROM clean",
    "prices of the server in quotes": "SELECT '${system:prices}' FROM clean",
    "after a comment of an old Mac": "SELECT * -- all\rFROM prices, clean",
    "after a comment with a hint in it": "SELECT * FROM clean /* a /*+ b */ , prices -- */",
}


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_a_relation_that_is_no_input_is_refused_wherever_it_stands(text):
    problem, *_ = problems(text)
    assert "no input of the stage" in problem
    assert any(name in problem for name in ("prices", "/a`b.csv", "IDENTIFIER", "identifier", "{{", "tables", "${"))


ALLOWED = {
    "with": "WITH a AS (TABLE clean), b(x, y) AS (SELECT * FROM a) SELECT * FROM b, A, clean",
    "with without as": "WITH a (SELECT * FROM clean), b (x) (TABLE a) TABLE b",
    "recursive": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t, clean",
    "limited recursion": "WITH RECURSIVE t(n) MAX RECURSION LEVEL 5 AS (TABLE clean UNION ALL TABLE t) TABLE t",
    "recursive as a name": "WITH recursive AS (TABLE clean) SELECT * FROM recursive",
    "with of an inner query": "SELECT * FROM (WITH a AS (TABLE clean) SELECT * FROM (SELECT * FROM a)) b",
    "with that hides": "WITH clean AS (SELECT a FROM clean) SELECT * FROM clean",
    "with in parentheses": "WITH a AS ((SELECT 1) UNION (SELECT a FROM clean)) SELECT * FROM a",
    "identifier": "SELECT identifier('a'), identifier FROM identifier('clean')",
    "functions": "SELECT * FROM clean, range(3), LATERAL explode(b) AS t(x), LATERAL VIEW_(1) JOIN TABLE(f(1))",
    "lateral view": "SELECT * FROM clean LATERAL VIEW OUTER explode(m) t AS k, v WHERE a IN (1, 2)",
    "values": "SELECT * FROM VALUES (1, 'a'), (2, 'b') v(a, b), clean",
    "plain values": "SELECT * FROM VALUES 1, 2 AS v(a), VALUES date '2020-01-01', interval 1 day AS w(b), clean",
    "pivot": "SELECT * FROM clean PIVOT (sum(a) AS s, max(b) FOR c IN ('x', 'y')) ORDER BY a, b",
    "unpivot": "SELECT * FROM clean UNPIVOT (v FOR n IN (a, b))",
    "window": "SELECT sum(a) OVER w, max(b) FROM clean WINDOW w AS (PARTITION BY a, b), v AS (ORDER BY c)",
    "functions with from": "SELECT extract(year FROM a), trim(both FROM b), overlay(a PLACING b FROM 1) FROM clean",
    "distinct from": "SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM c FROM clean",
    "words as names": "SELECT c.from, c.join, c.table, a AS join, count(*) table, b AS from FROM clean c",
    "first": "FROM clean SELECT a, b WHERE a > 1",
    "pipe": "FROM clean |> EXTEND a + 1 AS b |> AGGREGATE sum(a), max(b) GROUP BY c, d |> SELECT c, d",
    "sets": "(SELECT a FROM clean) EXCEPT ((SELECT a, b FROM clean) MINUS TABLE clean) ORDER BY a, b",
    "except columns": "SELECT * EXCEPT (a, b), c FROM clean GROUP BY c, d HAVING count(*) > 1 LIMIT 3",
    "cast": "SELECT CAST(a AS TIMESTAMP WITHOUT TIME ZONE), a::int, transform(b, x -> x + 1) FROM clean",
    "grouping sets": "SELECT a, b FROM clean GROUP BY GROUPING SETS ((a, b), (a), ())",
    "byte order mark": "\ufeffSELECT * FROM clean",
    "lines of Windows": "-- all\r\nSELECT *\r\nFROM clean;\r\n-- end\r\n",
    "dollars": "SELECT '$x', '^a$', '$ {x}', '$' || '{x}', '${}' FROM clean -- ${env:x}",
    "semicolons": "SELECT ';' AS a, 'it''s; \\'' FROM clean -- ;\n;; /* ; /* nested */ */ -- end",
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_inputs_and_the_queries_of_with_are_read_in_any_form(text):
    assert problems(text) == []


def test_a_byte_order_mark_is_no_part_of_a_query():
    marked, plain = "\ufeffSELECT a FROM clean; -- end", "SELECT a FROM clean; -- end"
    assert statement_of(marked) == statement_of(plain)
    assert version_of(marked) == version_of(plain)


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
