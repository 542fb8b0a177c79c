"""A line that does not fit is found in its file, with the column and the value."""

from urllib.parse import quote

import pytest

from weir_spark.files.misfits import Misfit, place_of

SCHEMA = "struct<id:int,name:string,amount:bigint,at:struct<a:int,b:decimal(10,2)>>"


def told(line, read, schema="struct<id:int,name:string,amount:bigint>", file="file:///data/a.csv"):
    return (
        f"a line does not fit the schema {schema}: in {file}, {line}, of which Spark reads {read}. Correct schema=, or"
    )


@pytest.mark.parametrize(
    ("line", "read", "wrong"),
    [
        ("2,bob,1o", '{"id":2,"name":"bob"}', ["column amount bigint has '1o'"]),
        ("2;bob;1o", '{"id":2,"name":"bob"}', ["column amount bigint has '1o'"]),
        ('x,"a, b",', '{"name":"a, b"}', ["column id int has 'x'"]),
        ("x,bob,y", '{"name":"bob"}', ["column id int has 'x'", "column amount bigint has 'y'"]),
        ("2,bob", '{"id":2,"name":"bob"}', ["it has 2 values, and the schema 3 columns"]),
        ("2,bob,3,4", '{"id":2,"name":"bob","amount":3}', ["it has 4 values, and the schema 3 columns"]),
        ('{"id":2,"name":"bob","amount":"1o"}', '{"id":2,"name":"bob"}', ["column amount bigint has '\"1o\"'"]),
        (
            "a value that would be another one as amount bigint",
            '{"id":2,"amount":"1.5"}',
            ["column amount bigint has '1.5'"],
        ),
        (f"2,{'x' * 300},1o", '{"id":2}', []),
        ("2,bob,1o", '{"id":2,"name":"' + "x" * 300, []),
    ],
)
def test_the_column_and_its_value_are_told_where_they_are_clear(line, read, wrong):
    assert list(Misfit.of(told(line, read)).values()) == wrong


def test_a_line_that_is_not_told_is_found_by_the_texts_that_it_has():
    read = '{"id":7,"is":true,"name":"a ""b"" c","amount":"1,5"}'.replace('""', '\\"')
    misfit = Misfit.of(told("a value that would be another one as amount bigint", read))
    assert misfit.parts == ("a ", "b", " c", "1,5")


def test_nested_types_are_columns_of_their_own():
    assert [name for name, _ in Misfit.of(told("2", "{}", SCHEMA)).columns] == ["id", "name", "amount", "at"]


def test_any_other_message_is_left_alone():
    assert Misfit.of("a quote is never closed: in file:///a.csv") is None


@pytest.mark.spark
def test_the_number_of_the_line_is_that_in_its_file(spark, tmp_path):
    path = tmp_path / "a b.csv"
    path.write_text("id,name,amount\n" + "1,ann,10\n" * 5 + "2,bob,1o\n3,cy,1\n")
    file = f"file://{quote(str(path))}"
    assert place_of(spark, told("2,bob,1o", '{"id":2,"name":"bob"}', file=file)).startswith(
        "line 7 of a b.csv: column amount"
    )
    changed = told(
        "a value that would be another one as amount bigint", '{"id":"2","name":"bob","amount":"1o"}', file=file
    )
    assert place_of(spark, changed) == "line 7 of a b.csv: column amount bigint has '1o'"
    assert place_of(spark, told("9,zoe,1o", '{"id":9,"name":"zoe"}', file=file)) == "column amount bigint has '1o'"
    assert place_of(spark, "another error") == ""
