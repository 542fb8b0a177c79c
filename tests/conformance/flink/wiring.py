"""Flink's VertexInputInfoComputationUtils: the subtasks that read each other over a pointwise exchange.

A reference for conformance: in a dataflow a pointwise exchange joins equal parallelisms only.

Invariant: both functions describe one relation: a is among i's producers exactly if i is among a's consumers.
"""

from __future__ import annotations


def pointwise_producers(producers: int, consumers: int, consumer: int) -> range:
    """Return the producer subtasks that the consumer subtask reads."""
    if producers >= consumers:
        return range(consumer * producers // consumers, (consumer + 1) * producers // consumers)
    only = consumer * producers // consumers
    return range(only, only + 1)


def pointwise_consumers(producers: int, consumers: int, producer: int) -> range:
    """Return the consumer subtasks that read the producer subtask."""
    behind = -(-(producer + 1) * consumers // producers)
    if producers >= consumers:
        return range(behind - 1, behind)
    return range(-(-producer * consumers // producers), behind)
