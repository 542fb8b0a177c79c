"""The columns of a state as they are declared and as they were written: one type, however it is spelled."""

import json

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow.state_schema import ddl_of, declared_fields, fields_of_ddl, fields_of_json, spark_json, stored_fields
from weir.errors import Misconfigured


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        ("tailnum STRING, flights BIGINT", "tailnum string, flights bigint"),
        ("a: LONG, b: Integer", "a bigint, b int"),
        ("k BYTE NOT NULL COMMENT 'a, key', v SHORT", "k tinyint NOT NULL, v smallint"),
        ("`a``b c` DECIMAL, d DEC(5), e NUMERIC(7, 2)", "a`b c decimal(10,0), d decimal(5,0), e decimal(7,2)"),
        ("s STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>", "s struct<x:int,y:array<struct<z:date>>>"),
        ("m MAP<STRING, ARRAY<LONG>>, t TIMESTAMP_LTZ", "m map<string,array<bigint>>, t timestamp"),
        ("i INTERVAL DAY TO SECOND, c CHARACTER(3)", "i interval day to second, c char(3)"),
        ("s STRING COLLATE UTF8_LCASE, r REAL", "s string collate utf8_lcase, r float"),
    ],
)
def test_ddl_is_read_as_spark_reads_it(spelled, plain):
    assert ddl_of(fields_of_ddl(spelled)) == plain


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("", "has no columns"),
        ("a", "its end"),
        ("a INT,", "ends with a comma"),
        (", a INT", "where a column's name was expected"),
        ("a INT b INT", "has 'b' where ',' was expected"),
        ("a ARRAY<INT", "has 'its end' where '>' was expected"),
        ("a MAP<INT>", "has '>' where ',' was expected"),
        ("a INT; b INT", "cannot be read from '; b INT'"),
        ("a INT, b INT, a DATE", "has the column a twice"),
        ("a, b INT", "has a column without a type"),
    ],
)
def test_what_is_no_list_of_columns_is_refused_with_an_example(wrong, why):
    with pytest.raises(Misconfigured, match=r'write it like "tailnum STRING, flights BIGINT"') as error:
        fields_of_ddl(wrong)
    assert why in str(error.value)


KINDS = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT", "REAL", "DOUBLE"),
    *("DATE", "TIME", "TIME(6)", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP WITHOUT TIME ZONE"),
    *("STRING", "STRING COLLATE UTF8_LCASE", "CHAR(3)", "CHARACTER(3)", "VARCHAR(3)", "BINARY", "VOID", "VARIANT"),
    *("DECIMAL", "DEC", "NUMERIC(7, 2)", "INTERVAL DAY TO SECOND", "GEOGRAPHY(4326)", "GEOMETRY(4326)"),
    *("STRUCT<a: INT>", "ARRAY<INT>", "MAP<INT, INT>"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_spark_may_be_declared(kind):
    assert list(declared_fields(f"a {kind}")) == ["a"]


NOT_KEPT = ("TIME", "CHAR", "CHARACTER", "VARCHAR", "VOID", "VARIANT", "INTERVAL", "GEOGRAPHY", "GEOMETRY")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["{}", "ARRAY<MAP<STRING, STRUCT<x: {}>>>"])
def test_a_type_that_cannot_be_kept_is_refused_where_rows_are_to_be_stored(kind, shape):
    schema = f"a BIGINT, b {shape.format(kind)}"
    if kind.partition("(")[0].split()[0] in NOT_KEPT:
        with pytest.raises(Misconfigured, check=of_kind("dataflow.type_not_stored", each="b")):
            stored_fields(schema)
    else:
        assert list(stored_fields(schema)) == ["a", "b"]


def test_a_collation_is_refused_where_it_is_not_kept():
    stored_fields("a STRING COLLATE UTF8_LCASE")
    with pytest.raises(
        Misconfigured, check=of_kind("dataflow.type_not_stored", each="a", type="STRING COLLATE UTF8_LCASE")
    ):
        stored_fields("a ARRAY<STRING COLLATE UTF8_LCASE>", has_collations=False)


@pytest.mark.parametrize("wrong", ["BIGNT", "STRUCT<a: STRNG>", "ARRAY<MAP<TEXT, INT>>", "NUMBER(7, 2)", "DATETIME"])
def test_a_type_that_spark_does_not_have_is_refused_in_a_declaration_and_read_in_a_record(wrong):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.type_unknown", each="a")):
        declared_fields(f"a {wrong}, b INT")
    assert list(fields_of_ddl(f"a {wrong}, b INT")) == ["a", "b"]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("DATETIME", "TIMESTAMP"),
        ("TEXT", "STRING"),
        ("NUMBER(7, 2)", "DECIMAL"),
        ("BIGNT", "BIGINT"),
        ("INT64", "BIGINT"),
    ],
)
def test_a_word_of_another_system_is_answered_with_the_type_that_is_meant(wrong, meant):
    with pytest.raises(Misconfigured, match=f"{meant}", check=of_kind("dataflow.type_unknown")):
        declared_fields(f"a {wrong}")


def test_what_spark_has_recorded_is_what_was_declared():
    declared = "k INT, d DECIMAL(7, 2), s STRUCT<x: LONG, y: ARRAY<MAP<STRING, BYTE>>>, t TIMESTAMP_NTZ"
    fields = fields_of_ddl(declared)
    assert fields_of_json(spark_json(fields)) == fields


def test_a_schema_as_json_is_nullable_at_every_depth_and_has_no_metadata():
    inner = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {"x": 1}}]}
    array = {"type": "array", "elementType": inner, "containsNull": False}
    kind = {"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": False}
    given = {"type": "struct", "fields": [{"name": "m", "type": kind, "nullable": False, "metadata": {}}]}
    found = spark_json(fields_of_json(json.dumps(given)))
    assert "false" not in found.lower()
    assert '"x"' not in found


def test_a_collation_is_not_what_tells_recorded_columns_from_declared_ones():
    recorded = {"fields": [{"name": "s", "type": "string", "nullable": True, "metadata": {"__COLLATIONS": {}}}]}
    assert fields_of_json(json.dumps(recorded)) == fields_of_ddl("s STRING COLLATE UTF8_LCASE")


def test_a_type_of_the_user_is_that_which_it_is_stored_as():
    udt = {"type": "udt", "class": "p.C", "sqlType": {"type": "array", "elementType": "double", "containsNull": False}}
    fields = fields_of_json(json.dumps({"fields": [{"name": "v", "type": udt, "nullable": True, "metadata": {}}]}))
    assert fields == fields_of_ddl("v ARRAY<DOUBLE>")


@pytest.mark.parametrize(
    "schema",
    [
        *("K BIGINT, k INT", "a STRUCT<b: INT, B: INT>", "a ARRAY<STRUCT<b: INT, B: INT>>"),
        *(
            "a MAP<MAP<STRING, INT>, INT>",
            "a MAP<STRUCT<b: MAP<INT, INT>>, INT>",
            "a ARRAY<MAP<ARRAY<MAP<INT, INT>>, INT>>",
        ),
        *("a DECIMAL(39,0)", "a ARRAY<DECIMAL(3,4)>"),
    ],
)
def test_a_type_that_spark_cannot_make_or_write_is_refused_when_it_is_declared(schema):
    with pytest.raises(Misconfigured):
        stored_fields(schema)


def test_types_that_look_like_those_are_kept():
    stored_fields("a MAP<STRUCT<b: INT>, MAP<STRING, INT>>, b STRUCT<a: INT>, d DECIMAL(38,38)")
