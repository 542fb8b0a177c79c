"""What a stage's function makes in the session is its own: views, functions, variables, a schema, settings."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from weir.dataflow import broadcast_state, keyed_state
from weir.errors import Misconfigured
from weir.formats.region_job import InputToRead, StateToRead
from weir.topology.partitions import PLAIN, Layout
from weir_spark.region import region

pytestmark = pytest.mark.spark

SAME_NAMES = '''
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

def numbers(ctx):
    return ctx.spark.range(5)

def _view(ctx, rows, where):
    rows.where(where).createOrReplaceTempView("t")
    return ctx.spark.sql("select id from t")

def small(ctx, rows):
    return _view(ctx, rows, "id < 2")

def big(ctx, rows):
    return _view(ctx, rows, "id > 2")

def _of_sql(ctx, rows, factor):
    rows.createOrReplaceTempView("raw")
    ctx.spark.sql(f"""-- a view of a view
        create or replace temporary view `of raw` as select id * {factor} id from raw""")
    ctx.spark.sql(f"create or replace temp function g(x bigint) returns bigint return x * {factor}")
    ctx.spark.sql(f"declare or replace variable v bigint default {factor}")
    ctx.spark.sql(f"cache table kept as select {factor}L k")
    return ctx.spark.sql("select g(id) + v + k id from `of raw` cross join kept where id < 10")

def doubled(ctx, rows):
    return _of_sql(ctx, rows, 2)

def trebled(ctx, rows):
    return _of_sql(ctx, rows, 3)

def _registered(ctx, rows, factor):
    ctx.spark.udf.register("f", lambda x: x * factor, "bigint")
    return rows.select(F.expr("f(id)").alias("id"))

def twice(ctx, rows):
    return _registered(ctx, rows, 2)

def tenfold(ctx, rows):
    return _registered(ctx, rows, 10)

def again(ctx, rows):
    rows.where("id < 40").createOrReplaceTempView("t")
    rows.limit(0).createOrReplaceTempView("raw")
    ctx.spark.udf.register("f", lambda x: 0, "bigint")
    return ctx.spark.table("t")

def _views(ctx):
    ctx.spark.sql("create database if not exists elsewhere")
    for schema, number in (("default", 1), ("elsewhere", 2)):
        ctx.spark.sql(f"create or replace view {schema}.where_am_i as select {number}L id")

def moved(ctx, rows):
    _views(ctx)
    ctx.spark.catalog.setCurrentDatabase("elsewhere")
    return ctx.spark.table("where_am_i")

def stayed(ctx, rows):
    return ctx.spark.table("where_am_i")

def masked(ctx, stayed):
    ctx.spark.range(9).createOrReplaceTempView("where_am_i")
    return stayed.where("id < 9")

def both(ctx, x, y):
    if "connect" not in type(ctx.spark).__module__:
        type(ctx.spark).builder.appName("of a stranger").config("spark.executor.memory", "9g").getOrCreate()
    ctx.spark.conf.set("spark.sql.shuffle.partitions", ctx.spark.conf.get("spark.sql.shuffle.partitions"))
    ctx.spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    ctx.spark.conf.set("spark.sql.session.timeZone", ctx.spark.conf.get("spark.sql.session.timeZone"))
    return x.join(y, x["id"] == y["id"]).select(x["id"])

def awkward(ctx, rows):
    return rows.select("id", rows["id"].alias("id"), F.lit(None).alias("a.b `c`"), F.expr("interval 1 day").alias(" "))

def chosen(ctx, rows):
    rows = rows.select("`a.b ``c```", " ").where("` ` is not null")
    return rows.select(F.lit(7).cast("bigint").alias("id")).limit(1)

def together(ctx, **stages):
    named = [rows.select(F.lit(name).alias("stage"), "id") for name, rows in stages.items()]
    return reduce(DataFrame.unionByName, named)
'''

SAME_ROWS = {
    "small": [0, 1],
    "big": [3, 4],
    "doubled": [2 * 2 * n + 4 for n in range(5)],
    "trebled": [3 * 3 * n + 6 for n in range(4)],
    "twice": [0, 2, 4, 6, 8],
    "tenfold": [0, 10, 20, 30, 40],
    "again": [0, 10, 20, 30],
    "moved": [2],
    "masked": [1],
    "both": [3, 4],
    "chosen": [7],
}


def of_equal_names(jobs, module):
    """A region of these stages, and of one that puts the rows of all of them together: one plan."""

    def stage(name, *outputs, **pipelined):
        return jobs.stage(name, f"{module}:{name}", *outputs, pipelined=pipelined)

    given = {
        "again": {"rows": "tenfold"},
        "both": {"x": "numbers", "y": "big"},
        "chosen": {"rows": "awkward"},
        "masked": {"stayed": "stayed"},
    }
    order = [*SAME_ROWS]
    order[order.index("masked") : order.index("masked")] = ["stayed"]
    order[order.index("chosen") : order.index("chosen")] = ["awkward"]
    stages = [stage(name, **given.get(name, {"rows": "numbers"})) for name in order]
    last = stage("together", jobs.output("together"), **{name: name for name in SAME_ROWS})
    return jobs.region(stage("numbers"), *stages, last, spark_conf={"spark.sql.shuffle.partitions": "1"})


@pytest.fixture
def ids(store):
    def read(report):
        (output,) = report.outputs
        files = [store.spark_url(f"{output.folder}/{each.name}").removeprefix("file://") for each in output.files]
        found = {}
        for row in (row for file in files for row in pq.ParquetFile(file).read().to_pylist()):
            found.setdefault(row.get("stage", output.stage), []).append(row["id"])
        return {name: sorted(values) for name, values in found.items()}

    return read


@pytest.fixture
def run(session_of, store):
    from weir_spark.session import active

    def do(job):
        session = session_of()
        with active(session):
            return region.run(job, session, store, lambda line: None)

    return do


def test_stages_that_make_equal_names_have_their_own_rows(run, jobs, pipeline, ids) -> None:
    assert ids(run(of_equal_names(jobs, pipeline(SAME_NAMES)))) == SAME_ROWS


KEEPS = """
def keeps(ctx, known, last):
    ctx.spark.range(3).selectExpr("id k").createOrReplaceTempView("t")
    known.upsert(ctx.spark.table("t"))
    last.update(ctx.spark.table("t"))
    return ctx.spark.range(1)

