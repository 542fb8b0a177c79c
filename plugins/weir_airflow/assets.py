"""Published sinks as Airflow's assets.

Invariant: each asset event follows a publication. A task with an asset for an outlet would emit an event at every
success, also where a clear has changed nothing; so the closing task has aliases, and adds assets with new versions.

Two events follow each: one without a partition, by the alias, starts DAGs with `schedule=[sink_asset(...)]`, and one
whose partition is the epoch starts those with PartitionedAssetTimetable. No event of Airflow's starts both.

Events of an alias have the partition of their run: for a run that has one, the endpoint emits the one without.

Airflow enters an asset of an alias with its first event. Where two closing tasks announce a sink for the first time at
once, it fails at the second one, and calls that task failed, though its run is closed: so assets are entered before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, AssetAlias

from weir.dataflow.arguments import shown
from weir.dataflow.stage import dataset_of
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context


DATA_SET: Final = "weir://"
"""The beginning of the URI of a sink's asset."""


def sink_alias(dataflow: str, sink: str) -> AssetAlias:
    """The alias to which `weir_close` adds a sink's asset. A DAG may be scheduled on it, or on `sink_asset`."""
    return AssetAlias(f"{dataflow}.{sink}")


def sink_asset(dataflow: str, sink: str) -> Asset:
    """The asset of a sink, for the schedule of DAGs that read its published data."""
    return Asset(name=f"{dataflow}.{sink}", uri=f"{DATA_SET}{dataflow}/{sink}")


def on_dataset(name: str) -> Asset:
    """Schedule a dataflow by what another one publishes: `schedule=on_dataset("trips.zones")`, with a `cadence`.

    It is the asset of the sink, named by dataflow and sink: a run begins for each version of an epoch, and has that
    epoch. Several are joined by `&` (one run when all have the epoch) and `|` (a run for each). Raises Misconfigured.
    """
    dataflow, sink = dataset_of(name) if isinstance(name, str) else ("", "")
    if not dataflow or not sink or "." in sink:
        raise Misconfigured.of("dags.dataset_malformed", name=shown(name))
    return sink_asset(dataflow, sink)


def extras_of(epoch: str, new: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the `extra` of the events of each sink, whose summary `new` has: epoch, version, rows and digest."""
    names = ("version", "rows", "digest")
    return {sink: {"epoch": epoch, **{name: told[name] for name in names}} for sink, told in new.items()}


def announce(context: Context, dataflow: str, epoch: str, new: Mapping[str, Mapping[str, Any]]) -> None:
    """Emit two events for each sink with a new version, when this task succeeds: one has the epoch as partition key.

    `new` has the summary of each such sink. A task of a run with a partition emits the event that has it alone.
    """
    task, events = context["task"], context["outlet_events"]
    for sink, extra in extras_of(epoch, new).items():
        asset = sink_asset(dataflow, sink)
        if context["dag_run"].partition_key is None:
            events[sink_alias(dataflow, sink)].add(asset, extra=extra)
        task.outlets = [*task.outlets, asset]  # Airflow reads them when the task has ended
        events[asset].extra = extra
        events[asset].add_partitions(epoch)
