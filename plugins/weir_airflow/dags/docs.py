"""The texts of Airflow's UI about a dataflow and its tasks. Invariant: they depend on the declaration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weir.dataflow import Consumers, ExchangeKind, FailoverStrategy, OnReprocess, RepairCode, StateKind
from weir.dataflow.stage import StageKind
from weir.restarts.delays import AIRFLOW_RETRIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weir.dataflow import Dataflow, Exchange, Stage, State
    from weir.restarts.strategy import RestartChoice
    from weir.topology.regions import LogicalRegion, Topology


_HEALING: Final = {
    FailoverStrategy.REGION: "A lost or damaged result heals itself: its producers run again, and consumers {again}.",
    FailoverStrategy.FULL: "After any failure that restarts something, all regions that have begun run again.",
    FailoverStrategy.INDIVIDUAL: (
        "A failed task is retried by itself and nothing else runs again by itself: where an input is lost, the task "
        "fails and names what to clear; `weir plan RUN --apply` clears it."
    ),
}

_AGAIN: Final = {
    Consumers.IF_CHANGED: "only if the content has changed",
    Consumers.ALWAYS: "whenever what they read is recomputed",
}

_CLEARING: Final = "Clear a single task to compute it anew; its downstream tasks need not be cleared with it."
_CODE: Final = {
    RepairCode.NEWEST: "A clear runs the deployed code; if that makes another result, the whole stage runs again.",
    RepairCode.AS_IT_WAS: "A clear runs the code that computed the result before, also if newer code is deployed.",
}

_IN_ORDER: Final = (
    "Each run goes on from the state of the previous run: runs are computed in the order of their intervals, and none "
    "is inserted later. When a run is computed again and its state changes, {later}"
)

_LATER: Final = {
    OnReprocess.CASCADE: "later ones run again, in order, as far as their state changes.",
    OnReprocess.MARK: "later ones become stale: `weir plan RUN --apply` recomputes one.",
}

_STATE_KINDS: Final = {
    StateKind.SPLIT: "a list whose elements are divided among its subtasks",
    StateKind.UNION: "a list of which each subtask gets all elements",
    StateKind.BROADCAST: "the same rows in every subtask",
}

_KINDS: Final = {
    ExchangeKind.PIPELINED: "pipelined",
    ExchangeKind.BLOCKING: "blocking",
    ExchangeKind.CACHED: "cached",
    ExchangeKind.PREVIOUS: "previous epoch",
    ExchangeKind.DATASET: "data set",
}

_LONGEST_LABEL: Final = 30
"""The characters of a name that Airflow's grid and graph show without cutting it or making the box very wide."""

_INDEX_BY_INDEX: Final = (
    "These regions read each other index by index: subtask i of each goes on and recovers by itself, whatever becomes "
    "of the others. Tasks outside of the group wait for all of them."
)


def exchange_label(exchanges: Iterable[Exchange]) -> str:
    """Return the text at an edge of the graph: how the rows cross it."""
    return "; ".join(dict.fromkeys(describe_exchange(exchange) for exchange in exchanges))


def describe_exchange(exchange: Exchange) -> str:
    """Describe an exchange: `blocking by origin, hour`, `cached within an attempt`, `previous epoch by id`..."""
    kind = _KINDS[exchange.kind]
    if exchange.keys:
        return f"{kind} by {', '.join(exchange.keys)}"
    if exchange.pointwise:
        return f"{kind}, index by index"
    if not exchange.durable:
        return f"{kind} within an attempt"
    return f"{kind}, broadcast" if exchange.broadcast else kind


def region_label(topology: Topology, region: LogicalRegion) -> str:
    """Return the name that Airflow shows of a region: a long one has its first and its last stage."""
    named = [stage.name for stage in topology.stages_of(region.name) if stage.kind is not StageKind.STATE]
    if len(region.name) <= _LONGEST_LABEL or len(named) <= 2:
        return region.name
    return f"{named[0]} … {named[-1]}"


def pipeline_tooltip(pipeline: Iterable[LogicalRegion]) -> str:
    """Return the tooltip of an independent pipeline: its regions, and how they recover."""
    return f"{', '.join(region.name for region in pipeline)}. {_INDEX_BY_INDEX}"


def restarts_line(restart: RestartChoice) -> str:
    """Return what has a failed task run again, and that the retries which Airflow shows do not decide."""
    strategy, most = restart.strategy, restart.resolved().limits.per_task
    named = "the deployment's restart strategy" if strategy is None else f"the restart strategy `{strategy.name}`"
    default = " by default" if strategy is None and restart.limits.per_task is None else ""
    limit = "" if most is None else f",{default} after at most {most} failures"
    return (
        f"A failed task runs again by {named}{limit}. The {AIRFLOW_RETRIES} retries that Airflow shows decide nothing: "
        f"a try that found an input lost, or Spark away, takes one, too."
    )


