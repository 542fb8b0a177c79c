"""A line of csv or JSON is a row of the schema, or the reading fails, whichever columns are used later."""

import gzip
import json
import re
from datetime import date
from decimal import Decimal

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


@pytest.mark.parametrize("kind", ["BIGINT", "DOUBLE", "FLOAT"])
def test_a_condition_on_the_value_that_does_not_fit_does_not_leave_its_line_out(attempt, tmp_path, kind):
    """Spark may ask a later condition first where it merges the two: no row of the line is left to fail."""
    path = put(tmp_path / "a.csv", "1,ann,\n2,bob,1o\n")
    stage = source(path, f"id BIGINT, name STRING, amount {kind}")
    for use in ("amount is not null", "cast(amount as string) <> ''", "id > 5"):
        told = refused(attempt, stage, lambda rows, use=use: rows.where(use).select("name").collect())
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


EXACT = {
    "DECIMAL(10,1)": (
        ["1.10", "-1.5", "1e2", "15e-1", "10e-1", "0e-9", "'1,234.5'"],
        ["1.15", "-1.25", "1e-3", "1.00000001", "1e99", "'1,5'", "'12,34'"],
    ),
    "DECIMAL(38,18)": (
        ["12345678901234567890.123456789012345678", "1.10"],
        ["1.0000000000000000001", "123456789012345678901"],
    ),
    "DATE": (
        ["'2013-01-02'", "'2013-1-2'", "'2013-01-02 00:00:00'", "'2013-01-02T00:00:00.000Z'"],
        ["'2013-01-02 23:59:59'", "'2013-02-30'", "'2013-01-02 xx'", "'15706'", "'20130102'"],
    ),
    "TIMESTAMP": (
        ["'2013-01-02 10:00:00.123456000'", "'2013-01-02T10:00:00+05:00'", "'2013-01-02'"],
        ["'2013-01-02 10:00:00.1234567'", "'10:00:00'", "'T10:00'", "'2013-02-30 10:00:00'"],
    ),
    "TIMESTAMP_NTZ": (
        ["'2013-01-02 10:00:00.1234560'", "'2013-01-02'", "'2013-01-02T10:00'"],
        ["'2013-01-02 10:00:00.1234567'", "'2013-01-02 10:00:00+05:00'", "'2013-01-02 10:00:00Z'"],
    ),
    "DOUBLE": (["1e39", "1e-3", "'Infinity'", "'NaN'"], ["1e400", "-1e999"]),
    "FLOAT": (["1e38", "1.5", "'-Infinity'"], ["1e39", "-1e39"]),
    "TINYINT": (["127", "-128"], ["128", "200", "-129"]),
    "INTERVAL DAY TO SECOND": (
        ["'INTERVAL '1 10:00:00.123456' DAY TO SECOND'"],
        ["'INTERVAL '1 10:00:00.1234567' DAY TO SECOND'"],
    ),
}
"""For each type, what it can say, and what it cannot."""


def written(form, value):
    text = value.removeprefix("'").removesuffix("'").replace("\\'", "'")
    if form == "csv":
        return f'"{text}"' if "," in text else text
    return json.dumps(text) if value.startswith("'") else text


def exact_file(path, values):
    texts = [written(path.suffix[1:], each) for each in values]
    line = "{},{}\n" if path.suffix == ".csv" else '{{"id":{},"v":{}}}\n'
    return put(path, "".join(line.format(at, text) for at, text in enumerate(texts)))


NESTED = {"{}": "{}", '[{{"x": {}}}]': "ARRAY<STRUCT<x: {}>>", '{{"k": {}}}': "MAP<STRING, {}>"}


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_value_is_what_its_line_says_or_is_kept_as_one_that_does_not_fit(attempt, tmp_path, form):
    shapes = NESTED if form == "json" else {"{}": "{}"}
    columns = [(wrap, kind, NESTED[wrap].format(kind)) for kind in EXACT for wrap in shapes]
    lines, wrong = [], set()
    for at, (wrap, kind, _) in enumerate(columns):
        for value, is_wrong in [(v, False) for v in EXACT[kind][0]] + [(v, True) for v in EXACT[kind][1]]:
            if is_wrong:
                wrong.add(len(lines))
            lines.append(line_with(form, len(lines), at, wrap.format(written(form, value)), len(columns)))
    schema = ", ".join(["id BIGINT", *(f"v{at} {wrapped}" for at, (_, _, wrapped) in enumerate(columns))])
    path = put(tmp_path / f"a.{form}", "\n".join(lines))
    rows = read(attempt, source(path, schema, on_malformed="keep")).collect()
    assert len(rows) == len(lines)
    kept = {row.id: row["_corrupt_record"] for row in rows if row["_corrupt_record"] is not None}
    assert {lines[at] for at in kept} == {lines[at] for at in wrong}
    assert all((row["_corrupt_file"] is not None) == (row.id in wrong) for row in rows)
    nulls = {row.id for row in rows if all(value is None for value in row[1:-2])}
    assert nulls == wrong


