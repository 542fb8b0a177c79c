"""A line of csv or JSON is a row of the schema, or the reading fails, whichever columns are used later."""

import gzip
import json
import re

import pytest
from tests.weir_spark.sources.test_files import put, refused, resolved

from weir.dataflow import files_source
from weir.errors import Misconfigured

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, name STRING, amount BIGINT"
GOOD = "1,ann,10\n2,,\n"


def source(path, schema=ORDERS, **more):
    return files_source("orders", str(path), format=path.suffix[1:].replace("gz", "csv"), schema=schema, **more)


def read(attempt, stage):
    (split,) = resolved(stage)
    return attempt.read(stage, split)


USES = {
    "other columns": lambda rows: rows.select("id").collect(),
    "no column": lambda rows: rows.count(),
    "a filter": lambda rows: rows.where("id > 2").select("name").collect(),
}
BAD_LINES = {
    "csv": ["2,bob", "2,bob,20,x", "2,bob,1o", "2,bob,99999999999999999999", '2,"b"o,3', '2,"b\\"o",3'],
    "json": [
        '{"id":2,"name":"bob","amount":"1o"}',
        '{"id":2,"name":"bob","amount":99999999999999999999}',
        '{"id":2,"name":"bob","amount":20',
    ],
}
GOOD_LINES = {"csv": "1,ann,10", "json": '{"id":1,"name":"ann","amount":10}'}


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_line_that_does_not_fit_is_an_error_whatever_columns_are_used(attempt, tmp_path, form):
    for at, line in enumerate(BAD_LINES[form]):
        path = put(tmp_path / f"{at}.{form}", f"{GOOD_LINES[form]}\n{line}\n{GOOD_LINES[form]}\n")
        for use in USES.values() if at == 0 else [USES["other columns"]]:
            told = refused(attempt, source(path), use)
            assert type(told) is Misconfigured
            assert str(path) in str(told)


def test_lines_that_do_not_fit_are_kept_with_their_file_if_the_source_says_so(attempt, tmp_path):
    path = put(tmp_path / "a.csv", "1,ann,10\n2,bob\n3,cy,1o\n")
    rows = read(attempt, source(path, on_malformed="keep"))
    assert rows.columns == ["id", "name", "amount", "_corrupt_record", "_corrupt_file"]
    kept = rows.where("_corrupt_record is not null").select("_corrupt_record", "_corrupt_file").collect()
    assert sorted(map(tuple, kept)) == [("2,bob", f"file://{path}"), ("3,cy,1o", f"file://{path}")]
    assert [row.id for row in rows.where("_corrupt_record is null").collect()] == [1]
    (split,) = resolved(source(tmp_path / "none.csv", on_malformed="keep", if_empty="empty"))
    assert attempt.read(source(path), split).columns == rows.columns


TEXTS = {
    "doubled": ('"He said ""hi"" twice"', 'He said "hi" twice'),
    "only quotes": ('""""', '"'),
    "inches": ('5" pipe', '5" pipe'),
    "within": ('a "b" c', 'a "b" c'),
    "separator": ('"a,""b"",c"', 'a,"b",c'),
    "backslash": ('"C:\\dir\\"', "C:\\dir\\"),
    "blank": ('"ab" ', "ab"),
    "replacement": ('"\N{REPLACEMENT CHARACTER}"', "\N{REPLACEMENT CHARACTER}"),
}


def test_quotes_are_those_of_rfc_4180(attempt, tmp_path):
    lines = [f"{at},{written},{at}" for at, (written, _) in enumerate(TEXTS.values())]
    rows = attempt.rows(stage := source(put(tmp_path / "a.csv", "\n".join(lines))), resolved(stage))
    assert [row[1] for row in rows] == [text for _, text in TEXTS.values()]
    one = put(tmp_path / "b.csv", "\n".join(written for written, _ in TEXTS.values() if "," not in written))
    rows = attempt.rows(stage := source(one, "name STRING"), resolved(stage))
    assert {row[0] for row in rows} == {text for _, text in TEXTS.values() if "," not in text}
    backslashes = source(put(tmp_path / "c.csv", '1,"a \\"b\\"",1\n'), reader={"escape": "\\"})
    assert attempt.rows(backslashes, resolved(backslashes)) == [(1, 'a "b"', 1)]


@pytest.mark.parametrize("text", ['"a\nb"\n', 'x\n"a ""q"" \nb"\n', '"a\n"\n', '"never closed\n'])
def test_a_quote_that_a_line_leaves_open_is_an_error_unless_records_have_several_lines(attempt, tmp_path, text):
    one, two = put(tmp_path / "one.csv", text), put(tmp_path / "two.csv", f"k,{text.replace('b', 'b,c')}")
    for path, schema in ((one, "name STRING"), (two, "k STRING, name STRING")):
        assert "ends within quotes" in str(refused(attempt, source(path, schema)))
    if text.startswith('"a\nb'):
        stage = source(one, "name STRING", reader={"multiLine": "true"})
        assert attempt.rows(stage, resolved(stage)) == [("a\nb",)]