def region_doc(topology: Topology, flow: Dataflow, region: LogicalRegion, restart: RestartChoice) -> str:
    """Return Markdown: the region's stages, with function, what each reads and how it is written; and its restarts."""
    subtasks = "one task instance" if region.parallelism == 1 else f"{region.parallelism} subtasks"
    rows = [_stage_row(topology, region, flow.stage(name)) for name in region.stages]
    return "\n".join(
        [
            f"### Region `{region.name}`",
            "",
            f"One Spark plan and one unit of recovery, {subtasks}.",
            "",
            "| Stage | Function | Reads | Declared layouts |",
            "|---|---|---|---|",
            *rows,
            "",
            restarts_line(restart),
        ]
    )


def dataflow_line(topology: Topology) -> str:
    """Return a line for the list of DAGs: how large the dataflow is, and what it publishes and keeps."""
    computed = sum(stage.kind not in (StageKind.SINK, StageKind.STATE) for stage in topology.dataflow.stages)
    parts = [
        f"{computed} stages in {len(topology.regions)} regions" if computed > 1 else "One stage",
        f"publishes {', '.join(topology.sinks)}" if topology.sinks else "",
        f"keeps {', '.join(topology.states)}" if topology.states else "",
    ]
    return "; ".join(filter(None, parts))


def dataflow_doc(topology: Topology, flow: Dataflow, restart: RestartChoice) -> str:
    """Return Markdown: the regions, sinks and states of the dataflow, what restarts, and what to clear after that."""
    regions = [f"- `{region.name}`: {', '.join(region.stages)}" for region in topology.regions]
    regions += [
        f"- index by index: {', '.join(f'`{region.name}`' for region in pipeline)}" for pipeline in topology.pipelines
    ]
    sinks = ", ".join(f"`{name}`" for name in topology.sinks) or "nothing"
    assets = ", ".join(dict.fromkeys(f"`{stage.asset}`" for stage in flow.stages if stage.asset))
    reads = f" It reads the assets {assets}." if assets else ""
    return "\n".join(
        [
            f"### Dataflow `{flow.name}`",
            "",
            f"Run by Weir: each task is a region, each run an epoch. It publishes {sinks}.{reads}",
            "",
            *regions,
            *_states(flow),
            "",
            _healing(flow),
            "",
            restarts_line(restart),
        ]
    )


def _states(flow: Dataflow) -> list[str]:
    """Describe the state that goes from run to run, and what that means for clears and backfills."""
    kept = [f"- `{stage.name}` keeps {describe_state(state)}" for stage in flow.stages for state in stage.states]
    return ["", *kept, "", _IN_ORDER.format(later=_LATER[flow.on_reprocess])] if kept else []


def describe_state(state: State) -> str:
    """Describe a state: `history` by tailnum, `rates` in every subtask..."""
    if state.kind is not StateKind.KEYED:
        return f"`{state.name}`, {_STATE_KINDS[state.kind]}"
    retention = f", each row for {state.ttl} since its last update" if state.ttl else ""
    return f"`{state.name}` by {state.key_text}{retention}"


def _healing(flow: Dataflow) -> str:
    by_itself = _HEALING[flow.failover_strategy].format(again=_AGAIN[flow.consumers])
    if flow.failover is None:
        by_itself = f"{by_itself} A deployment may say otherwise, by `[weir] failover`."
    clearing = "" if flow.failover is FailoverStrategy.INDIVIDUAL else f" {_CLEARING}"
    return f"{by_itself}{clearing} {_CODE[flow.repair_code]}"


def _stage_row(topology: Topology, region: LogicalRegion, stage: Stage) -> str:
    reads = "<br>".join(
        f"`{exchange.stage}` as `{argument}`, {describe_exchange(exchange)}"
        for argument, exchange in stage.exchanges.items()
    ) or (f"asset `{stage.asset}`" if stage.asset else "-")
    written = [f"`{layout.id}`" for layout in topology.layouts_of(stage.name)]
    if stage.name in topology.copies_of(region.name):
        written.append("a copy that a retry resumes from")
    layouts = "<br>".join(written)
    function = f"`{stage.function}`" if stage.function else f"*{stage.kind.value}*"
    return f"| `{stage.name}` | {function} | {reads} | {layouts or '(not written)'} |"
