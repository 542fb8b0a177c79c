"""Lineage of Weir's tasks for OpenLineage. Only its provider asks for it, so that nothing is imported without it.

Invariant: a data set has the name of the place where it stays, as `openlineage.client.naming` makes it, and what a run
has of it is a version. A try that has not committed claims no output, whatever it may have written.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.utils.utils import translate_airflow_asset
from airflow.sdk import Asset
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    RunFacet,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)
from openlineage.client.naming.dataset import S3, LocalFileSystem, Postgres
from openlineage.common.sql import parse

from weir.errors import WeirError
from weir.formats.paths import sinks_folder
from weir.telemetry.lineage import DatasetKind, declared_lineage, lineage_of
from weir_airflow.tasks.context import TaskContext
from weir_airflow.tasks.running import task_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from openlineage.client.naming.dataset import DatasetNaming

    from weir.connections import Connection, Connections
    from weir.telemetry.lineage import Dataset, Lineage
    from weir_airflow.dags.declaration import Declaration

FACET: Final = "weir_attempt"
"""The name of the run facet."""

_PATTERN: Final = re.compile(r"[^/]*[{*?\[].*", re.DOTALL)
"""The part of a path that differs from epoch to epoch, or from file to file."""

_BOUND: Final = re.compile(r"\{[^{}]*\}")
"""A bound of the interval in a query."""

_SOURCE: Final = re.compile(r"weir_spark\.sources\.(\w+):resolve")

_S3: Final = ("s3", "s3a")


@attr.define
class WeirAttemptRunFacet(RunFacet):  # type: ignore[misc]  # OpenLineage's classes are not followed
    """An attempt: how it has ended, the digests of what it has written, and the failure because of which it ran."""

    dataflow: str
    epoch: str
    attempt: str
    state: str
    origin: str
    failure: str | None
    digests: dict[str, str]
    parentFailure: dict[str, Any] | None  # noqa: N815  as OpenLineage writes names


def on_start(declared: Declaration, region: str) -> OperatorLineage:
    """Return what a task reads by its declaration. Raises what opening the ledger raises."""
    with TaskContext.open() as context:
        return _told(context, declared_lineage(declared.topology, region), has_ended=False)


def on_end(declared: Declaration, region: str, ti: Any, *, has_failed: bool) -> OperatorLineage:
    """Return what a try has read, and, unless it has failed, written. Raises what reading that raises."""
    with TaskContext.open() as context:
        found = lineage_of(context.services, declared.flow.name, task_key({"ti": ti}), ti.try_number)
        lineage = declared_lineage(declared.topology, region) if found is None else found
        return _told(context, lineage, has_ended=not has_failed)


def _told(context: TaskContext, lineage: Lineage, *, has_ended: bool) -> OperatorLineage:
    store, look_up = context.store.url, context.services.connections
    outputs = lineage.outputs if has_ended else ()
    return OperatorLineage(
        inputs=[each for dataset in lineage.inputs for each in _inputs(dataset, store, look_up)],
        outputs=[each for dataset in outputs for each in _outputs(dataset, store, look_up)],
        run_facets=_run_facets(lineage),
    )


def _run_facets(lineage: Lineage) -> dict[str, RunFacet]:
    if not lineage.attempt:
        return {}
    parent = lineage.parent
    facet = WeirAttemptRunFacet(
        **{name: getattr(lineage, name) for name in ("dataflow", "epoch", "attempt", "state", "origin", "failure")},
        digests=dict(lineage.digests),
        parentFailure=None if parent is None else asdict(parent),
    )
    return {FACET: facet}


def _inputs(dataset: Dataset, store: str, look_up: Connections) -> Iterator[InputDataset]:
    facets = {}
    if dataset.rows is not None:
        statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
        facets["inputStatistics"] = statistics(rowCount=dataset.rows, size=dataset.bytes)
    for namespace, name in names_of(dataset, store, look_up):
        yield InputDataset(namespace=namespace, name=name, facets=_facets(dataset), inputFacets=facets)


def _outputs(dataset: Dataset, store: str, look_up: Connections) -> Iterator[OutputDataset]:
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    facets = {"outputStatistics": statistics(rowCount=dataset.rows, size=dataset.bytes)}
    for namespace, name in names_of(dataset, store, look_up):
        yield OutputDataset(namespace=namespace, name=name, facets=_facets(dataset), outputFacets=facets)


def _facets(dataset: Dataset) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if dataset.version:
        version = dataset_version_dataset.DatasetVersionDatasetFacet
        facets["version"] = version(datasetVersion=dataset.version)
    if dataset.spark_schema:
        fields = json.loads(dataset.spark_schema)["fields"]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=_fields(fields))
    return facets


def _fields(fields: list[Mapping[str, Any]]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [
        schema_dataset.SchemaDatasetFacetFields(
            name=field["name"], type=_type_of(field["type"]), ordinal_position=place, fields=_inner(field["type"])
        )
        for place, field in enumerate(fields, 1)
    ]


def _inner(kind: Any) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return _fields(kind["fields"]) if isinstance(kind, dict) and kind["type"] == "struct" else []


def _type_of(kind: Any) -> str:
    """Return a type of Spark's JSON as Spark's DDL."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{_type_of(kind['elementType'])}>"
        case "map":
            return f"map<{_type_of(kind['keyType'])},{_type_of(kind['valueType'])}>"
        case _:
            inner = ",".join(f"{field['name']}:{_type_of(field['type'])}" for field in kind["fields"])
            return f"struct<{inner}>"


