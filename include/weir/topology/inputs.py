"""What a region reads. Invariant: whoever reads an input needs to know nothing of exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from weir.results.layout import Layout
from weir.topology.ids import PartitionId


@dataclass(frozen=True, slots=True)
class InputPartitions:
    """What one blocking input of a region reads; `key_groups` is the inclusive range to keep (None: all rows).

    `schema` is what it was declared to be, as Spark DDL (empty: nothing was declared).
    """

    argument: str
    stage: str
    producer: str
    layout: Layout
    partitions: tuple[PartitionId, ...]
    key_groups: tuple[int, int] | None
    schema: str = ""


@dataclass(frozen=True, slots=True)
class PreviousInput:
    """What one `previous` input of a region reads of the run before: all partitions that run has of the producer.

    `schema` is what it reads where there is no such run, as Spark DDL.
    """

    argument: str
    stage: str
    producer: str
    layout: Layout
    key_groups: tuple[int, int] | None
    schema: str
