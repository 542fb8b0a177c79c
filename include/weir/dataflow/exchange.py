"""How a stage reads another one. Invariant: it alone says whether it is a region boundary and who reads what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from weir.dataflow.stage import Stage


class ExchangeKind(Enum):
    """Flink's ResultPartitionType, as far as a dataflow that is run knows it, and what FLIP-1 and iterations add."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"
    CACHED = "cached"
    PREVIOUS = "previous"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One input of a stage: the stage it reads, and how.

    `keys` are the columns that a blocking or previous exchange is partitioned by; `broadcast` gives every reader all
    rows; `pointwise` gives reader i the partition i of a blocking exchange. `durable` tells the two cached exchanges
    apart. `schema` is what a previous exchange reads in the first epoch: no rows, with these columns.
    """

    stage: str
    kind: ExchangeKind
    keys: tuple[str, ...] = ()
    broadcast: bool = False
    pointwise: bool = False
    durable: bool = True
    schema: str = ""

    @property
    def joins_plan(self) -> bool:
        """Whether both ends are one Spark plan and so one region: pipelined and cached exchanges."""
        return self.kind in (ExchangeKind.PIPELINED, ExchangeKind.CACHED)

    @property
    def is_boundary(self) -> bool:
        """Whether it separates regions of one run: blocking exchanges."""
        return self.kind is ExchangeKind.BLOCKING

    @property
    def is_previous(self) -> bool:
        """Whether it reads the epoch before: no order, cycle or region of its own run depends on it."""
        return self.kind is ExchangeKind.PREVIOUS


def pipelined(stage: str | Stage) -> Exchange:
    """Read `stage` inside the same Spark plan, index to index: nothing is written, both restart together."""
    return Exchange(name_of(stage), ExchangeKind.PIPELINED)


def cached(stage: str | Stage, *, durable: bool = True) -> Exchange:
    """Read `stage` inside the same Spark plan, and keep a copy of it: a point from which a retry resumes (FLIP-1).

    The copy is in the store and serves later attempts of the same task, as long as it was made from the same inputs by
    the same code. With `durable=False` it is `DataFrame.persist`, for several readers within one attempt.
    """
    return Exchange(name_of(stage), ExchangeKind.CACHED, durable=durable)


def blocking(
    stage: str | Stage, *, by: str | Sequence[str] = (), broadcast: bool = False, pointwise: bool = False
) -> Exchange:
    """Read `stage` from result partitions in the store: a boundary at which recovery stops.

    With `by`, subtask i reads the rows of its own key groups; with `broadcast=True` every subtask reads all rows; with
    `pointwise=True` subtask i reads what subtask i of `stage` wrote. A stage of parallelism 1 needs none of them.
    """
    return Exchange(name_of(stage), ExchangeKind.BLOCKING, _keys(by), broadcast, pointwise)


def previous(
    stage: str | Stage, *, by: str | Sequence[str] = (), broadcast: bool = False, schema: str = ""
) -> Exchange:
    """Read the result of `stage` of the epoch before: it may be the reading stage itself, or close a longer cycle.

    The first epoch reads no rows, with the columns of `schema`, a Spark DDL string like "id BIGINT, seen TIMESTAMP";
    in later epochs the columns must be these. `by` and `broadcast` are those of `blocking`.
    """
    return Exchange(name_of(stage), ExchangeKind.PREVIOUS, _keys(by), broadcast, schema=schema)


def _keys(by: str | Sequence[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def name_of(stage: object) -> str:
    """Return the name of a stage that is given itself or by name. Raises Misconfigured for anything else."""
    name = stage if isinstance(stage, str) else getattr(stage, "name", None)
    if not isinstance(name, str):
        raise Misconfigured(f"{stage!r} is not a stage: give the stage itself or its name")
    return name