# Names


def names_of(dataset: Dataset, store: str, look_up: Connections) -> list[tuple[str, str]]:
    """Return namespace and name of a data set, in all places where it stays; without those that are not known."""
    stage, of = dataset.stage, dataset.dataflow
    match dataset.kind:
        case DatasetKind.RESULT:
            return [_at(f"{store}/{of}/{stage.name}")]
        case DatasetKind.PUBLISHED:
            places = [_of_options(each.kind.removesuffix("_on_s3"), each.options, look_up) for each in stage.targets]
            return [_at(f"{store}/{sinks_folder(of)}/{stage.name}"), *chain(*places)]
        case DatasetKind.SOURCE:
            kind = _SOURCE.fullmatch(stage.resolve or "")
            return (_of_options(kind[1], stage.options, look_up) if kind else []) or _of_asset(stage.asset)


def _of_asset(asset: str) -> list[tuple[str, str]]:
    """Return what the provider calls an asset, as it does for the task that produces it; nothing for a mere name."""
    with suppress(ValueError):  # Airflow has no asset of that name or URI
        found = translate_airflow_asset(Asset(asset), None)
        return [] if found is None else [(found.namespace, found.name)]
    return []


def _of_options(kind: str, options: Mapping[str, Any], look_up: Connections) -> list[tuple[str, str]]:
    """Return the places that the options of a ready-made target or source name."""
    table = str(options.get("table", ""))
    try:
        match kind:
            case "files" | "delta":
                return [_at(_PATTERN.sub("", str(options["path"])))]
            case "postgres":
                names = [tuple(reversed(table.split(".")))] if table else _tables_of(str(options["query"]))
                return [_in_postgres(look_up(options["conn_id"]), *name) for name in names]
            case "iceberg":
                conn_id, name = (options["conn_id"], table) if "conn_id" in options else table.split(".", 1)
                host = look_up(conn_id).host
                return [(host if "://" in host else f"iceberg://{host}", name)]
    except WeirError:  # the connection is not there, or Airflow does not answer: the rest of the event is right
        return []
    return []


def _tables_of(query: str) -> list[tuple[str, str]]:
    parsed = parse([_BOUND.sub("NULL", query)], dialect="postgres")
    return [] if parsed is None else [(each.name, each.schema or "public") for each in parsed.in_tables]


def _in_postgres(connection: Connection, table: str, schema: str = "public") -> tuple[str, str]:
    server = {"host": connection.host or "localhost", "port": str(connection.port or 5432)}
    return _named(Postgres(**server, database=connection.database or "postgres", schema=schema, table=table))


def _at(place: str) -> tuple[str, str]:
    """Return namespace and name of a folder, which is a URL or a path."""
    url = urlsplit(place)
    path = url.path.rstrip("/")
    if url.scheme in _S3:
        return _named(S3(url.netloc, path.strip("/") or "/"))
    if url.scheme in ("", "file"):
        return _named(LocalFileSystem(path or "/"))
    return f"{url.scheme}://{url.netloc}", path.strip("/") or "/"


def _named(naming: DatasetNaming) -> tuple[str, str]:
    return naming.get_namespace(), naming.get_name()