def line_with(form, number, at, text, count):
    if form == "csv":
        return f"{number}," + ",".join(text if each == at else "" for each in range(count))
    return f'{{"id":{number},' + ",".join(f'"v{each}":{text if each == at else "null"}' for each in range(count)) + "}"


@pytest.mark.parametrize("form", ["csv", "json"])
def test_values_of_every_type_come_as_they_are_written_and_a_lost_one_is_an_error(attempt, tmp_path, form):
    stage = source(exact_file(tmp_path / f"a.{form}", ["1.10", "1e2", "-0.5"]), "id BIGINT, v DECIMAL(10,1)")
    assert [row[1] for row in attempt.rows(stage, resolved(stage))] == [
        Decimal("1.1"),
        Decimal("100.0"),
        Decimal("-0.5"),
    ]
    bad = exact_file(tmp_path / f"b.{form}", ["1.10", "1.15"])
    for use in (lambda rows: rows.select("id").collect(), USES["no column"]):
        told = refused(attempt, source(bad, "id BIGINT, v DECIMAL(10,1)"), use)
        assert type(told) is Misconfigured
        assert str(bad) in str(told)
        assert "v decimal(10,1)" in str(told)
    day = source(exact_file(tmp_path / f"d.{form}", ["'2013-01-02 10:00'"]), "id BIGINT, v DATE")
    own = files_source(
        "own",
        str(tmp_path / f"d.{form}"),
        format=form,
        schema="id BIGINT, v DATE",
        reader={"dateFormat": "yyyy-MM-dd HH:mm"},
    )
    if form == "json":
        several = put(tmp_path / "e.json", '{"id":1,"v":1234567890123456789.15}')
        stage = source(several, "id BIGINT, v DECIMAL(20,1)", reader={"multiLine": "true"})
        assert "v decimal(20,1)" in str(refused(attempt, stage))
        stage = source(several, "id BIGINT, v DECIMAL(38,18)", reader={"multiLine": "true"})
        assert attempt.rows(stage, resolved(stage)) == [(1, Decimal("1234567890123456789.150000000000000000"))]
    assert "v date" in str(refused(attempt, day))
    assert attempt.rows(own, resolved(own)) == [(0, date(2013, 1, 2))]


def test_a_number_of_json_is_no_time_unless_the_source_says_how_it_is_read(attempt, tmp_path):
    numbers = ["1356998400", "1356998400000", "2013", "1.3569984e9", "'1356998400'", "null"]
    path = exact_file(tmp_path / "a.json", numbers)
    for kind in ("TIMESTAMP", "DATE", "TIMESTAMP_NTZ", "STRUCT<x: DATE>"):
        form = "{}" if "<" not in kind else '{{"x": {}}}'
        lines = (f'{{"id":{at},"v":{form.format(written("json", each))}}}\n' for at, each in enumerate(numbers))
        put(path, "".join(lines))
        rows = read(attempt, source(path, f"id BIGINT, v {kind}", on_malformed="keep")).collect()
        assert [row["_corrupt_record"] is None for row in rows] == [False] * 5 + [True]
    path = exact_file(path, ["1356998400"])
    seconds = source(path, "id BIGINT, v TIMESTAMP", reader={"timestampFormat": "yyyy-MM-dd HH:mm:ss"})
    assert read(attempt, seconds).selectExpr("unix_seconds(v)").collect() == [(1356998400,)]


