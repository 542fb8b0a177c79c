"""What Airflow's UI says about a dataflow and its tasks. Invariant: it is made of the declaration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weir.dataflow import Dataflow, Exchange, Stage
    from weir.topology.regions import LogicalRegion, Topology

_HEALING: Final = (
    "A lost or damaged result heals itself: its producers run again, and consumers only if the content has changed. "
    "Clear a single task to compute it anew; its downstream tasks need not be cleared with it."
)


def exchange_label(exchanges: Iterable[Exchange]) -> str:
    """The text at an edge of the graph: how the rows cross it."""
    return "; ".join(dict.fromkeys(describe_exchange(exchange) for exchange in exchanges))


def describe_exchange(exchange: Exchange) -> str:
    """`blocking by origin, hour`, `blocking, broadcast` or `pipelined`."""
    kind = exchange.kind.value
    if exchange.keys:
        return f"{kind} by {', '.join(exchange.keys)}"
    return f"{kind}, broadcast" if exchange.broadcast else kind


def region_doc(topology: Topology, flow: Dataflow, region: LogicalRegion) -> str:
    """Markdown: the region's stages in order, the function of each, what it reads and how it is written."""
    subtasks = "one task instance" if region.parallelism == 1 else f"{region.parallelism} subtasks"
    rows = [_stage_row(topology, flow.stage(name)) for name in region.stages]
    return "\n".join(
        [
            f"### Region `{region.name}`",
            "",
            f"One Spark plan and one unit of recovery, {subtasks}.",
            "",
            "| Stage | Function | Reads | Written as |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def dataflow_doc(topology: Topology, flow: Dataflow) -> str:
    """Markdown: the regions and sinks of the dataflow, and what to do by hand when something goes wrong."""
    regions = [f"- `{region.name}`: {', '.join(region.stages)}" for region in topology.regions]
    sinks = ", ".join(f"`{name}`" for name in topology.sinks) or "nothing"
    return "\n".join(
        [
            f"### Dataflow `{flow.name}`",
            "",
            f"Run by Weir: each task is a region, each run an epoch. It publishes {sinks}.",
            "",
            *regions,
            "",
            _HEALING,
        ]
    )


def _stage_row(topology: Topology, stage: Stage) -> str:
    reads = "<br>".join(
        f"`{exchange.stage}` as `{argument}`, {describe_exchange(exchange)}"
        for argument, exchange in stage.exchanges.items()
    )
    layouts = "<br>".join(f"`{layout.id}`" for layout in topology.layouts_of(stage.name))
    function = f"`{stage.function}`" if stage.function else f"*{stage.kind.value}*"
    return f"| `{stage.name}` | {function} | {reads or '-'} | {layouts or '(not written)'} |"