def after(ctx, rows):
    ctx.spark.range(50).selectExpr("id k").createOrReplaceTempView("t")
    return ctx.spark.table("t")
"""
BY_KEY = Layout(("k",), 128)


def kept(declared):
    state = StateToRead(
        state=declared, files=(), tallies=(), updated=0, expired_until=None, is_full=False, epoch="20130101T000000Z"
    )
    layout = BY_KEY if declared.keys else PLAIN
    return InputToRead(
        argument=declared.name,
        layout=layout,
        spark_schema="",
        partitions=(),
        key_groups=(0, 127) if declared.keys else None,
        declared_schema=declared.schema,
        state=state,
    )


def test_changes_of_states_are_those_of_their_stage(run, jobs, pipeline) -> None:
    module = pipeline(KEEPS)
    states = (keyed_state("known", key="k", schema="k BIGINT"), broadcast_state("last", schema="k BIGINT"))
    more = {"pipelined": {"keeps": "keeps"}, "keeps_state_of": "keeps"}
    report = run(
        jobs.region(
            jobs.stage("keeps", f"{module}:keeps", inputs=tuple(map(kept, states))),
            jobs.stage("after", f"{module}:after", jobs.output("after"), pipelined={"rows": "keeps"}),
            jobs.stage("known", "", jobs.output("known", BY_KEY), **more),
            jobs.stage("last", "", jobs.output("last"), **more),
        )
    )
    assert {output.stage: output.digest.rows for output in report.outputs} == {"after": 50, "known": 3, "last": 3}


REFUSED = {
    "sets": ('ctx.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")', "spark.sql.session.timeZone"),
    "ansi": ('rows.sparkSession.conf.set("spark.sql.ansi.enabled", False)', "spark.sql.ansi.enabled"),
    "unsets": ('ctx.spark.conf.unset("spark.sql.ansi.enabled")', "spark.sql.ansi.enabled"),
    "in_sql": ('ctx.spark.sql("/* ... */ SET spark.sql.legacy.timeParserPolicy=LEGACY")', "timeParserPolicy"),
    "all_sessions": ('rows.createOrReplaceGlobalTempView("g")', "global temporary view"),
    "all_in_sql": ('ctx.spark.sql("create global temporary view h as select 1")', "global temporary view"),
    "swallowed": (
        'try:\n        ctx.spark.conf.set("spark.sql.shuffle.partitions", 3)\n    except Exception:\n        pass',
        "spark={'spark.sql.shuffle.partitions': '3'}",
    ),
}
NAMES_OF_OTHERS = """
def numbers(ctx):
    return ctx.spark.range(5)

