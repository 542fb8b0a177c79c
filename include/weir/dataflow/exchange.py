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
    """Flink's ResultPartitionType, as far as a dataflow that is run knows it."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One input of a stage: the stage it reads, and how.

    `keys` are the columns that a blocking exchange is partitioned by; `broadcast` gives every reader all rows.
    """

    stage: str
    kind: ExchangeKind
    keys: tuple[str, ...] = ()
    broadcast: bool = False


def pipelined(stage: str | Stage) -> Exchange:
    """Read `stage` inside the same Spark plan, index to index: nothing is written, both restart together."""
    return Exchange(name_of(stage), ExchangeKind.PIPELINED)


def blocking(stage: str | Stage, *, by: str | Sequence[str] = (), broadcast: bool = False) -> Exchange:
    """Read `stage` from result partitions in the store: a boundary at which recovery stops.

    With `by`, subtask i reads the rows of its own key groups; with `broadcast=True` every subtask reads all rows.
    A stage of parallelism 1 needs neither.
    """
    keys = (by,) if isinstance(by, str) else tuple(by)
    return Exchange(name_of(stage), ExchangeKind.BLOCKING, keys, broadcast)


def name_of(stage: object) -> str:
    """Return the name of a stage that is given itself or by name. Raises Misconfigured for anything else."""
    name = stage if isinstance(stage, str) else getattr(stage, "name", None)
    if not isinstance(name, str):
        raise Misconfigured(f"{stage!r} is not a stage: give the stage itself or its name")
    return name
