"""A dataflow that keeps real Parquet state, without Spark: for tests of those who read it."""

import hashlib
import io
from copy import deepcopy

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import select

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.formats.manifest import ContentDigest, RowRange, UpdateDigest
from weir.formats.region_job import OutputReport, StateReport
from weir.ledger.database.tables import AttemptRow
from weir.state.chain_rules import chain
from weir.state.file_rules import epoch_seconds
from weir.store.seal import seal
from weir.topology.key_groups import key_group_range
from weir.topology.key_hash import key_group
from weir.topology.partitions import KEY_GROUP_COLUMN

SCHEMA = (
    '{"type": "struct", "fields": ['
    '{"name": "tail", "type": "string", "nullable": true, "metadata": {}},'
    '{"name": "n", "type": "long", "nullable": true, "metadata": {}}]}'
)


def history(parallelism=2, ttl=None, *, queryable=False, table=None, schema="tail STRING, n BIGINT", **more):
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights"),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("flights", by="content")],
                parallelism=parallelism,
                state=keyed_state(
                    "history",
                    key="tail",
                    schema=schema,
                    ttl=ttl,
                    queryable=queryable,
                    table=table,
                ),
            ),
            sink("aircraft", "known"),
        ],
        **{"keep": "60 days", "retained_checkpoints": 9, **more},
    )


def group_of(tail):
    return key_group([("string", tail)], 128)


class StateEngine:
    """Writes the changes of each day's plan as state files, beside what the engine below writes.

    `plan` has a dictionary for each day: the new `n` of a key, or "deleted".
    """

    def __init__(self, engine, store, plan):
        self._engine, self._store, self.plan = engine, store, plan
        self.is_blind, self.row_group = False, 2
        self._read_result, engine._read, engine._state = engine._read, self._read, self._state

    def run(self, job, during):
        return self._engine.run(job, during)

    def _state(self, job, stage, output, _contents):
        keeper = next(each for each in job.stages if each.name == stage.keeps_state_of)
        read = next(each.state for each in keeper.inputs if each.argument == stage.name)
        groups = key_group_range(128, stage.parallelism, stage.subtask)
        today = self.plan.get(job.epoch, {})
        own = sorted((group_of(k), k or "", k, v) for k, v in today.items() if groups[0] <= group_of(k) <= groups[1])
        if own:
            self._write_file(output.folder, [(group, k, v) for group, _, k, v in own], read)
        files = seal(self._store, output.folder)
        rows = self.rows_at(job.epoch, groups, read)
        by_time = {}
        for k, (n, updated) in rows:
            count, xor = by_time.get(updated, (0, 0))
            hashed = hashlib.sha256(repr((k, n, updated)).encode()).hexdigest()
            by_time[updated] = (count + 1, xor ^ int(hashed[:15], 16))
        tallies = tuple(UpdateDigest(updated, *by_time[updated], 0, 0) for updated in sorted(by_time))
        xor = 0
        for each in tallies:
            xor ^= each.xor
        digest = ContentDigest(schema="s", rows=len(rows), xor=xor, low_sum=0, high_sum=0)
        report = StateReport(tallies, len(own))
        if self.is_blind and read.digest is not None:
            report = StateReport(None, len(own), rows=RowRange(0, read.rows.most + len(own)))
            digest = chain("s", read.digest, (job.epoch, read.expired_until), tallies, ())
        return OutputReport(
            stage=stage.name,
            layout=output.layout,
            folder=output.folder,
            spark_schema=SCHEMA,
            digest=digest,
            files=files,
            state=report,
        )

    def _read(self, spark_path):
        if "/history/" not in spark_path:
            return self._read_result(spark_path)
        path = spark_path.removeprefix(self._store.spark_url("").rstrip("/") + "/")
        return hashlib.sha256(self._store.read(path)).hexdigest()

    def rows_at(self, epoch, groups=(0, 127), read=None):
        """The rows, by replaying all days: nothing of what is tested is used."""
        known = {}
        for day in sorted(each for each in self.plan if each <= epoch):
            for k, v in self.plan[day].items():
                known[k] = (v, epoch_seconds(day) if read is None or read.expired_until is not None else 0)
        until = -1 if read is None or read.expired_until is None else read.expired_until
        kept = [(k, each) for k, each in known.items() if each[0] != "deleted" and each[1] > until]
        return [(k, each) for k, each in kept if groups[0] <= group_of(k) <= groups[1]]

    def _write_file(self, folder, rows, read):
        columns = {
            "tail": pa.array([k for _, k, _ in rows], pa.string()),
            "n": pa.array([None if v == "deleted" else v for *_, v in rows], pa.int64()),
            KEY_GROUP_COLUMN: pa.array([group for group, *_ in rows], pa.int32()),
            "_weir_deleted": pa.array([v == "deleted" for *_, v in rows], pa.bool_()),
        }
        if read.expired_until is not None:
            columns["_weir_updated"] = pa.array([read.updated] * len(rows), pa.int64())
        buffer = io.BytesIO()
        pq.write_table(
            pa.table(columns), buffer, row_group_size=self.row_group, compression="zstd", write_page_checksum=True
        )
        self._store.create(f"{folder}/part-0.zstd.parquet", buffer.getvalue())


def epoch(day):
    return f"201301{day:02}T000000Z"


PLAN = {
    epoch(1): {"N1": 1, "N2": 2, "N3": 3, "N4": 4, "N5": 5, None: 6},
    epoch(2): {"N1": 10, "N3": "deleted", "N7": 7},
    epoch(3): {"N3": 30, None: "deleted"},
}


def run_days(world, flow, *days):
    world.airflow.deploy(flow)
    for day in days:
        world.run(day)
    with world.ledger.transaction() as session:
        errors = [row.error for row in session.scalars(select(AttemptRow)) if row.error]
    assert errors == []
    return world


def keeps_state(world):
    """Have a world's engine write state, by a plan of its own."""
    world.airflow.engine = StateEngine(world.airflow.engine, world.store, deepcopy(PLAN))
    return world
