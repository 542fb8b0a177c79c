"""Stages and the exchanges over which they read each other, with their settings for Airflow and Spark.

Invariants: a stage is data and imports no user code. The exchange alone decides whether it is a region boundary and
which subtasks read which partitions. Stages that run in one task never have conflicting settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Final, NamedTuple, cast

from weir.code.application_rules import Application
from weir.code.sql_rules import SUFFIX, is_sql
from weir.dataflow.arguments import WORDS_FOR_BY, answering, answers, choice, column_names, copy_of, require, shown
from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.quality import Gate, gates_of
from weir.dataflow.state import State
from weir.dataflow.targets import COPIED, Target
from weir.errors import Misconfigured

COPY: Final = "copy"
"""The option `keep` of a source whose rows are copied when they are first read."""

READY_MADE: Final = "weir_spark.sources."
"""The beginning of the functions of ready-made sources."""


class ExchangeKind(Enum):
    """Flink's ResultPartitionType, with the cached exchanges of FLIP-1 and the previous exchanges of iterations."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"
    CACHED = "cached"
    PREVIOUS = "previous"
    DATASET = "dataset"
    """What another dataflow has published: epochs joined over dataflows."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An input of a stage: the stage that it reads, and how its rows are divided among subtasks.

    `keys` are the columns that a blocking or previous exchange is partitioned by, or that the files of a sink are
    divided by; `broadcast` gives every reader all rows; `pointwise` gives reader i the partition i of a blocking
    exchange. `durable` distinguishes the two cached exchanges. `schema` are the columns of a previous exchange, which
    reads no rows in the first epoch, or of a data set, whose `stage` is "dataflow.sink"; `epoch` says which epochs of
    it are read, and `missing` what those that are not there mean.
    """

    stage: str
    kind: ExchangeKind
    keys: tuple[str, ...] = ()
    broadcast: bool = False
    pointwise: bool = False
    durable: bool = True
    schema: str = ""
    epoch: str = ""
    missing: str = ""

    def __str__(self) -> str:
        """Return it as it is declared, without its settings: `blocking("flights")`."""
        return f'{self.kind.value}("{self.stage}")'

    @property
    def joins_plan(self) -> bool:
        """Report whether both ends are one Spark plan and so one region: pipelined and cached exchanges."""
        return self.kind in (ExchangeKind.PIPELINED, ExchangeKind.CACHED)

    @property
    def is_boundary(self) -> bool:
        """Report whether it separates regions of one run: blocking exchanges."""
        return self.kind is ExchangeKind.BLOCKING

    @property
    def is_of_run(self) -> bool:
        """Report whether it reads a stage of its own run: neither an earlier epoch nor another dataflow."""
        return self.joins_plan or self.is_boundary

    @property
    def is_previous(self) -> bool:
        """Report whether it reads the previous epoch: no order, cycle or region of its own run depends on it."""
        return self.kind is ExchangeKind.PREVIOUS

    @property
    def is_dataset(self) -> bool:
        """Report whether it reads what another dataflow has published: `stage` is no stage of its own one."""
        return self.kind is ExchangeKind.DATASET

    @property
    def is_of_results(self) -> bool:
        """Report whether it reads results of its own dataflow from the store: blocking and previous exchanges."""
        return self.is_boundary or self.is_previous


class DatasetName(NamedTuple):
    """The name of a data set: the dataflow that publishes it, and its sink."""

    dataflow: str
    sink: str


def dataset_of(name: str) -> DatasetName:
    """Return what the name of a data set, "dataflow.sink", says."""
    dataflow, _, sink = name.partition(".")
    return DatasetName(dataflow, sink)


_DATASET: Final = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
_BY: Final = dict.fromkeys(WORDS_FOR_BY, "by")
_NOT_DIVIDED: Final = dict.fromkeys(
    (*WORDS_FOR_BY, "by", "broadcast", "pointwise"),
    "it joins its ends index to index, in one task: write blocking(x, by=[columns]) to divide the rows otherwise",
)


@answers(_NOT_DIVIDED)
def pipelined(stage: str | Stage) -> Exchange:
    """Read `stage` inside the same Spark plan, index to index: nothing is written, both restart together."""
    return Exchange(stage=name_of(stage), kind=ExchangeKind.PIPELINED)


@answers(_NOT_DIVIDED)
def cached(stage: str | Stage, *, durable: bool = True) -> Exchange:
    """Read `stage` inside the same Spark plan and cache its output, from which a retry resumes (FLIP-1).

    The cached output is in the store and serves later attempts of the same task, while inputs and code are the same.
    With `durable=False` it is `DataFrame.persist`, for several readers within one attempt.
    """
    return Exchange(stage=name_of(stage), kind=ExchangeKind.CACHED, durable=durable)