@pytest.mark.parametrize(
    ("form", "encoding"), [("csv", "UTF-8"), ("json", "UTF-8"), ("csv", "UTF-16LE"), ("json", "UTF-16LE")]
)
def test_the_modes_of_the_reader_keep_or_drop_lines_and_read_no_other_values(attempt, tmp_path, form, encoding):
    reader = {} if encoding == "UTF-8" else {"encoding": encoding, "lineSep": "\n"}
    path = exact_file(tmp_path / f"a.{form}", ["1.10", "1.15", "'x'", "1e2"])
    put(path, path.read_text().encode(encoding))
    for mode, right in (("PERMISSIVE", ["1.1", None, None, "100.0"]), ("DROPMALFORMED", ["1.1", "100.0"])):
        stage = source(path, "id BIGINT, v DECIMAL(5,1)", reader={**reader, "mode": mode})
        rows = read(attempt, stage)
        assert [row.v for row in rows.selectExpr("string(v) v").collect()] == right
        assert rows.select("id").count() == len(right)
    stage = source(
        path,
        "id BIGINT, v DECIMAL(5,1), bad STRING",
        reader={"columnNameOfCorruptRecord": "bad", "mode": "permissive", **reader},
    )
    assert [row.bad is not None for row in read(attempt, stage).collect()] == [False, True, True, False]


WRONG_TEXTS = {
    "a.csv": [("id STRING, v STRING", 'x,"open\n1,y\n', "ends within quotes")],
    "a.json": [
        ("v STRING", '{"v": "a", "v": "b"}\n', "a field twice"),
        ("v STRING", '{"v": "a"}{"v": "b"}\n', "several records"),
        ("v STRING", '{"V": "a"}\n', "no line"),
    ],
}


def test_the_text_is_looked_through_in_every_mode_and_encoding(attempt, tmp_path):
    latin = {"encoding": "ISO-8859-1", "lineSep": "\n"}
    for name, cases in WRONG_TEXTS.items():
        for at, (schema, text, said) in enumerate(cases):
            for more in ({"mode": "PERMISSIVE"}, {"encoding": "UTF-16LE", "lineSep": "\n"}, latin):
                path = put(tmp_path / f"{at}{name}", text.encode(more.get("encoding", "utf-8")))
                assert said in str(refused(attempt, source(path, schema, reader=more)))
    never = put(tmp_path / "never.csv", 'é,1\n"x,2\ny,3\n'.encode("latin-1"))
    assert "never closed" in str(
        refused(attempt, source(never, reader={"encoding": "ISO-8859-1", "multiLine": "true"}))
    )
    packed = put(tmp_path / "packed.csv", gzip.compress(GOOD.encode()))
    assert "is compressed by gzip" in str(refused(attempt, source(packed, reader=latin)))
    ascii_ = put(tmp_path / "ascii.csv", "1,é,2\n".encode("latin-1"))
    assert "no text in the encoding US-ASCII" in str(refused(attempt, source(ascii_, reader={"encoding": "US-ASCII"})))


def test_half_of_a_character_in_json_is_an_error(attempt, tmp_path):
    whole = r'{"v": "\ud83d\ude00 \\ud83d \uD83D\uDE00"}' + "\n"
    stage = source(put(tmp_path / "a.json", whole), "v STRING")
    assert attempt.rows(stage, resolved(stage)) == [("\U0001f600 \\ud83d \U0001f600",)]
    for half in (r"\ud83d", r"\ude00", r"\ud83d\ud83d\ude00", r"\\\uD83Dx", r"\ud83d\ude00\ude00"):
        path = put(tmp_path / "b.json", whole + f'{{"v": "{half}"}}\n')
        assert "half of a character" in str(refused(attempt, source(path, "v STRING")))


@pytest.mark.parametrize(
    ("text", "is_closed"),
    [
        ('1,"a\nb"\n2,"say ""x""\n"\n3,5" pipe\n4,""\n', True),
        ('1,ann\n2,"never closed\n3,cy\n', False),
        ('1,"a"\n2,"b ""c""\n', False),
        ('"1",x\n2,"', False),
    ],
)
def test_a_quote_that_is_never_closed_is_an_error_of_records_of_several_lines(attempt, tmp_path, text, is_closed):
    stage = source(put(tmp_path / "a.csv", text), "id BIGINT, v STRING", reader={"multiLine": "true"})
    if is_closed:
        found = attempt.rows(stage, resolved(stage))
        assert [row[1] for row in found] == ["a\nb", 'say "x"\n', '5" pipe', None]
    else:
        assert "never closed" in str(refused(attempt, stage))
