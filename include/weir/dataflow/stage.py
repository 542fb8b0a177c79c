"""A step of a dataflow and what Airflow and Spark must know of it. Invariant: it is data and imports no user code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, cast

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.exchange import Exchange, ExchangeKind, name_of
from weir.dataflow.quality import Gate, gates_of
from weir.dataflow.state import State
from weir.errors import Misconfigured


class StageKind(Enum):
    """What a stage does besides computing."""

    SOURCE = "source"
    TRANSFORM = "transform"
    SINK = "sink"
    STATE = "state"
    """What another stage keeps from epoch to epoch: its content is what that stage has done to its handle."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Airflow's settings of the task that runs a stage; stages of one region must agree.

    `spark_conn_id` names the connection to the Spark that computes the region, if not the dataflow's.
    """

    pool: str | None = None
    queue: str | None = None
    priority_weight: int | None = None
    execution_timeout: timedelta | None = None
    executor_config: Mapping[str, Any] = field(default_factory=dict)
    spark_conn_id: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A pure function on Spark DataFrames with one output, run by `parallelism` subtasks.

    `function` is named as "module:function", so that a DAG file imports no Spark:
    `def clean(ctx, flights: DataFrame) -> DataFrame`. `inputs` maps the function's arguments to exchanges;
    a sequence of exchanges names each argument after the stage it reads. `max_parallelism` (default: the
    dataflow's) is the number of key groups that the stage's keyed inputs are divided into.
    `resolve` (sources only) names a function that says once a run what each subtask reads:
    `def flights_of(ctx) -> list[Any]`, one JSON value a subtask; the source is then called as `(ctx, slice)`.
    `spark` holds Spark settings of the session that runs the stage's region.
    `deterministic=False` says that equal inputs may give other rows, so that its direct consumers run again whenever
    it does. `digest` says what counts as a change of its rows. `state` is what it keeps from epoch to epoch, one or
    several of keyed_state(...), list_state(...) and broadcast_state(...): the argument of that name is a handle.
    `quality` is what its rows are checked by before they are committed: one or several of expectations(...).
    """

    name: str
    function: str
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _by_argument(self.name, self.inputs))
        object.__setattr__(self, "state", (self.state,) if isinstance(self.state, State) else tuple(self.state))
        object.__setattr__(self, "quality", gates_of(self.quality))

    @property
    def states(self) -> tuple[State, ...]:
        """What the stage keeps from epoch to epoch."""
        return cast("tuple[State, ...]", self.state)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """What its rows are checked by."""
        return cast("tuple[Gate, ...]", self.quality)

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        """The inputs: function argument to exchange."""
        return cast("Mapping[str, Exchange]", self.inputs)


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
) -> Stage:
    """Declare a stage without inputs: `def flights(ctx, slice) -> DataFrame`, with a session in `ctx.spark`."""
    return Stage(
        name,
        function,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        resolve=resolve,
        kind=StageKind.SOURCE,
        task=task or TaskSettings(),
        spark=dict(spark or {}),
        deterministic=deterministic,
        digest=digest,
        state=state,
        quality=quality,
    )


def sink(stage: Stage | str, name: str) -> Stage:
    """Publish the rows of `stage` as the data set `name`, one version an epoch, once the run's results are complete.

    The rows are staged by the region that computes `stage` and become visible when `weir_close` replaces one pointer.
    What counts as a change of them is what `stage` says.
    """
    read = name_of(stage)
    return Stage(name, "", {read: Exchange(read, ExchangeKind.PIPELINED)}, kind=StageKind.SINK)


def _by_argument(stage: str, inputs: object) -> dict[str, Exchange]:
    if isinstance(inputs, Mapping):
        named = dict(inputs)
    elif isinstance(inputs, (list, tuple)):
        named = {}
        for exchange in inputs:
            argument = exchange.stage if isinstance(exchange, Exchange) else repr(exchange)
            if argument in named:
                raise Misconfigured(
                    f"stage {stage!r} reads {argument!r} twice: name its arguments, for example "
                    f'inputs={{"{argument}": ..., "other_{argument}": ...}}'
                )
            named[argument] = exchange
    else:
        raise Misconfigured(f"stage {stage!r}: inputs must be a list or a dict of exchanges, not {inputs!r}")
    for argument, exchange in named.items():
        if not isinstance(exchange, Exchange):
            raise Misconfigured(
                f"stage {stage!r}: input {argument!r} is {exchange!r}, not an exchange: "
                "write pipelined(x), cached(x), blocking(x, by=...), blocking(x, broadcast=True) or previous(x, ...)"
            )
    return named