@answers({**_BY, "schema": "it has the columns that the stage returns: leave it out"}, second="by")
def blocking(
    stage: str | Stage, *, by: str | Sequence[str] = (), broadcast: bool = False, pointwise: bool = False
) -> Exchange:
    """Read `stage` from result partitions in the store: a region boundary, where recovery stops.

    With `by`, a column or a list of them, subtask i reads the rows of its own key groups; with `broadcast=True`
    every subtask reads all rows; with `pointwise=True` subtask i reads what subtask i of `stage` wrote. A stage of
    parallelism 1 needs none of them.
    """
    read = name_of(stage)
    return Exchange(
        stage=read,
        kind=ExchangeKind.BLOCKING,
        keys=column_names(f"blocking({read!r})", "by", by),
        broadcast=broadcast,
        pointwise=pointwise,
    )


@answers(_BY, second="by")
def previous(
    stage: str | Stage, *, by: str | Sequence[str] = (), broadcast: bool = False, schema: str = ""
) -> Exchange:
    """Read the previous epoch's result of `stage`, which may be the reading stage itself or close a longer cycle.

    The first epoch reads no rows, with the columns of `schema`, a Spark DDL string like "id BIGINT, seen TIMESTAMP";
    in later epochs the columns must be these. `by` and `broadcast` are those of `blocking`. The name of a state that
    another stage of the same task keeps, without further arguments, gives a handle that only reads it.
    """
    read = name_of(stage)
    keys = column_names(f"previous({read!r})", "by", by)
    return Exchange(stage=read, kind=ExchangeKind.PREVIOUS, keys=keys, broadcast=broadcast, schema=schema)


SAME: Final = "same"
WITHIN: Final = "within"
WAIT: Final = "wait"
SKIP: Final = "skip"
_LAST: Final = re.compile(r"last\((\d+)\)")


@answers({**_BY, "sink": 'name dataflow and sink in one: dataset("trips.zones")'}, second="by")
def dataset(
    name: str,
    *,
    by: str | Sequence[str] = (),
    broadcast: bool = False,
    epoch: str = SAME,
    schema: str = "",
    missing: str = WAIT,
) -> Exchange:
    """Read what the sink `name`, "dataflow.sink", of another dataflow has published.

    `epoch` is "same" (the epoch of equal start and end), "within" (all epochs inside the reader's interval), `last(n)`
    (the n newest that end at or before the reader's end) or "latest" (the newest). Which these are is decided once in a
    run; never by the clock. Epochs that are to exist and are not published are waited for, or, with `missing="skip"`,
    left out and recorded. `by` and `broadcast` are those of `blocking`. `schema`, a Spark DDL string, are the columns
    that are read, which all epochs must have; without it all must have the same.
    """
    what = f"dataset({name!r})"
    given: object = name
    if not isinstance(given, str) or not _DATASET.fullmatch(name):
        raise Misconfigured.of("dataflow.dataset_malformed", name=shown(given))
    if last_of(epoch := "last(1)" if epoch == "latest" else epoch) is None and epoch not in (SAME, WITHIN):
        raise Misconfigured.of("dataflow.dataset_epoch_malformed", what=what, epoch=shown(epoch))
    if missing not in (WAIT, SKIP):
        raise Misconfigured.of("dataflow.dataset_missing_malformed", what=what, missing=shown(missing))
    keys = column_names(what, "by", by)
    return Exchange(
        stage=name,
        kind=ExchangeKind.DATASET,
        keys=keys,
        broadcast=broadcast,
        schema=schema,
        epoch=epoch,
        missing=missing,
    )


def last(number: int) -> str:
    """Name the `number` newest epochs that end at or before the reader's end: `dataset(..., epoch=last(7))`."""
    if type(number) is not int or number < 1:
        raise Misconfigured.of("dataflow.dataset_last_malformed", number=shown(number))
    return f"last({number})"


def last_of(epoch: str) -> int | None:
    """Return how many of the newest epochs a selection names; None where it is another one."""
    found = _LAST.fullmatch(epoch) if isinstance(epoch, str) else None
    return None if found is None or not int(found[1]) else int(found[1])


def name_of(stage: object) -> str:
    """Return the name of a stage, given as the stage or as its name. Raises Misconfigured for any other value."""
    name = stage.name if isinstance(stage, Stage) else stage
    if not isinstance(name, str):
        raise Misconfigured.of("dataflow.not_a_stage", stage=shown(stage))
    return name


