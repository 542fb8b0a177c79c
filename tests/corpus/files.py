"""Files as strangers write them, with the rows that they have, or the refusal.

A line is what lies in a folder, how `files_source` is declared on it, and what is right: rows in any order, or a word
that the refusal names. A file's content is bytes; `Link` is a symbolic link to another name.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq


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


def parquet(**columns):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def longs(*values):
    return pa.array(values, pa.int64())


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


BOM: Final = b"\xef\xbb\xbf"
ONE: Final = b"id,name\n1,ann\n"
CSV: Final = {"format": "csv", "schema": "id BIGINT, name STRING", "reader": {"header": "true"}}
BY_DAY: Final = {"format": "parquet", "schema": "id BIGINT, day DATE"}
ANN: Final = [(1, "ann")]

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
    # parquet
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
