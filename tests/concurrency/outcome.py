"""What must hold after two operations, however they ran beside each other, and what the world comes to in the end."""

import hashlib
from datetime import datetime

from sqlalchemy import select
from tests.concurrency.worlds import flow
from tests.weir.restoring import second_airflow

from weir.errors import Misconfigured
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import manifest_path
from weir.ledger.database.tables import (
    CheckpointRow,
    DataflowRow,
    LeaseRow,
    PendingClearRow,
    PublicationRow,
    ResultRow,
    Table,
)
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.snapshots.source import find_source, require_whole
from weir.store.catalogue import published
from weir.store.errors import NotFound
from weir.upkeep import RESULTS, settle_everywhere, sweep_everywhere

_NUMBERS = {"id", "failover", "incident", "revision", "timeline", "closed_result"}
"""Columns that count what was done before, by whomever."""


# What is the same in two worlds


def signature(world):
    """The ledger and the names of all files, without times and counters: equal if nobody can tell two worlds apart."""
    with world.ledger.transaction() as session:
        rows = {table.name: session.execute(select(table)).mappings().all() for table in Table.metadata.sorted_tables}
    names = {each["id"]: _name(each) for each in rows["result"]}
    told = sorted(repr((table, _told(row, names))) for table, found in rows.items() for row in found)
    files = sorted(str(each.relative_to(world.folder)) for each in world.folder.rglob("*"))
    return hashlib.sha256(repr((told, files)).encode()).hexdigest()


def _name(row):
    return row["attempt"], row["stage"], row["subtask"], row["layout"]


def _told(row, names):
    return [(column, _plain(column, value, names)) for column, value in row.items() if column not in _NUMBERS]


def _plain(column, value, names):
    if isinstance(value, datetime):
        return "a time"
    if column == "result":
        return names[value]
    if column == "results" and isinstance(value, list) and all(isinstance(each, int) for each in value):
        return sorted(names[each] for each in value)
    return value


# What is broken


def broken(world, *, while_read=False):
    """What must never be, as lines; `while_read` while both operations still hold what they have read."""
    found = [*_results(world), *_snapshots(world), *_publications(world)]
    return [*found, *_leases(world)] if while_read else found


def _files(world, row):
    """The files that a result consists of; None where its manifest is gone."""
    try:
        manifest = from_json(Manifest, world.store.read(manifest_path(row.folder)))
    except NotFound:
        return None
    if manifest.state is not None and row.layout != "plain":
        return {file.path: file.file.bytes for file in manifest.state.files}
    return {f"{row.folder}/{file.name}": file.bytes for file in manifest.files}


def _missing(world, row):
    files = _files(world, row)
    if files is None:
        return ["its manifest"]
    return [path for path, size in files.items() if not _is_there(world.store, path, size)]


def _is_there(store, path, size):
    try:
        return store.size(path) == size
    except NotFound:
        return False


def _shown(row):
    return f"{row.stage}[{row.subtask}] of {row.attempt} in {row.run}"


def _results(world):
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(ResultRow).where(ResultRow.state == "finished")))
    current = [(row.run, row.stage, row.subtask, row.layout) for row in rows if row.is_current]
    for each in {each for each in current if current.count(each) > 1}:
        yield f"{each} is current twice"
    for row in rows:
        for path in _missing(world, row):
            yield f"{_shown(row)} is finished, and misses {path}"


def _snapshots(world):
    with world.ledger.transaction() as session:
        rows = [row for row in session.scalars(select(CheckpointRow)) if row.status == "completed"]
    for row in rows:
        if row.deleted_at is not None or (row.subsumed_at is not None and not row.is_savepoint):
            continue
        try:
            require_whole(find_source(world.services, row.dataflow, str(row.number)))
        except Misconfigured as error:
            yield f"{row.kind} {row.number} of {row.dataflow} is kept: {error}"


def _publications(world):
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(PublicationRow).order_by(PublicationRow.version)))
    digests = {}
    for row in rows:
        if row.published_at is None:
            continue
        digests.setdefault((row.run, row.sink), []).append((row.version, row.digest))
    for (run, sink), versions in digests.items():
        if len({digest for _, digest in versions}) > 1:
            yield f"{sink} of {run} was published with different contents: {versions}"
        if len(versions) > 1:
            yield f"{sink} of {run} was published again with equal content: {[version for version, _ in versions]}"
        pointer = published(world.store, dataflow_of(run), sink, epoch_of_run(run))
        if pointer is None:
            yield f"{sink} of {run} was published, and has no pointer"
            continue
        for part in pointer.partitions:
            for name in part.files:
                try:
                    world.store.size(f"{part.folder}/{name}")
                except NotFound:
                    yield f"version {pointer.version} of {sink} of {run} is visible without {part.folder}/{name}"


def _leases(world):
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(ResultRow).join(LeaseRow, LeaseRow.result == ResultRow.id)))
    for row in rows:
        for path in _missing(world, row):
            yield f"{_shown(row)} is leased, and misses {path}"


# What the world comes to


def heal(world):
    """Let Airflow and upkeep work until nothing is left to do."""
    airflow, is_over = world.airflow, False
    airflow.run_until_quiet()
    while not is_over:
        settle_everywhere(world.services, RESULTS).require_whole()
        sweep_everywhere(world.services, airflow).require_whole()
        is_over = not airflow.deliver_clears()
        airflow.run_until_quiet()


def outcome(world):
    """What counts when all has healed: states of tasks, contents, checkpoints and what is left to do."""
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(ResultRow).where(ResultRow.is_current)))
        owed = session.scalars(select(PendingClearRow).where(PendingClearRow.settled_at.is_(None))).all()
        snapshots = list(session.scalars(select(CheckpointRow)))
        visible = session.scalars(select(PublicationRow.digest).where(PublicationRow.published_at.is_not(None))).all()
    mine = [row for row in rows if row.run.startswith("ladder@")]
    return {
        "tasks": {str(key): task.state for key, task in world.airflow.tasks.items()},
        "contents": {(row.run, row.stage, row.subtask): row.digest for row in mine},
        "published": sorted(visible),
        "owed": len(owed),
        "pending": [row.number for row in snapshots if row.status == "pending"],
        "kept": sorted(
            {
                row.epoch
                for row in snapshots
                if row.dataflow == "ladder"
                and row.status == "completed"
                and not row.is_savepoint
                and not row.subsumed_at
            }
        ),
    }


def fork_goes_on(world):
    """Let the next day of a fork run, if there is one; what its state is, without the names of dataflows."""
    with world.ledger.transaction() as session:
        if session.get(DataflowRow, "forked") is None:
            return {}
    airflow = second_airflow(world, flow("forked"))
    airflow.dag_run(2)
    airflow.run_until_quiet()
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.is_current, ResultRow.run == "forked@20130102T000000Z")
        return {(row.stage, row.subtask): row.digest for row in session.scalars(query)}