class Reuse(Enum):
    """Whether a task takes what another one has made of the same, in any run of the dataflow, instead of computing."""

    EQUAL = "equal"
    """It takes a copy, where all that its rows are made of is known to be equal (docs/reuse.md)."""
    NEVER = "never"
    """It computes."""


class DeliveryGuarantee(Enum):
    """When a sink publishes, by Flink's names."""

    EXACTLY_ONCE = "exactly_once"
    """Once the run is closed."""
    AT_LEAST_ONCE = "at_least_once"
    """Also before, as provisional rows, which the close confirms or replaces (docs/early-results.md)."""


class StageKind(Enum):
    """The roles of stages."""

    SOURCE = "source"
    TRANSFORM = "transform"
    SINK = "sink"
    STATE = "state"
    """The state of another stage: its rows are those that the stage has written through its handle."""


@answering
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Airflow's settings of the task that runs a stage; stages of one region must agree.

    `spark_conn_id` names the connection to the Spark that computes the region (None: the deployment's).
    """

    pool: str | None = None
    queue: str | None = None
    priority_weight: int | None = None
    execution_timeout: timedelta | None = None
    executor_config: Mapping[str, Any] = field(default_factory=dict)
    spark_conn_id: str | None = None


@answering
@dataclass(frozen=True, slots=True)
class Stage:
    """A pure function on Spark DataFrames with one output, run by `parallelism` subtasks.

    `function` is named as "module:function", so that a DAG file imports no Spark:
    `def clean(ctx, flights: DataFrame) -> DataFrame`. In its place, `sql` names a file with one query, whose inputs are
    tables; `function` then is that path. `application` is a jar or program that spark-submit runs; `function` then is
    its path. `inputs` maps the function's arguments to exchanges;
    a sequence of exchanges names each argument after the stage it reads. `max_parallelism` (default: the
    dataflow's) is the number of key groups that the stage's keyed inputs are divided into.
    `resolve` (sources only) names a function that is called once per run and returns the split of each subtask:
    `def flights_of(ctx) -> list[Any]`, one JSON value for each; the source is then called as `(ctx, split)`. `options`
    are JSON values for it, which it finds in `ctx.options`.
    `spark` holds Spark settings of the session that runs the stage's region.
    `deterministic=False` declares that equal inputs may give different rows, so that its direct consumers restart
    whenever it does. `digest` is the rule by which a change of its rows is recognised. `state` is one or several of
    keyed_state(...), list_state(...) and broadcast_state(...): the function's argument of that name is a handle.
    `quality` is one or several of expectations(...), which check its rows before they are committed.
    `reuse`, "equal" or "never", is that of the dataflow for this stage; with "equal" you vouch that its rows depend on
    its inputs, its code and what it looks at of the epoch alone, and its code is not searched for anything else.
    """

    name: str
    function: str = ""
    inputs: Mapping[str, Exchange] | Sequence[Exchange] = ()
    parallelism: int = 1
    max_parallelism: int | None = None
    resolve: str | None = None
    kind: StageKind = StageKind.TRANSFORM
    task: TaskSettings = field(default_factory=TaskSettings)
    spark: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = True
    digest: DigestRule = PLAIN_RULE
    state: State | Sequence[State] = ()
    quality: Gate | Sequence[Gate] = ()
    targets: tuple[Target, ...] = ()
    """Where a sink publishes besides its pointer, in this order."""
    options: Mapping[str, Any] = field(default_factory=dict)
    application: Application | None = field(default=None, kw_only=True)
    goes_on: bool = field(default=False, kw_only=True)
    """Only of a source: it reads what has come since the epoch before; `resolve` returns a `Resolved`."""
    moved_from: str = field(default="", kw_only=True)
    """Of a source that goes on: the name that it had in earlier epochs, from whose position it goes on."""
    asset: str = field(default="", kw_only=True)
    """Of a source: the name or URI of the Airflow asset that its rows come from, for lineage: no row depends on it."""
    delivery: DeliveryGuarantee = field(default=DeliveryGuarantee.EXACTLY_ONCE, kw_only=True)
    """Of a sink: whether its rows are published before the run is closed, too."""
    reuse: Reuse | str | None = field(default=None, kw_only=True)
    """Whether its task may take what another one has made of the same; "equal" vouches for what its code reads."""
    sql: InitVar[str | None] = field(default=None, kw_only=True)

    def __post_init__(self, sql: str | None) -> None:
        where = f"stage {self.name!r}"
        if sql is not None:
            object.__setattr__(self, "function", _sql_file(where, sql, self.function))
        if self.application is not None:
            object.__setattr__(self, "function", _application_file(where, self.application, self.function))
        require(where, "state", self.state, (State, list, tuple), _STATES)
        require(where, "quality", self.quality, (Gate, list, tuple), _GATES)
        if self.reuse is not None:
            object.__setattr__(self, "reuse", choice(where, "reuse", self.reuse, Reuse))
        object.__setattr__(self, "inputs", _by_argument(self.name, self.inputs))
        object.__setattr__(self, "state", (self.state,) if isinstance(self.state, State) else tuple(self.state))
        object.__setattr__(self, "quality", gates_of(self.quality))

    def __str__(self) -> str:
        """Return what it is and its name: `source 'flights'`."""
        word = "stage" if self.kind is StageKind.TRANSFORM else self.kind.value
        return f"{word} {self.name!r}"

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and the former one of a source that was renamed: an earlier run may know it by either."""
        return (self.name, self.moved_from) if self.moved_from else (self.name,)

    @property
    def is_early(self) -> bool:
        """Report whether it is a sink that publishes before its run is closed, too."""
        return self.delivery is DeliveryGuarantee.AT_LEAST_ONCE

    @property
    def keeps_copy(self) -> bool:
        """Report whether what a ready-made source reads is copied, since it cannot be read the same again."""
        # Not what a pipeline's function reads: that is edited, and one result would have rows of several codes.
        return self.function.startswith(READY_MADE) and self.options.get("keep") == COPY

    @property
    def states(self) -> tuple[State, ...]:
        """The states that the stage keeps from epoch to epoch."""
        return cast("tuple[State, ...]", self.state)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The quality gates of its rows."""
        return cast("tuple[Gate, ...]", self.quality)

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        """The inputs: function argument to exchange."""
        return cast("Mapping[str, Exchange]", self.inputs)


def _sql_file(where: str, sql: object, function: object) -> str:
    """Return the path of a stage's SQL file. Raises Misconfigured."""
    require(where, "sql", sql, str, 'the path of a file, such as sql="sql/by_zone.sql"')
    if not is_sql(sql):
        raise Misconfigured.of("dataflow.sql_not_a_path", where=where, sql=shown(sql), suffix=SUFFIX)
    if function:
        raise Misconfigured.of("dataflow.function_and_sql", where=where, function=shown(function), sql=shown(sql))
    return str(sql)


def _application_file(where: str, application: object, function: str) -> str:
    """Return the path of a stage's application. Raises Misconfigured."""
    require(where, "application", application, Application, _APPLICATION)
    path = cast("Application", application).path
    if function not in ("", path):
        raise Misconfigured.of("dataflow.application_and_function", where=where, path=path, function=function)
    return path


_APPLICATION: Final = 'Application("jars/routes.jar", ["--in", "{{ inputs.NAME }}", "--out", "{{ output }}"])'
_STATES: Final = "keyed_state(...), list_state(...) or broadcast_state(...), or a list of them, or leave state= out"
_GATES: Final = 'expectations("name_of_a_suite"), or a list of such gates, or leave quality= out'


@answers(
    {
        "inputs": "a source reads no other stage: write Stage(...)",
        "func": "function",
        "sql": "a query would read what a table or folder has then, so a repair could get other rows without notice: "
        "write files_source, delta_source, iceberg_source or postgres_source, which record what they have read, or a "
        "function with ctx.spark.sql(...), and query its rows in Stage(..., sql=...)",
        "application": "a source needs a function: write it, and let the application read its rows as a Stage(...)",
    }
)
def source(
    name: str,
    function: str,
    *,
    resolve: str | None = None,
    parallelism: int = 1,
    max_parallelism: int | None = None,
    task: TaskSettings | None = None,
    spark: Mapping[str, str] | None = None,
    deterministic: bool = True,
    digest: DigestRule = PLAIN_RULE,
    state: State | Sequence[State] = (),
    quality: Gate | Sequence[Gate] = (),
    options: Mapping[str, Any] | None = None,
    goes_on: bool = False,
    moved_from: str = "",
    asset: str = "",
    reuse: Reuse | str | None = None,
) -> Stage:
    """Declare a stage without inputs: `def flights(ctx, split) -> DataFrame`, with a session in `ctx.spark`.

    `options` are JSON values, without secrets, for the function that `resolve` names. With `goes_on` each epoch reads
    what has come since the epoch before: `resolve` finds in `ctx.previous` what that has read, and returns a
    `Resolved`. `moved_from` is the name that such a source had before it was renamed. `asset` is the name or URI of the
    Airflow asset that its rows come from, for lineage. With `reuse="equal"` you vouch that its rows depend on its split
    and what it looks at of the epoch alone.
    """
    return Stage(
        name=name,
        function=function,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        resolve=resolve,
        kind=StageKind.SOURCE,
        task=TaskSettings() if task is None else task,
        spark=copy_of(spark),
        deterministic=deterministic,
        digest=digest,
        state=state,
        quality=quality,
        options=copy_of(options),
        goes_on=goes_on,
        moved_from=moved_from,
        asset=asset,
        reuse=reuse,
    )


@answers({**dict.fromkeys(("target", "targets", "into"), "to"), **_BY})
def sink(
    stage: Stage | str,
    name: str,
    *,
    by: str | Sequence[str] = (),
    to: Target | Sequence[Target] = (),
    delivery: DeliveryGuarantee | str = DeliveryGuarantee.EXACTLY_ONCE,
) -> Stage:
    """Publish the rows of `stage` as the data set `name`, a version per epoch, once the run's results are complete.

    The region that computes `stage` stages the rows; they become visible when `weir_close` writes a pointer. The digest
    rule of `stage` applies to them. With `by`, a column or a list of them, its files are divided by key groups: a
    subtask that reads the data set by these columns reads its own ones alone. `to` publishes them into a target as
    well, such as postgres(...), or into several, one after the other. With `delivery="at_least_once"` the rows are also
    published when the sink's own tasks have committed, as provisional ones: see docs/early-results.md.
    """
    read = name_of(stage)
    require(f"sink of {read!r}", "name", name, str, f'sink("{read}", "name_of_data_set")')
    keys, targets = column_names(f"sink({read!r}, {name!r})", "by", by), _targets(name, to)
    copied = next((each for each in targets if keys and each.kind in COPIED), None)
    if copied is not None:
        raise Misconfigured.of("dataflow.copied_by_keys", sink=name, target=copied)
    guarantee = choice(f"sink {name!r}", "delivery", delivery, DeliveryGuarantee)
    fixed = next((each for each in targets if not each.takes_back), None)
    if guarantee is DeliveryGuarantee.AT_LEAST_ONCE and fixed is not None:
        raise Misconfigured.of("dataflow.provisional_stays", sink=name, target=fixed)
    return Stage(
        name=name,
        function="",
        inputs={read: Exchange(stage=read, kind=ExchangeKind.PIPELINED, keys=keys)},
        kind=StageKind.SINK,
        targets=targets,
        delivery=guarantee,
    )


def _targets(sink: str, to: object) -> tuple[Target, ...]:
    targets = tuple(to) if isinstance(to, (list, tuple)) else (to,)
    for each in targets:
        if not isinstance(each, Target):
            raise Misconfigured.of("dataflow.not_a_target", sink=sink, each=shown(each))
    for place, each in enumerate(targets):
        if each in targets[:place]:
            raise Misconfigured.of("dataflow.target_twice", sink=sink, each=each)
    return targets


def _by_argument(stage: str, inputs: object) -> dict[str, Exchange]:
    if isinstance(inputs, Mapping):
        named = dict(inputs)
    elif isinstance(inputs, (list, tuple)):
        named = {}
        for exchange in inputs:
            if not isinstance(exchange, Exchange):
                raise _no_exchange(stage, "inputs has", exchange)
            argument = exchange.stage
            if argument in named:
                raise Misconfigured.of("dataflow.argument_twice", stage=stage, argument=argument)
            named[argument] = exchange
    else:
        raise Misconfigured.of(
            "dataflow.inputs_malformed", stage=stage, inputs=shown(inputs), inputs_for=_inputs_for(inputs)
        )
    for argument, exchange in named.items():
        if not isinstance(exchange, Exchange):
            raise _no_exchange(stage, f"input {argument!r} is", exchange)
    return named


def _no_exchange(stage: str, found: str, given: object) -> Misconfigured:
    return Misconfigured.of("dataflow.not_an_exchange", stage=stage, found=found, given=shown(given))


def _inputs_for(given: object) -> str:
    if isinstance(given, Exchange):
        return f"inputs=[{given}]"
    if isinstance(given, Stage | str):
        return f'inputs=[blocking("{name_of(given)}")], or pipelined(...) to read it within one task'
    return "inputs=[pipelined(x)] or inputs=[blocking(x, by=[columns])]"
