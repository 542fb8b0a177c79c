"""`weir datasets`: what dataflows publish and read of each other. Invariant: it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.documents import AsJson, Listing, print_document
from weir.cli.tables import at, key, number, print_line, text, value
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.ledger.names import NO_RUN
from weir.views.datasets import (
    NEWEST,
    DatasetDetails,
    DatasetInput,
    DatasetView,
    EpochRead,
    EpochReader,
    EpochView,
    RunInputs,
    WaitingTask,
    dataset_details,
    dataset_views,
    inputs_of_run,
)
from weir.views.lineage import Lineage, lineage_of

DIGEST = 12
"""How many characters of a digest are shown."""

MOST = 10_000
"""The largest number of epochs that are listed."""


def datasets(
    name: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="DATAFLOW.SINK: its epochs.", show_default=False)
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="What the inputs of this run read.")] = None,
    lineage: Annotated[
        bool, typer.Option("--lineage", help="What it, or a dataflow, is made of, and what is made of it.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="With --lineage: also write a drawing of it to this file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many of its newest epochs.")] = NEWEST,
    as_json: AsJson = False,
) -> None:
    """Show data sets: who publishes them, who reads which epochs of them, and what waits for them.

    Of one data set its epochs are shown with the runs that have read them; of a run what each of its inputs reads.
    --lineage goes over dataflows to any depth, in both directions, as their newest runs declare it.
    """
    if svg is not None and not lineage:
        raise Misconfigured.of("cli.drawing_of_lineage")
    with opened_services() as services, services.ledger.transaction() as session:
        if lineage:
            _print_lineage(lineage_of(session, name), svg, as_json=as_json)
        elif run is not None:
            _print_inputs(inputs_of_run(session, run, name), as_json=as_json)
        elif name is not None:
            _print_details(dataset_details(session, name, limit), as_json=as_json)
        else:
            found = dataset_views(session)
            _DATASETS.show(found, as_json=as_json)
            for each in () if as_json else found:
                _print_waiting(each)


def _print_details(found: DatasetDetails, *, as_json: bool) -> None:
    if as_json:
        print_document(dataset=found)
        return
    view = found.overview
    print_line(f"{view.name}: published by {_producer(view)}; read by {_readers(view) or 'nobody'}")
    if found.epochs:
        _EPOCHS.show(found.epochs, as_json=False)
    if found.older:
        print_line(
            f"{found.older:,} older epoch(s) are not listed: --limit {found.older + len(found.epochs)} lists all."
        )
    _print_waiting(view)


def _print_inputs(found: RunInputs, *, as_json: bool) -> None:
    if as_json:
        print_document(run=found.run, inputs=found.inputs)
        return
    _INPUTS.show(found.inputs, as_json=False)
    for each in found.inputs:
        for task in each.waiting:
            print_line(_waits(task))


def _print_lineage(found: Lineage, svg: Path | None, *, as_json: bool) -> None:
    if svg is not None:
        from weir.views.drawings import drawing_of_lineage, svg_file  # noqa: PLC0415  only a drawing needs its layout

        svg.write_text(svg_file(drawing_of_lineage(found)))
    if as_json:
        print_document(lineage=found)
    else:
        _LINEAGE.show(found.nodes, as_json=False)


def _print_waiting(found: DatasetView) -> None:
    for each in found.waiting:
        print_line(f"{each.run}: {_waits(each)}")


def _waits(task: WaitingTask) -> str:
    return f"{task.region} has been {task.reason}, since {at(task.since)}; it last looked at {at(task.looked_at)}"


def _producer(found: DatasetView) -> str:
    if found.is_declared:
        return found.dataflow
    if not found.dag_ids:
        return f"nobody: no task of {found.dataflow} has begun"
    return f"nobody{' any more' if found.epochs else ''}: {found.dataflow} declares no such sink"


def _readers(found: DatasetView) -> str:
    skips = {"skip": ", what is missing left out"}
    said = (f"{each.dataflow} ({each.epoch}{skips.get(each.missing, '')})" for each in found.readers)
    return ", ".join(dict.fromkeys(said))


_DATASETS = Listing(
    "datasets",
    (
        key("data set", "name"),
        number("epochs"),
        text("newest", lambda each: each.newest and f"{each.newest.epoch} v{each.newest.version}"),
        number("rows", lambda each: each.newest and each.newest.rows),
        value("published", lambda each: each.newest and each.newest.published_at),
        text("publisher", _producer),
        text("readers", _readers),
        number("waiting", lambda each: len(each.waiting)),
    ),
    f"The ledger is empty: {NO_RUN}.",
)

_LINEAGE = Listing(
    "nodes",
    (
        key("data set", "name"),
        number("distance", form=""),
        value("dataflow"),
        text("made of", lambda each: ", ".join(each.made_of)),
    ),
    f"The ledger is empty: {NO_RUN}.",
)

_VALIDITY = {True: "", False: " (stale)", None: " (has made nothing of it yet)"}


def _read_by(reader: EpochReader) -> str:
    return f"{reader.run}{_VALIDITY[reader.is_valid]}"


def _version(epoch: EpochView) -> str:
    return "deleted" if epoch.published is None else f"v{epoch.published.version}"


_EPOCHS = Listing(
    "epochs",
    (
        key("epoch"),
        value("version", _version),
        value("digest", lambda each: each.published and each.published.digest[:DIGEST]),
        number("rows", lambda each: each.published and each.published.rows),
        value("published", lambda each: each.published and each.published.published_at),
        text("read by", lambda each: ", ".join(map(_read_by, each.readers))),
    ),
    "Nothing was published yet.",
)


def _read(epoch: EpochRead) -> str:
    version = "deleted" if epoch.version is None else f"v{epoch.version}"
    return f"{epoch.run} {version}{_VALIDITY[epoch.is_valid]}"


def _resolved(found: DatasetInput) -> str:
    if found.resolved_at is None:
        return "not decided yet"
    return ", ".join(map(_read, found.epochs)) or "none"


_INPUTS = Listing(
    "inputs",
    (
        key("input", lambda each: f"{each.stage}.{each.argument}"),
        key("data set", "dataset"),
        value("epoch"),
        value("missing"),
        text("reads", _resolved),
        text("left out", lambda each: ", ".join(each.left_out)),
    ),
    "No input of this run reads a data set.",
)