def makes(ctx, rows):
    rows.createOrReplaceTempView("t")
    ctx.spark.udf.register("f", lambda x: x, "bigint")
    return rows

def uses(ctx, rows):
    return ctx.spark.table("T")

def calls(ctx, rows):
    return rows.selectExpr("F(id) id")

def drops(ctx, rows):
    rows.createOrReplaceTempView("t")
    try:
        return ctx.spark.sql("select * from t")
    finally:
        ctx.spark.catalog.dropTempView("t")

def drops_in_sql(ctx, rows):
    ctx.spark.sql("create temp view u as select 1L id")
    found = ctx.spark.table("u")
    ctx.spark.sql("drop view u")
    return found

def returns_home(ctx, rows):
    ctx.spark.sql("create database if not exists elsewhere")
    ctx.spark.sql("USE elsewhere")
    found = ctx.spark.range(3)
    ctx.spark.catalog.setCurrentDatabase("default")
    return found
"""


TWO_MEANINGS = {
    "view": """
    rows.where("id < 2").createOrReplaceTempView("t")
    first = ctx.spark.sql("select id from T")
    rows.where("id > 2").createOrReplaceTempView("t")
    return first.union(ctx.spark.table("t"))""",
    "read_again": """
    rows.createOrReplaceTempView("t")
    more = ctx.spark.sql("with u as (select id + 1 id from t) select * from u")
    more.createOrReplaceTempView("t")
    return more""",
    "in_sql": """
    ctx.spark.sql("create temp view t as select 1L id")
    first = ctx.spark.table("t")
    ctx.spark.sql("create or replace temp view t as select 2L id")
    return first""",
    "function": """
    ctx.spark.udf.register("f", lambda x: x * 2, "bigint")
    first = rows.selectExpr("F(id) id")
    ctx.spark.udf.register("f", lambda x: x * 10, "bigint")
    return first""",
    "variable": """
    ctx.spark.sql("declare v bigint default 1")
    first = ctx.spark.sql("select v id")
    ctx.spark.sql("set var v = 2")
    return first""",
    "hidden_table": """
    first = ctx.spark.table("not_yet")
    rows.createOrReplaceTempView("not_yet")
    return first""",
}
ONE_MEANING = """
def numbers(ctx):
    return ctx.spark.range(5)

def _plus(ctx, rows, number):
    ctx.spark.udf.register("plus", lambda x: x + 1, "bigint")
    return rows.selectExpr(f"plus(id) + {number} id")

def usual(ctx, rows):
    ctx.spark.sql("use default")
    ctx.spark.catalog.setCurrentDatabase("default")
    for number in range(2):
        rows.createOrReplaceTempView("t")
        rows = ctx.spark.sql(f"select id + 1 id, 't(' t from t -- {number}")
    rows.selectExpr("id t").createOrReplaceTempView("u")
    rows = ctx.spark.sql("select t id from u").union(ctx.spark.table("u"))
    return _plus(ctx, rows, 1).union(_plus(ctx, rows, 2))
