"""Functions and queries as strangers write them, several in one region, with the rows of each, or the refusal.

The stages of a line are computed in one plan, in their order; a stage's inputs are its function's parameters after
`ctx`. The source `small` has the rows (0, 'a') to (5, 'f') of `id` and `kind`. A text for a name that ends in `.sql` is
a query, whose input is the stage before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SMALL: Final = """
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

def small(ctx):
    return ctx.spark.sql("select id, char(97 + id) kind from range(6)")
"""


@dataclass(frozen=True)
class Region:
    """Stages that read `small`; rows by stage, or `names`, which a refusal must have: texts that all stand in it."""

    what: str
    code: str
    rows: Mapping[str, list[tuple[Any, ...]]] | None = None
    names: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    """What a refusal must not have: the name of a stage that is not to blame."""


@dataclass(frozen=True)
class Query:
    """A query of the input `small`; rows, or what a refusal names."""

    what: str
    text: str
    rows: list[tuple[Any, ...]] | None = None
    names: str = ""


TWO: Final = """
def one(ctx, small):
    {one}

def two(ctx, small):
    {two}
"""


def two(what, one, other, rows=None, names=(), **more):
    """Two stages that read `small`, in one region."""
    code = TWO.format(one=one.replace("\n", "\n    "), two=other.replace("\n", "\n    "))
    return Region(what, code, rows and dict(zip(("one", "two"), rows, strict=True)), names, **more)


VIEW = 'small.where("{where}").createOrReplaceTempView("{name}")\nreturn ctx.spark.sql("select id from {name}")'
BY_SQL = (
    'small.createOrReplaceTempView("own_{stage}")\n'
    'ctx.spark.sql("create or replace temp view {name} as select id from own_{stage} where {where}")\n'
    'return ctx.spark.table("{name}")'
)
UDF = 'ctx.spark.udf.register("f", lambda x: x * {by}, LongType())\nreturn small.select(F.expr("f(id)").alias("v"))'
MANY = "F.when(F.col('id') == {0}, {0})"
CHAIN = "return small.select(" + MANY.format(0) + "".join(f".when(F.col('id') == {at}, {at})" for at in range(1, 500))
LOW, HIGH = [(0,), (1,), (2,)], [(3,), (4,), (5,)]

REGIONS: Final = (
    two("views of one name", VIEW.format(where="id < 3", name="t"), VIEW.format(where="id > 2", name="t"), (LOW, HIGH)),
    two(
        "views of one name in other case",
        VIEW.format(where="id < 3", name="T"),
        VIEW.format(where="id > 2", name="t"),
        (LOW, HIGH),
    ),
    two(
        "views of one name by SQL",
        BY_SQL.format(stage=1, where="id < 3", name="t"),
        BY_SQL.format(stage=2, where="id > 2", name="t"),
        (LOW, HIGH),
    ),
    two(
        "a global view",
        'small.createOrReplaceGlobalTempView("t")\nreturn ctx.spark.table("global_temp.t")',
        "return small",
        names=("one", "global"),
    ),
    two(
        "a view that the stage before has made",
        VIEW.format(where="id < 3", name="t"),
        'return small.join(ctx.spark.table("t"), "id").select("id")',
        names=("two", "t"),
    ),
    two(
        "functions of one name",
        UDF.format(by=2),
        UDF.format(by=10),
        ([(each * 2,) for each in range(6)], [(each * 10,) for each in range(6)]),
    ),
    two(
        "functions of one name by SQL",
        'ctx.spark.sql("create or replace temporary function f(x bigint) returns bigint return x + 1")\n'
        'return small.selectExpr("f(id) v")',
        'ctx.spark.sql("create or replace temporary function f(x bigint) returns bigint return x + 2")\n'
        'return small.selectExpr("f(id) v")',
        ([(each + 1,) for each in range(6)], [(each + 2,) for each in range(6)]),
    ),
    two(
        "a zone that one stage sets",
        'ctx.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")\nreturn small',
        "return small",
        names=("one", "spark.sql.session.timeZone"),
    ),
    two(
        "a setting that is read when rows are computed",
        'ctx.spark.conf.set("spark.sql.shuffle.partitions", "7")\nreturn small.groupBy("kind").count()',
        "return small",
        names=("one", "spark.sql.shuffle.partitions"),
    ),
    two(
        "a missing column in the stage before another",
        'return small.select("nowhere")',
        "return small",
        names=("one", "nowhere"),
        never=("stage two",),
    ),
    two("columns of the same name", 'return small.select("id", F.col("id"))', "return small", names=("one", "id")),
    Region(
        "a chain of 500 cases",
        f"\ndef one(ctx, small):\n    {CHAIN}.alias('v'))\n",
        {"one": [(each,) for each in range(6)]},
    ),
)

QUERIES: Final = (
    Query("a byte order mark", "\ufeffselect id from small where id = 1", [(1,)]),
    Query("a semicolon before a comment", "select id from small where id = 1; -- the end", [(1,)]),
    Query("comments around", "/* a /* nested */ one */ -- x\nselect id from small where id = 1\n-- the end", [(1,)]),
    Query("a semicolon in a text", "select ';' v from small where id = 1", [(";",)]),
    Query(
        "words of SQL in texts and names",
        "select 'from prices' v, id `from` from small where id = 1",
        [("from prices", 1)],
    ),
    Query(
        "FROM inside functions",
        "select extract(year from date'2013-01-01') y, trim(both 'x' from 'xax') t, "
        "substring('abc' from 2) s from small where id is not distinct from 1",
        [(2013, "a", "bc")],
    ),
    Query("a CTE", "with t as (select id from small), u as (select id from t where id > 4) select * from u", [(5,)]),
    Query("an input in other case, aliased", "select s.id from SMALL as s where s.id = 1", [(1,)]),
    Query("an input in back-ticks", "select id from `small` where id = 1", [(1,)]),
    Query("a subquery of the input", "select id from small where id in (select max(id) from small)", [(5,)]),
    Query(
        "a generator", "select id, x from small lateral view explode(array(7, 8)) t as x where id = 1", [(1, 7), (1, 8)]
    ),
    Query(
        "VALUES and range",
        "select r.id from small, range(3) r, (values (1), (2)) v(x) where r.id = v.x and small.id = 0",
        [(1,), (2,)],
    ),
    Query(
        "a set operation", "select id from small where id = 1 union all select id from small where id = 2", [(1,), (2,)]
    ),
    Query("CRLF", "select id\r\nfrom small\r\nwhere id = 1\r\n", [(1,)]),
    Query("a table after a comma", "select id from small, prices", names="prices"),
    Query("TABLE", "table prices", names="prices"),
    Query("a join", "select id from small natural join prices", names="prices"),
    Query("a path", "select id from small, parquet.`/tmp/x`", names="/tmp/x"),
    Query("identifier()", "select * from identifier('prices')", names="prices"),
    Query("a table in a subquery", "select id, (select max(p) from prices) from small", names="prices"),
    Query("a table of a schema by an input's name", "select id from default.small", names="small"),
    Query(
        "a CTE that hides nothing outside",
        "select id from (with prices as (select 1 id) select id from prices), prices",
        names="prices",
    ),
    Query("two statements", "select id from small; select 1", names="statement"),
    Query("no query", "insert into small values (1, 'a')", names="insert"),
    Query("a column that is not there", "select nowhere from small", names="nowhere"),
)
