"""Files as strangers write them, with the rows that they have, or the refusal.

A line is what lies in a folder, how `files_source` is declared on it, and what is right: rows in any order, or a word
that the refusal names. A file's content is bytes; `Link` is a symbolic link to another name.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weir.dataflow import files_source


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    to: str


@dataclass(frozen=True)
class Files:
    """A folder, a declaration on it, and the rows that are right; None if it is refused by a text that has `names`."""

    what: str
    content: Mapping[str, bytes | Link]
    rows: list[tuple[Any, ...]] | None = None
    names: str = ""
    pattern: str = "*"
    given: Mapping[str, Any] = field(default_factory=dict)


def laid_out(case, folder):
    """The source that is declared on the folder of a case, which is made."""
    for name, content in case.content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.to)
        else:
            path.write_bytes(content)
    return files_source("given", f"{folder}/{case.pattern}", **case.given)


def parquet(compression="snappy", **columns):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression=compression)
    return out.getvalue()


def one(what, schema, rows=None, names="v", compression="snappy", **columns):
    """A case of one Parquet file."""
    content = {"a.parquet": parquet(compression, **columns)}
    return Files(f"parquet: {what}", content, rows, names, given={"schema": schema} if schema else {})


def longs(*values):
    return pa.array(values, pa.int64())


def called_text(*values):
    """Bytes of which a file says that they are text, whatever they are."""
    return pa.array(values, pa.binary()).view(pa.string())


def within(value, depth):
    """A value in a list in a struct, so many times."""
    return value if not depth else [{"x": within(value, depth - 1)}]


def csv(what, text, rows=None, *, names="", schema="id BIGINT, name STRING", file="a.csv", **more):
    """A case of one csv file with a header."""
    reader = more.pop("reader", {"header": "true"})
    content = {file: text if isinstance(text, bytes) else text.encode()}
    given = {"format": "csv", "schema": schema, **({"reader": reader} if reader else {}), **more}
    return Files(f"csv: {what}", content, rows, names, given=given)


def lines(what, text, rows=None, *, names="", schema="userId BIGINT, name STRING", **more):
    """A case of one file of JSON lines."""
    content = {"a.json": text if isinstance(text, bytes) else text.encode()}
    return Files(f"json: {what}", content, rows, names, given={"format": "json", "schema": schema, **more})


NOON: Final = datetime(2013, 1, 1, 12, 0, 0, 123456)  # noqa: DTZ001  of a clock
MIDNIGHT: Final = datetime(2013, 1, 1)  # noqa: DTZ001
BOM: Final = b"\xef\xbb\xbf"
ONE: Final = b"id,name\n1,ann\n"
CSV: Final = {"format": "csv", "schema": "id BIGINT, name STRING", "reader": {"header": "true"}}
BY_DAY: Final = {"format": "parquet", "schema": "id BIGINT, day DATE"}
ANN: Final = [(1, "ann")]
WIDE: Final = {f"c{number}": "\u00e9" for number in range(300)}

FILES: Final = (
    # csv: records
    csv("quotes doubled as RFC 4180 has them", 'id,name\n1,"He said ""hi"" twice"\n', [(1, 'He said "hi" twice')]),
    csv("a backslash is a character", 'id,name\n1,"C:\\new"\n2,a\\b\n', [(1, "C:\\new"), (2, "a\\b")]),
    csv(
        "a separator and a line end in quotes",
        'id,name\n1,"a,b"\n2,"x\ny"\n',
        [(1, "a,b"), (2, "x\ny")],
        reader={"header": "true", "multiLine": "true"},
    ),
    csv("a quoted line end without multiLine", 'id,name\n1,"x\ny"\n', names="a.csv"),
    csv("a quoted line end in a column of texts only", 'name\n"x\ny"\n', names="a.csv", schema="name STRING"),
    csv("CRLF", "id,name\r\n1,ann\r\n", ANN),
    csv("a byte order mark", BOM + ONE, ANN),
    csv("a header in another order", "name,id\nann,1\n", names="a.csv"),
    csv("a header in other case", "ID,Name\n1,ann\n", ANN),
    csv("a column too many in a line", "id,name\n1,ann,x\n", names="a.csv"),
    csv("a column too few in a line", "id,name\n1,ann\n2\n", names="a.csv"),
    csv("no number", "id,name\none,ann\n", names="a.csv"),
    csv("a number beyond its type", "id,name\n9223372036854775808,ann\n", names="a.csv"),
    csv(
        "a decimal with too many digits", "id,name\n12345.6,ann\n", names="a.csv", schema="id DECIMAL(5,1), name STRING"
    ),
    csv("a fraction in a whole number", "id,name\n1.5,ann\n", names="a.csv"),
    csv("empty texts, in quotes or not, are null as Spark has it", 'id,name\n1,\n2,""\n', [(1, None), (2, None)]),
    csv("blanks in quotes", 'id,name\n1," a "\n', [(1, " a ")]),
    csv("no line end at the end", "id,name\n1,ann", ANN),
    csv("bytes that are no UTF-8", b"id,name\n1,caf\xe9\n", names="a.csv"),
    csv(
        "Latin-1, declared",
        b"id,name\n1,caf\xe9\n",
        [(1, "caf\u00e9")],
        reader={"header": "true", "encoding": "ISO-8859-1"},
    ),
    csv("only a header", "id,name\n", []),
    csv("an empty file", b"", []),
    csv("a header without a column of the schema", "id\n1\n", names="a.csv"),
    csv("gzip", gzip.compress(ONE), ANN, file="a.csv.gz"),
    csv("gzip that is cut", gzip.compress(ONE * 50)[:40], names="a.csv.gz", file="a.csv.gz"),
    csv("gzip by another name", gzip.compress(ONE), names="a.csv"),
    csv("an impossible date", "id,at\n1,2013-02-30\n", names="a.csv", schema="id BIGINT, at DATE"),
    csv(
        "a time without a zone is UTC",
        "id,at\n1,2013-01-01 12:00:00\n",
        [(1, datetime(2013, 1, 1, 12, tzinfo=UTC))],
        schema="id BIGINT, at TIMESTAMP",
    ),
    csv("blanks between tabs, which Spark leaves out", "1\tx\n\t\n", names="a.csv", reader={"sep": "\t"}),
    csv("a number of Java's", "id,name\n12d,ann\n", names="a.csv", schema="id DOUBLE, name STRING"),
    csv(
        "floats, and texts that end like Java's",
        "id,name\n-1.5e3,7d\n.5,0x\n",
        [(-1500.0, "7d"), (0.5, "0x")],
        schema="id DOUBLE, name STRING",
    ),
    csv("null in a column that is NOT NULL", "id,name\n,ann\n", names="id", schema="id BIGINT NOT NULL, name STRING"),
    csv("an array", "id,name\n1,[]\n", names="name", schema="id BIGINT, name ARRAY<STRING>"),
    csv("UTF-16", "1,\u00e9\n".encode("utf-16"), names="UTF-16", reader={"encoding": "UTF-16"}),
    csv(
        "UTF-16, with the order of its bytes and the end of a line",
        "1,\u00e9\n2,x\n".encode("utf-16-le"),
        [(1, "\u00e9"), (2, "x")],
        reader={"encoding": "UTF-16LE", "lineSep": "\n"},
    ),
    csv(
        "a decimal with too many places, mode PERMISSIVE",
        "1.15,a\nx,b\n1.1,c\n",
        [(None, "a"), (None, "b"), (Decimal("1.1"), "c")],
        schema="id DECIMAL(5,1), name STRING",
        reader={"mode": "PERMISSIVE"},
    ),
    csv("a decimal as written", "id,name\n1.10,a\n", [(Decimal("1.10"), "a")], schema="id DECIMAL(10,2), name STRING"),
    # json
    lines("a field in other case", '{"userid": 1, "name": "ann"}\n', names="userId"),
    lines("a field that no line has", '{"userId": 1}\n{"userId": 2}\n', names="name"),
    lines("a field that some lines lack", '{"userId": 1, "name": "ann"}\n{"userId": 2}\n', [(1, "ann"), (2, None)]),
    lines("more fields than the schema", '{"userId": 1, "name": "ann", "more": [1]}\n', ANN),
    lines("a field twice in a line", '{"userId": 1, "userId": 2, "name": "ann"}\n', names="userId"),
    lines("a line that is cut", '{"userId": 1, "name": "ann"}\n{"userId": 2, "na\n', names="a.json"),
    lines("a text where a number is", '{"userId": "one", "name": "ann"}\n', names="a.json"),
    lines("a fraction where a whole number is", '{"userId": 1.5, "name": "ann"}\n', names="a.json"),
    lines("beyond 2^53", '{"userId": 9007199254740993, "name": "ann"}\n', [(9007199254740993, "ann")]),
    lines("bytes that are no UTF-8", b'{"userId": 1, "name": "caf\xe9"}\n', names="a.json"),
    lines("a byte order mark", BOM + b'{"userId": 1, "name": "ann"}\n', ANN),
    lines("blank lines between", '{"userId": 1, "name": "ann"}\n\n', ANN),
    lines("an array a line", '[{"userId": 1, "name": "ann"}]\n', ANN),
    lines(
        "milliseconds where a timestamp is",
        '{"userId": 1356998400000}\n',
        names="userId timestamp",
        schema="userId TIMESTAMP",
    ),
    lines("a number where a date is", '{"userId": 15706}\n', names="userId date", schema="userId DATE"),
    lines("half of a character", '{"userId": 1, "name": "\\ud83d"}\n', names="a.json"),
    lines("a character as JSON escapes it", '{"userId": 1, "name": "\\ud83d\\ude00"}\n', [(1, "\U0001f600")]),
    lines(
        "digits in a text of Latin-1",
        '{"userId": 1, "name": 1.10}\n{"userId": 2, "name": "\u00e9"}\n'.encode("latin-1"),
        names="STRING",
        reader={"encoding": "ISO-8859-1", "lineSep": "\n"},
    ),
    lines(
        "Latin-1, with the end of a line",
        '{"userId": 1, "name": "\u00e9"}\n'.encode("latin-1"),
        [(1, "\u00e9")],
        reader={"encoding": "ISO-8859-1", "lineSep": "\n"},
    ),
    lines(
        "null in a struct where NOT NULL is",
        '{"name": {"a": null}}\n',
        names="name",
        schema="name STRUCT<a: INT NOT NULL>",
    ),
    lines("a map with keys that are numbers", '{"name": {"1": 1}}\n', names="name", schema="name MAP<INT, INT>"),
    # parquet
    one("a timestamp where the schema says long", "v BIGINT", v=[NOON]),
    one("a timestamp in a list where the schema says long", "v ARRAY<STRUCT<x: BIGINT>>", v=[[{"x": NOON}]]),
    one("a date where the schema says int", "v INT", v=[date(2013, 1, 1)]),
    one("an int where the schema says date", "v DATE", v=pa.array([15706], pa.int32())),
    one("a time of day where the schema says long", "v BIGINT", v=[time(10)]),
    one("nanoseconds where the schema says timestamp", "v TIMESTAMP", v=pa.array([1], pa.timestamp("ns"))),
    one("32 bits without a sign where the schema says int", "v INT", v=pa.array([4_000_000_000], pa.uint32())),
    one("32 bits without a sign where the schema says double", "v DOUBLE", v=pa.array([4_000_000_000], pa.uint32())),
    one("a decimal where the schema says binary", "v BINARY", v=[Decimal("1.25")]),
    one("a decimal where the schema has fewer digits", "v DECIMAL(5,1)", v=[Decimal("1.25")]),
    one("ints in a struct where the schema says tinyint", "v STRUCT<x: TINYINT>", v=[{"x": 200}]),
    one("nulls without a type where the schema says text", "v STRING", v=pa.nulls(1)),
    one("null in a column that is NOT NULL", "v BIGINT NOT NULL", v=longs(1, None)),
    one("bytes that are no text, declared as text", "v STRING", v=[b"a", b"\xff"]),
    one("bytes in a list that are no text, declared as text", "v ARRAY<STRING>", v=[[b"a", b"\xff"]]),
    one("text that is none", "v STRING", v=called_text(b"a", b"caf\xe9")),
    one("text that is none, without a schema", "", v=called_text(b"a", b"caf\xe9")),
    one(
        "text that is none, in a list",
        "v ARRAY<STRING>",
        v=pa.ListArray.from_arrays([0, 2], called_text(b"a", b"caf\xe9")),
    ),
    one(
        "text that is none, in a struct beside numbers and lists of them",
        "",
        v=pa.StructArray.from_arrays(
            [longs(1), pa.array([[1, None]], pa.list_(pa.int64())), called_text(b"caf\xe9")], ["a", "b", "c"]
        ),
    ),
    one(
        "texts, nulls, and lists without texts",
        "",
        [(None, ["a", None], [1, None], {"x": 1, "y": None}), ("\u00e9", None, None, None)],
        a=[None, "\u00e9"],
        b=[["a", None], None],
        c=[[1, None], None],
        d=pa.array([{"x": 1, "y": None}, None], pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ),
    one("texts at a depth of ten", "", [(within("\u00e9", 5),)], v=[within("\u00e9", 5)]),
    one("three hundred texts in a struct", "", [(WIDE,)], v=[WIDE]),
    one(
        "bytes that are text, declared as text",
        "v STRING, w ARRAY<STRING>",
        [("\u00e9", ["x"])],
        v=["\u00e9".encode()],
        w=[[b"x"]],
    ),
    one(
        "types that are widened",
        "a SMALLINT, b INT, c BIGINT, d DOUBLE, e DECIMAL(12,2), f BIGINT, g DECIMAL(20,0), h DOUBLE, i DECIMAL(20,4), "
        "j TIMESTAMP_NTZ, k TIMESTAMP, l BINARY, m STRUCT<x: BIGINT>",
        [
            (
                *(-5, 60000, -70000, 70000.0, Decimal("7.00"), 4_000_000_000, Decimal(2**63 + 5)),
                *(0.10000000149011612, Decimal("1.2500"), MIDNIGHT, NOON.replace(tzinfo=UTC)),
                *(b"x", {"x": 1}),
            )
        ],
        a=pa.array([-5], pa.int8()),
        b=pa.array([60000], pa.uint16()),
        c=pa.array([-70000], pa.int32()),
        d=pa.array([70000], pa.int32()),
        e=pa.array([7], pa.int32()),
        f=pa.array([4_000_000_000], pa.uint32()),
        g=pa.array([2**63 + 5], pa.uint64()),
        h=pa.array([0.1], pa.float32()),
        i=[Decimal("1.25")],
        j=[date(2013, 1, 1)],
        k=pa.array([NOON], pa.timestamp("us")),
        l=["x"],
        m=pa.array([{"x": 1}], pa.struct([("x", pa.int32())])),
    ),
    one("compressed by Brotli", "v BIGINT", names="a.parquet", compression="brotli", v=longs(1)),
    Files(
        "parquet: a column that the first file lacks",
        {"a.parquet": parquet(id=longs(1)), "b.parquet": parquet(id=longs(2), tip=longs(3))},
        [(1, None), (2, 3)],
    ),
    Files(
        "parquet: long where the schema says int",
        {"a.parquet": parquet(id=longs(2**40))},
        names="id",
        given={"schema": "id INT"},
    ),
    Files(
        "parquet: an int that a smallint has not",
        {"a.parquet": parquet(id=pa.array([1, 70000], pa.int32()))},
        names="id",
        given={"schema": "id SMALLINT"},
    ),
    Files(
        "parquet: ints that a smallint and a tinyint have",
        {"a.parquet": parquet(id=pa.array([-32768, None], pa.int32()), t=pa.array([127, None], pa.int32()))},
        [(-32768, 127), (None, None)],
        given={"schema": "id SMALLINT, t TINYINT"},
    ),
    Files(
        "parquet: int where the schema says long",
        {"a.parquet": parquet(id=pa.array([1], pa.int32()))},
        [(1,)],
        given={"schema": "id BIGINT"},
    ),
    Files(
        "parquet: int in one file, text in another",
        {"a.parquet": parquet(id=longs(1)), "b.parquet": parquet(id=["x"])},
        names="id",
    ),
    Files(
        "parquet: a column of the schema that no file has",
        {"a.parquet": parquet(id=longs(1))},
        names="name",
        given={"schema": "id BIGINT, name STRING"},
    ),
    Files("parquet: names that differ in case", {"a.parquet": parquet(FOO=longs(1), foo=longs(2))}, names="foo"),
    Files("parquet: no Parquet", {"a.parquet": b"id,name\n"}, names="a.parquet"),
    Files("parquet: cut", {"a.parquet": parquet(id=longs(1))[:-9]}, names="a.parquet"),
    # folders and names
    Files(
        "a partition column in the folder's name",
        {"day=2013-01-01/a.parquet": parquet(id=longs(1))},
        [(1, date(2013, 1, 1))],
        pattern="day={start:%Y-%m-%d}/*.parquet",
        given=BY_DAY,
    ),
    Files(
        "a partition column of several folders",
        {"day=2013-01-01/a.parquet": parquet(id=longs(1)), "day=2013-01-02/a.parquet": parquet(id=longs(2))},
        [(1, date(2013, 1, 1)), (2, date(2013, 1, 2))],
        pattern="day=*/*.parquet",
        given=BY_DAY,
    ),
    Files(
        "partition columns of whole numbers, without a schema",
        {"year=2013/n=3000000000/a.parquet": parquet(id=longs(1))},
        [(1, 2013, 3000000000)],
        pattern="year=*/n=*/*.parquet",
    ),
    Files(
        "a partition column with more places than its type",
        {"x=1.15/a.parquet": parquet(id=longs(1))},
        names="x=1.15",
        pattern="x=*/*.parquet",
        given={"schema": "id BIGINT, x DECIMAL(5,1)"},
    ),
    Files(
        "a partition column of a decimal",
        {"x=1.10/a.parquet": parquet(id=longs(1))},
        [(1, Decimal("1.1"))],
        pattern="x=*/*.parquet",
        given={"schema": "id BIGINT, x DECIMAL(5,1)"},
    ),
    Files(
        "a partition column in two spellings",
        {"X=1/a.parquet": parquet(id=longs(1)), "x=2/a.parquet": parquet(id=longs(2))},
        names="'X' and 'x'",
        pattern="*/*.parquet",
        given={"schema": "id BIGINT, x INT"},
    ),
    Files("a link to a file", {"real.bin": ONE, "b.csv": Link("real.bin")}, ANN, pattern="*.csv", given=CSV),
    Files("a file and a link to it", {"a.csv": ONE, "b.csv": Link("a.csv")}, names="b.csv", pattern="*.csv", given=CSV),
    Files(
        "a linked folder below **",
        {"in/a/x.csv": ONE, "out/x.csv": b"id,name\n2,bob\n", "in/b": Link("../out")},
        [*ANN, (2, "bob")],
        pattern="in/**/*.csv",
        given=CSV,
    ),
    Files("a link to nothing", {"a.csv": ONE, "b.csv": Link("gone")}, names="b.csv", pattern="*.csv", given=CSV),
    Files(
        "a folder whose name matches",
        {"c.csv/part-0.csv": ONE, "a.csv": ONE},
        names="c.csv",
        pattern="*.csv",
        given=CSV,
    ),
    Files(
        "names with blanks and signs",
        dict.fromkeys(
            (
                "a b.csv",
                "h#1.csv",
                "50%.csv",
                "a+b.csv",
                "é.csv",
                "q?x.csv",
                "br[1].csv",
                "a%20b.csv",
                "c{d}.csv",
                "e,f.csv",
            ),
            ONE,
        ),
        ANN * 10,
        pattern="*.csv",
        given=CSV,
    ),
    Files("folders with blanks and signs", {"my lake/h#1/50%/\u00e9/a.csv": ONE}, ANN, pattern="**/*.csv", given=CSV),
    Files(
        "a colon in the name",
        {"2026-01-01T00:00:00.csv": ONE},
        names="2026-01-01T00:00:00.csv",
        pattern="*.csv",
        given=CSV,
    ),
    Files("hidden files", {"a.csv": ONE, "_b.csv": ONE, ".c.csv": ONE}, ANN, pattern="*.csv", given=CSV),
)
"""A colon may be read instead, some day: then its line has rows."""
