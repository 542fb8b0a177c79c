"""A query is one statement, whatever stands in its texts, names and comments."""

import pytest
from tests.messages.kinds import of_kind

from weir.code.query_rules import single_query
from weir.dataflow import jdbc_source, postgres_source
from weir.errors import Misconfigured


@pytest.mark.parametrize(
    ("query", "statement"),
    [
        ("select 1", "select 1"),
        ("select 1 ; ", "select 1"),
        ("select 1; -- the end", "select 1"),
        ("select 1 -- the end", "select 1"),
        ("select 1; /* a ; /* nested */ ; */ ; -- b", "select 1"),
        ("/* first */ -- ;\n select 1", "select 1"),
        ("select ';' a, \"b;\" from t -- it's", "select ';' a, \"b;\" from t"),
        ("select 'it''s; -- x' a;", "select 'it''s; -- x' a"),
        (r"select E'it\'s; x' a;", r"select E'it\'s; x' a"),
        ("select $x$ ; $$ ; $x$ || $$;$$;", "select $x$ ; $$ ; $x$ || $$;$$"),
        ("select a$b, c$d from t;", "select a$b, c$d from t"),
        ("select 1 /* in */ + 2 -- end\n ;\n", "select 1 /* in */ + 2"),
        ("select a -- 1\n from t; --", "select a -- 1\n from t"),
        ("select 5 - -1", "select 5 - -1"),
    ],
)
def test_what_stands_around_a_statement_is_left_out(query, statement):
    assert single_query("x", query) == single_query("x", query, is_any_dialect=True) == statement


@pytest.mark.parametrize(
    "query", ["select 1; select 2", "select ';'; drop table t; --", "select 1;\n-- x\ndelete from t"]
)
def test_several_statements_are_refused_when_they_are_declared(query):
    for declare in (postgres_source, jdbc_source):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.several_statements")):
            declare("orders", "shop", query)


@pytest.mark.parametrize("query", ["-- nothing", "/* select 1", ";"])
def test_a_query_of_comments_is_refused(query):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.no_statement")):
        single_query("x", query)


@pytest.mark.parametrize("query", [r"select 'it\'s; x' a; # end", "select `a;b` from t;"])
def test_texts_of_mysql_are_known_where_the_database_is_not(query):
    assert single_query("x", query, is_any_dialect=True) == query.partition("; #")[0].rstrip(";")