"""
USUAL = sorted(2 * [number for each in range(5) for number in (each + 4, each + 5)])


def meanings_module():
    return NAMES_OF_OTHERS + "".join(f"\n\ndef {name}(ctx, rows):{code}\n" for name, code in TWO_MEANINGS.items())


def refused_module():
    lines = ["\ndef numbers(ctx):\n    return ctx.spark.range(5)\n"]
    lines += [f"\ndef {name}(ctx, rows):\n    {code}\n    return rows\n" for name, (code, _) in REFUSED.items()]
    return "".join(lines)


def chain(jobs, module, *names):
    """A region of these functions, each of which has the rows of the one before."""
    stages = []
    for name in names:
        pipelined = {"rows": stages[-1].name} if stages else {}
        outputs = [jobs.output(name)] if name == names[-1] else []
        stages.append(jobs.stage(name, f"{module}:{name}", *outputs, pipelined=pipelined))
    return jobs.region(*stages)


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_changes_what_others_share_is_refused(run, jobs, pipeline, name) -> None:
    module = pipeline(refused_module())
    with pytest.raises(Misconfigured, match=f"^stage {name}: its function ") as error:
        run(chain(jobs, module, "numbers", name))
    assert REFUSED[name][1] in str(error.value)
    if name != "in_sql":
        assert f"{module}.py, line " in str(error.value)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("makes", "uses"), "stage uses: Spark does not find `T`. The function of stage makes has made one"),
        (("makes", "calls"), "stage calls: Spark does not find `F`. The function of stage makes has made one"),
        (("drops",), "stage drops: Spark does not find `t`, which its function makes and drops again"),
        (("drops_in_sql",), "stage drops_in_sql: Spark does not find `u`, which its function makes and drops again"),
        (("returns_home",), "stage returns_home: its function changes the current schema and goes back"),
    ],
)
def test_a_name_that_is_not_there_any_more_is_told_with_what_to_write(run, jobs, pipeline, names, expected) -> None:
    module = pipeline(NAMES_OF_OTHERS)
    with pytest.raises(Misconfigured) as error:
        run(chain(jobs, module, "numbers", *names))
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize("name", TWO_MEANINGS)
def test_rows_of_a_name_that_has_another_meaning_before_they_are_computed_are_refused(
    run, jobs, pipeline, name
) -> None:
    with pytest.raises(Misconfigured, match=f"^stage {name}: its function reads "):
        run(chain(jobs, pipeline(meanings_module()), "numbers", name))


def test_names_are_made_again_as_they_were_and_after_their_rows_are_taken(run, jobs, pipeline, ids) -> None:
    assert ids(run(chain(jobs, pipeline(ONE_MEANING), "numbers", "usual"))) == {"usual": USUAL}


def test_a_session_of_its_own_keeps_them_apart_too(ends_in_driver, jobs, pipeline, ids) -> None:
    module, refused, others = pipeline(SAME_NAMES), pipeline(refused_module()), pipeline(NAMES_OF_OTHERS)
    names = ("in_sql", "all_sessions")
    rows, usual, drops, uses, *ends = ends_in_driver(
        of_equal_names(jobs, module),
        chain(jobs, pipeline(ONE_MEANING), "numbers", "usual"),
        chain(jobs, others, "numbers", "drops"),
        chain(jobs, others, "numbers", "makes", "uses"),
        *(chain(jobs, refused, "numbers", name) for name in names),
    )
    assert ids(rows) == SAME_ROWS
    assert ids(usual) == {"usual": USUAL}
    assert ids(drops) == {"drops": [0, 1, 2, 3, 4]}
    assert "The function of stage makes has made one" in uses.message
    for name, end in zip(names, ends, strict=True):
        assert end.message.startswith(f"stage {name}: its function ")
        assert REFUSED[name][1] in end.message
