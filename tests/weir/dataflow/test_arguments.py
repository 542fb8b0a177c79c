"""Mistakes of a first declaration: the answer names the place, what was found and what to write."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import (
    Application,
    Dataflow,
    Stage,
    TaskSettings,
    blocking,
    cached,
    callback,
    dataset,
    delta_source,
    digest,
    expectations,
    files,
    files_source,
    jdbc_source,
    keyed_state,
    list_state,
    pipelined,
    postgres,
    postgres_source,
    previous,
    sink,
    source,
    target,
    webhook,
)
from weir.dataflow.arguments import MOST_SHOWN, answers, shown
from weir.errors import Misconfigured
from weir.restarts.strategy import FixedDelay

A = source("a", "p:a")
OUT = sink("a", "out")
HISTORY = keyed_state("history", key="tail", schema="tail STRING, n BIGINT")


def clean(ctx, flights):
    """A function that is given as an object."""


def flow(*stages, **settings):
    return Dataflow("flow", list(stages), **settings)


def of_source(**settings):
    return flow(source("a", "p:a", **settings), OUT)


def of_task(**settings):
    return of_source(task=TaskSettings(**settings))


def reading(inputs, parallelism=2, producer=A, **settings):
    return flow(producer, Stage("b", "p:b", inputs, parallelism=parallelism, **settings), sink("b", "out"))


def of_query(sql, stage=Stage, **settings):
    return flow(A, stage("b", inputs=[blocking("a")], sql=sql, **settings), sink("b", "out"))


ROUTES = Application("jars/routes.jar", ["{{ inputs.a }}", "{{ output }}"])


def of_application(application=ROUTES, exchange=blocking, **settings):
    return flow(A, Stage("b", inputs=[exchange("a")], application=application, **settings), sink("b", "out"))


MISTAKES = {
    # Applications
    "an application's path": (
        lambda: of_application("jars/routes.jar"),
        "stage 'b': application is 'jars/routes.jar': write Application(\"jars/routes.jar\", [",
    ),
    "an argument": (
        lambda: of_application(Application("routes.jar", ["{{ inputs.b }}", "{{ inputs.a }}", "{{ output }}"])),
        "stage 'b': {{ inputs.b }} names no input of the stage",
    ),
    "application and function": (
        lambda: of_application(function="p:b"),
        "stage 'b' has an application, 'jars/routes.jar', and 'p:b': leave one of them out",
    ),
    "application and query": (lambda: of_application(sql="b.sql"), "and 'b.sql': leave one of them out"),
    "a source's application": (
        lambda: source("a", application=ROUTES),
        "source('a') has no argument application=: a source needs a function",
    ),
    "an application's state": (
        lambda: of_application(state=list_state("seen")),
        "stage 'b': an application keeps no state: read what the epoch before has written over previous(...)",
    ),
    "an application in a plan": (
        lambda: of_application(exchange=pipelined),
        "but 'b' is an application, which is a process of its own and in no plan with others: write blocking(\"a\"",
    ),
    "an application that is cached": (
        lambda: flow(
            A,
            Stage("b", inputs=[blocking("a")], application=ROUTES),
            Stage("c", "p:c", [cached("b")]),
            sink("c", "out"),
        ),
        "stage 'c' reads 'b' over a cached exchange, but 'b' is an application",
    ),
    "an application's secret": (
        lambda: of_application(Application("routes.jar", [*ROUTES.arguments, "--password", "hush4hush4"])),
        "stage 'b': arguments[\"password\"]",
    ),
    # Queries
    "a query's text": (
        lambda: of_query("SELECT 1"),
        "stage 'b': sql is 'SELECT 1': write the path of a file that ends",
    ),
    "a query's path": (
        lambda: of_query(Path("b.sql")),
        "stage 'b': sql is PosixPath('b.sql'): write the path of a file",
    ),
    "a query above": (lambda: of_query("../b.sql"), "stage 'b': sql='../b.sql': write the path of a file below"),
    "a query at root": (lambda: of_query("/etc/b.sql"), "neither absolute nor with .."),
    "query and function": (
        lambda: of_query("b.sql", function="p:b"),
        "stage 'b' has a function, 'p:b', and sql='b.sql'",
    ),
    "a source's query": (
        lambda: source("a", sql="a.sql"),
        "source('a') has no argument sql=: a query would read what a table or folder has then",
    ),
    "a query's state": (
        lambda: of_query("b.sql", state=list_state("seen")),
        "stage 'b': a query keeps no state: write a function, whose argument 'seen'",
    ),
    "neither": (lambda: flow(A, Stage("b", inputs=[blocking("a")])), "stage 'b': function must look like"),
    # Words of other systems
    "key": (lambda: blocking("a", key="k"), "blocking('a') has no argument key=: write by='k'"),
    "on": (lambda: blocking(A, on=["k", "d"]), "blocking(source 'a') has no argument on=: write by=['k', 'd']"),
    "keys": (lambda: previous("a", keys="k", schema="k INT"), "previous('a') has no argument keys=: write by='k'"),
    "second place": (lambda: blocking("a", "k"), "blocking('a'): 'k' has no name: write by='k'"),
    "third place": (lambda: keyed_state("s", "k", "k INT"), "keyed_state('s'): 'k' has no name: write key='k'"),
    "source's inputs": (
        lambda: source("b", "p:b", inputs=[A]),
        "source('b') has no argument inputs=: a source reads no",
    ),
    "sink's target": (lambda: sink("a", "out", target="t"), "sink('a') has no argument target=: write to='t'"),
    "a list's key": (
        lambda: list_state("s", key="k"),
        "list_state('s') has no argument key=: its elements have no key",
    ),
    "a blocking schema": (lambda: blocking("a", schema="k INT"), "blocking('a') has no argument schema=: it has the"),
    # Connections
    "a hook's URL": (lambda: webhook("https://x.example/y"), "webhook: conn_id is a URL: write the id of an Airflow"),
    "a database's URL": (
        lambda: postgres("postgresql://u:p@h/d", "t"),
        "postgres('t'): conn_id is a URL: write the id",
    ),
    "a driver's URL": (lambda: jdbc_source("x", "jdbc:h", "t"), "jdbc_source('x'): conn_id is a URL: write the id of"),
    "a lister's": (lambda: files_source("x", "/x", conn_id=3), "files_source('x'): conn_id is 3: write conn_id="),
    # States
    "union": (lambda: list_state("s", union="yes"), "list_state('s'): union is 'yes': write union=True"),
    "incremental": (
        lambda: keyed_state("s", key="k", schema="k INT", incremental=1),
        "keyed_state('s'): incremental is 1: write incremental=True",
    ),
    "full": (
        lambda: keyed_state("s", key="k", schema="k INT", full=True),
        "keyed_state('s') has no argument full=: write incremental=False",
    ),
    "one state twice": (
        lambda: flow(
            A, *(Stage(n, "p:b", [blocking("a")], state=HISTORY) for n in "bc"), sink("b", "x"), sink("c", "y")
        ),
        "stages 'b' and 'c' keep a state 'history' each: a state has one stage",
    ),
    "pipelined by": (lambda: pipelined("a", by="k"), "write blocking(x, by=[columns]) to divide the rows otherwise"),
    "cached key": (lambda: cached("a", key="k"), "cached('a') has no argument key=: it joins its ends index to index"),
    "state by": (lambda: keyed_state("s", by="k", schema="k INT"), "keyed_state('s') has no argument by=: write key="),
    "table keys": (lambda: postgres("c", "t", keys="k"), "postgres('c') has no argument keys=: write key='k'"),
    "reader's option": (lambda: files_source("x", "/x", header=True), 'reader={"header": ...}'),
    "postgres' parallelism": (
        lambda: postgres_source("x", "c", "select 1", parallelism=3),
        "postgres_source('x') has no argument parallelism=: there is one subtask, since several would read at several",
    ),
    # Misspelt arguments
    "of a stage": (
        lambda: Stage("b", "p:b", [blocking("a")], paralelism=4),
        "Stage('b') has no argument paralelism=: did you mean parallelism=?",
    ),
    "of a named stage": (lambda: Stage(name="b", input=[]), "Stage('b') has no argument input=: did you mean inputs=?"),
    "of a task": (lambda: TaskSettings(pools="x"), "TaskSettings(...) has no argument pools=: did you mean pool=?"),
    "of a dataflow": (
        lambda: flow(A, OUT, quoat="2 GB"),
        "Dataflow('flow') has no argument quoat=: did you mean quota",
    ),
    "of an exchange": (lambda: blocking("a", brodcast=True), "blocking('a') has no argument brodcast=: did you mean b"),
    "of a state": (lambda: list_state("s", unon=True), "list_state('s') has no argument unon=: did you mean union=?"),
    "of a source": (
        lambda: files_source("x", "/x", formt="csv"),
        "files_source('x') has no argument formt=: did you mean format=? (an option of Spark's reader is written as",
    ),
    "of a gate": (lambda: expectations("s", polcy="warn"), "has no argument polcy=: did you mean policy=?"),
    "of a webhook": (
        lambda: webhook("c", headers={}),
        "webhook('c') has no argument headers=: it has conn_id, path, k",
    ),
    "of a folder": (lambda: files("/x", partion="x"), "files('/x') has no argument partion=: did you mean partition=?"),
    "of a restart": (lambda: FixedDelay(attemps=3), "FixedDelay(...) has no argument attemps=: did you mean attempts="),
    # Columns
    "by a number": (
        lambda: blocking("a", by=3),
        'blocking(\'a\'): by is 3: write by="column" or by=["column", "other"]',
    ),
    "by None": (lambda: blocking("a", by=None), "by is None: write"),
    "by a set": (lambda: blocking("a", by={"k"}), "by is {'k'}: write"),
    "by a list in a text": (
        lambda: blocking("a", by="k, d"),
        'by is \'k, d\', the name of one column: write by=["k", "d"]',
    ),
    "state's key": (lambda: keyed_state("s", key=3, schema="k INT"), "keyed_state('s'): key is 3: write key="),
    "table's key": (lambda: postgres("c", "t", mode="upsert", key=3), "postgres('t'): key is 3: write key="),
    "ignored": (lambda: digest(ignore=3), "digest(...): ignore is 3: write ignore="),
    # Inputs
    "a bare exchange": (
        lambda: Stage("b", "p:b", blocking("a")),
        'stage \'b\': inputs must be a list or a dict of exchanges, not blocking("a"): write inputs=[blocking("a")]',
    ),
    "a bare stage": (lambda: Stage("b", "p:b", A), "not source 'a': write inputs=[blocking(\"a\")], or pipelined(...)"),
    "a bare name": (lambda: Stage("b", "p:b", "a"), "not 'a': write inputs=[blocking(\"a\")], or pipelined(...)"),
    "stages": (lambda: Stage("b", "p:b", [A]), "stage 'b': inputs has source 'a', not an exchange: write pipelined(x)"),
    "a stage": (lambda: Stage("b", "p:b", {"x": A}), "stage 'b': input 'x' is source 'a', not an exchange"),
    "an exchange's": (lambda: blocking(pipelined("a")), 'pipelined("a") is not a stage: give the stage itself'),
    "a dataflow's": (lambda: blocking(flow(A, OUT)), "dataflow 'flow' is not a stage: give the stage itself"),
    "a state's": (lambda: blocking(HISTORY), "state 'history' is not a stage: give the stage itself or its name"),
    "broadcast": (
        lambda: reading({"x": blocking("a", broadcast="yes")}),
        "stage 'b': broadcast of input 'x' is 'yes': write broadcast=True or broadcast=False",
    ),
    "a stage outside": (
        lambda: flow(Stage("b", "p:b", [blocking(A)]), sink("b", "out")),
        "stage 'b' reads 'a', which is not a stage of this dataflow: add 'a' to the dataflow's list of stages",
    ),
    # Functions
    "an object": (
        lambda: flow(source("a", clean), OUT),
        f'stage \'a\': function must look like "module:function" (write "{__name__}:clean"), not the function clean',
    ),
    "a dotted name": (lambda: flow(source("a", "p.f.clean"), OUT), "(write \"p.f:clean\"), not 'p.f.clean'"),
    "a path": (lambda: flow(source("a", "p/f.py:clean"), OUT), "(write \"p.f:clean\"), not 'p/f.py:clean'"),
    "a resolver": (lambda: of_source(resolve=clean), f'resolve must look like "module:function" (write "{__name__}:'),
    "a callback": (lambda: callback(clean), f'callback: write "{__name__}:clean", not the function clean'),
    "a target": (lambda: target(clean), 'target: reference is the function clean: write "module:Class"'),
    # Dataflows
    "no list": (lambda: Dataflow("flow", A), "dataflow 'flow': stages is source 'a': write a list of all stages"),
    "no stages": (lambda: Dataflow("flow", None), "dataflow 'flow': stages is None: write a list"),
    "a dict": (lambda: Dataflow("flow", {"a": A}), "dataflow 'flow': stages is {'a': Stage("),
    "swapped": (
        lambda: Dataflow([A, OUT], "flow"),
        "Dataflow(...): name is [source 'a', sink 'out']: write Dataflow(\"name_of_dataflow\", [stages])",
    ),
    "nested": (lambda: flow([A], OUT), "dataflow 'flow': [source 'a'] is not a stage: write source(...)"),
    "an exchange": (lambda: flow(A, blocking("a")), 'blocking("a") is not a stage: write source(...)'),
    "a swapped sink": (lambda: sink("out", A), "sink of 'out': name is source 'a': write sink(\"out\", "),
    "a sink's target": (lambda: sink("a", "out", to=postgres), "sink 'out': to=the function postgres is no target"),
    # Settings
    "task": (lambda: of_source(task={"pool": "x"}), "stage 'a': task is {'pool': 'x'}: write task=TaskSettings("),
    "pool": (lambda: of_task(pool=3), "stage 'a': pool is 3: write pool=\"name\""),
    "priority": (lambda: of_task(priority_weight="3"), "stage 'a': priority_weight is '3': write priority_weight=2"),
    "priority flag": (lambda: of_task(priority_weight=True), "priority_weight is True: write priority_weight=2"),
    "executor": (lambda: of_task(executor_config=None), "executor_config is None: write executor_config={...}"),
    "spark": (lambda: of_source(spark="a=3"), 'spark is \'a=3\': write spark={"spark.sql.shuffle.partitions": "8"}'),
    "spark list": (lambda: of_source(spark=["a=3"]), "stage 'a': spark is ['a=3']: write spark={"),
    "asset": (lambda: of_source(asset=3), "stage 'a': asset is 3: write asset=\"name or URI of an Airflow asset\""),
    "blank asset": (lambda: of_source(asset=" calls"), "stage 'a': asset must be the name or URI of an Airflow asset"),
    "asset of two lines": (lambda: of_source(asset="a\nb"), "stage 'a': asset must be the name or URI"),
    "secret asset": (lambda: of_source(asset="postgres://me:pw1x@db/a"), "stage 'a': asset is a URL with a password"),
    "asset of no source": (
        lambda: flow(A, Stage("b", "p:b", [blocking("a")], asset="calls"), sink("b", "out")),
        "stage 'b': only a source has asset=: move it to the source that this stage reads",
    ),
    "options": (lambda: of_source(resolve="p:r", options=["x"]), "stage 'a': options is ['x']: write options={"),
    "state": (lambda: reading([blocking("a", by="k")], state="s"), "stage 'b': state is 's': write keyed_state(...)"),
    "no state": (lambda: reading([blocking("a", by="k")], state=None), "state is None: write keyed_state(...), "),
    "quality": (lambda: of_source(quality="flights"), "stage 'a': quality is 'flights': write expectations("),
    "state's quality": (
        lambda: keyed_state("s", key="k", schema="k INT", quality="flights"),
        "keyed_state('s'): quality is 'flights': write expectations(",
    ),
    "a suite's file": (
        lambda: expectations("include/expectations/flights.json"),
        'a suite is named without its folder and .json: write "flights"',
    ),
    "kinds": (lambda: callback("p:f", kinds=3), "kinds is 3: write some of checkpoint_completed"),
    # Ready-made sources
    "schema": (
        lambda: files_source("x", "/x", schema={"id": "INT"}),
        "files_source('x'): schema is {'id': 'INT'}: write",
    ),
    "a type": (
        lambda: files_source("x", "/x", schema="id INT, price DECIML(7, 2)"),
        "gives the column price the type DECIML, which Spark does not have: did you mean DECIMAL?",
    ),
    "a state's type": (
        lambda: reading([blocking("a", by="k")], state=keyed_state("s", key="k", schema="k INT, n BIGNT")),
        "stage 'b', state 's': the schema \"k INT, n BIGNT\" gives the column n the type BIGNT, which Spark does not ",
    ),
    "an epoch's type": (
        lambda: reading({"x": blocking("a", by="k"), "y": previous("b", by="k", schema="k INT, m MAP<STRING, TEXT>")}),
        "stage 'b', input 'y': the schema \"k INT, m MAP<STRING, TEXT>\" gives the column m the type TEXT, which",
    ),
    "a key that is not read": (
        lambda: reading({"a": blocking("a", by="k"), "x": dataset("trips.zones", by="zone", schema="k INT")}),
        "stage 'b', input 'x': its rows are divided by='zone', which is no column of its schema=, k: add it",
    ),
    "a key of no use": (
        lambda: reading({"a": blocking("a", by="k"), "y": previous("b", by="P", schema="p DECIMAL(9,2)")}),
        "stage 'b', input 'y': a key column cannot be of type decimal(9,2): its hash depends on precision and scale",
    ),
    "reader": (
        lambda: files_source("x", "/x", reader="header"),
        'reader is \'header\': write reader={"header": "true"}',
    ),
    "jdbc's reader": (
        lambda: jdbc_source("x", "c", "t", reader=[1]),
        "jdbc_source('x'): reader is [1]: write reader={",
    ),
    "partition": (lambda: delta_source("x", "/x", partition="day"), "partition is 'day': write partition={\"day\": "),
    "a template": (
        lambda: files_source("x", "/x/{{ ds }}/*.parquet"),
        "has a template of Airflow, {{ ds }}, which is not rendered here: write {start:%Y-%m-%d}",
    ),
    "a Path": (lambda: files_source("x", Path("/x")), "files_source('x'): path must be a text that is not empty, not "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(mistake):
    make, answer = MISTAKES[mistake]
    with pytest.raises(Misconfigured) as error:
        make()
    assert answer in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_missing_argument_is_pythons_own_error():
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'schema'"):
        keyed_state("s", key="k")


def test_a_function_with_answers_keeps_its_signature_and_its_docstring():
    assert list(inspect.signature(blocking).parameters) == ["stage", "by", "broadcast", "pointwise"]
    assert blocking.__doc__.startswith("Read `stage` from result partitions")
    assert list(inspect.signature(Stage).parameters)[:3] == ["name", "function", "inputs"]


def test_an_answer_may_be_a_sentence():
    @answers({"weight": "weigh it yourself"})
    def lift(thing):
        return thing

    assert lift("a stone") == "a stone"
    with pytest.raises(
        Misconfigured,
        check=of_kind(
            "dataflow.argument_misspelled", advice="weigh it yourself", where="lift('a stone')", wrong="weight"
        ),
    ):
        lift("a stone", weight=3)


def test_values_are_shown_in_one_short_line():
    assert shown("a\n  b") == r"'a\n b'"
    assert len(shown(list(range(1000)))) == MOST_SHOWN + 3
    assert [shown(each) for each in (A, OUT, HISTORY, pipelined(A), expectations("s"), flow(A, OUT))] == [
        *("source 'a'", "sink 'out'", "state 'history'", 'pipelined("a")', 'expectations("s")', "dataflow 'flow'")
    ]
    assert (shown(clean), shown(Dataflow), shown(timedelta(1))) == (
        "the function clean",
        "the type Dataflow",
        "datetime.timedelta(days=1)",
    )