def test_bytes_that_are_no_utf_8_are_an_error_unless_the_encoding_is_named(attempt, tmp_path):
    latin = {"a.csv": "1,café,1\n", "a.json": '{"id":1,"name":"café","amount":1}\n'}
    for name, text in latin.items():
        path = put(tmp_path / name, text.encode("latin-1"))
        told = refused(attempt, source(path), lambda rows: rows.select("id").collect())
        assert type(told) is Misconfigured
        assert "no UTF-8" in str(told)
        stage = source(path, reader={"encoding": "ISO-8859-1", "lineSep": "\n"})
        assert attempt.rows(stage, resolved(stage)) == [(1, "café", 1)]
    told = refused(attempt, source(put(tmp_path / "z.csv", gzip.compress(GOOD.encode()))))
    assert "is compressed by gzip" in str(told)
    surrogate = put(tmp_path / "s.json", b'{"id":1,"name":"\xed\xa0\x80","amount":1}\n')
    assert "no UTF-8" in str(refused(attempt, source(surrogate)))


STRANGE_JSON = {
    '{"id":1,"nme":"x","amount":1}': r"no line .* has the field 'name' \(is 'nme' meant",
    '{"id":1,"Name":"x","amount":1}': "is 'Name' meant",
    '{"id":1,"name":"x","amount":1,"amount":2}': "a field twice",
    '{"id":1,"name":"x","amount":1,"more":{"a":1,"a":2}}': "a field twice",
    '{"id":1,"name":"x"}': "no line .* has the field 'amount'",
    '{"id":1,"name":"x","amount":1}\n{"id":2,"Name":"y","amount":1}': "in two ways: 'name' and 'Name'",
    '{"id":1,"name":"x","amount":1}{"id":2,"name":"y","amount":2}': "several records",
    '{"id":1,"name":"\\\\","amount":1} {"id":2,"name":"y","amount":2}': "several records",
    '{"id":1,"name":"x","amount":[]} 5': "several records",
}


def test_a_field_of_json_that_is_spelled_otherwise_or_there_twice_is_an_error(attempt, tmp_path):
    for at, (lines, said) in enumerate(STRANGE_JSON.items()):
        told = refused(attempt, source(put(tmp_path / f"{at}.json", lines + "\n\n")))
        assert type(told) is Misconfigured
        assert re.search(said, str(told)), told
    late = "\n".join([*['{"id":1,"name":"x","user":{"id":1}}'] * 1500, '{"user":{"userId":null},"amount":null}'])
    schema = f"{ORDERS}, user STRUCT<userId: BIGINT>"
    stage = source(put(tmp_path / "late.json", late), schema)
    assert read(attempt, stage).count() == 1501
    told = refused(attempt, source(put(tmp_path / "never.json", late.replace("amount", "amt")), schema))
    assert "no line" in str(told)
    assert "'amount'" in str(told)
    assert "userId" not in str(told)
    lacks = source(tmp_path / "4.json", if_missing="null")
    assert attempt.rows(lacks, resolved(lacks)) == [(1, "x", None)]


def test_a_file_of_json_lines_that_is_read_as_one_record_is_an_error_and_texts_may_have_brackets(attempt, tmp_path):
    text = json.dumps({"id": 1, "name": '}{ "}{\\" ] 5', "amount": 1}) + "\n"
    stage = source(put(tmp_path / "texts.json", text))
    assert attempt.rows(stage, resolved(stage)) == [(1, '}{ "}{\\" ] 5', 1)]
    whole = source(tmp_path / "texts.json", "line VARIANT", reader={"singleVariantColumn": "line"})
    assert read(attempt, whole).selectExpr("line:id::bigint").collect() == [(1,)]
    told = refused(attempt, source(put(tmp_path / "lines.json", text * 2), reader={"multiLine": "true"}))
    assert type(told) is Misconfigured
    assert "with multiLine" in str(told)


def test_fields_of_json_are_compared_at_every_depth_and_lenient_json_is_read(attempt, tmp_path):
    schema = "user STRUCT<userId: BIGINT>, tags ARRAY<STRUCT<`a-b`: STRING>>, more MAP<STRING, BIGINT>"
    good = '{"user":{"userId":1},"tags":[{"a-b":"x"}],"more":{"any":1},"new":1}\n{"user":null}\n'
    rows = attempt.rows(stage := source(put(tmp_path / "good.json", good), schema), resolved(stage))
    assert {row[0] and row[0].userId for row in rows} == {1, None}
    for wrong in (good.replace("userId", "userid"), good.replace("a-b", "a_b")):
        told = refused(attempt, source(put(tmp_path / "wrong.json", wrong), schema))
        assert "no line" in str(told)
    lenient = source(put(tmp_path / "lenient.json", "{'id':1,'name':'x'}\n{\"id\":2,\"amount\":3}\n"))
    assert attempt.rows(lenient, resolved(lenient)) == [(1, "x", None), (2, None, 3)]
    several = source(
        put(tmp_path / "several.json", '[\n{"id":1,\n"name":"x","amount":2}]'), reader={"multiLine": "true"}
    )
    assert attempt.rows(several, resolved(several)) == [(1, "x", 2)]
