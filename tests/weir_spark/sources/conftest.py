"""An epoch as a resolver sees it, and as a reading function does."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from weir.code.functions import load
from weir.dataflow.resolving import ResolveContext, checked_splits
from weir.errors import Misconfigured
from weir.recovery.resolving import resolve_range
from weir_spark.region.context import StageContext

INTERVAL = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))


def resolved(stage, *connections, zone="UTC"):
    """The splits of a declared source in an epoch, as they are recorded."""
    return checked_splits(load(stage.resolve, "x")(context_of(stage, *connections, zone=zone)), "x", stage.parallelism)


def resolved_range(stage, *connections, previous=None, recorded=None):
    """What a source that goes on reads in an epoch, as it is recorded."""
    return resolve_range(stage, replace(context_of(stage, *connections), previous=previous, recorded=recorded))


def context_of(stage, *connections, zone="UTC"):
    return ResolveContext(
        dataflow="flow",
        epoch="20130101T000000Z",
        interval=INTERVAL,
        parallelism=stage.parallelism,
        parameters={},
        options=stage.options,
        connection=looked_up(*connections),
        zone=zone,
    )


def looked_up(*connections):
    by_id = {each.id: each for each in connections}

    def look_up(conn_id):
        if conn_id not in by_id:
            raise Misconfigured(f"Airflow has no connection {conn_id!r}")
        return by_id[conn_id]

    return look_up


@dataclass
class Attempt:
    """Calls reading functions as an attempt does, and returns rows as tuples."""

    spark: object
    store: object
    files: list

    def read(self, stage, split, *connections):
        context = StageContext(
            epoch="20130101T000000Z",
            interval=INTERVAL,
            subtask=0,
            parallelism=stage.parallelism,
            parameters={},
            spark=self.spark,
            connection=looked_up(*connections),
            create_file=self._create,
        )
        return load(stage.function, "x")(context, split)

    def rows(self, stage, splits, *connections):
        found = [tuple(row) for split in splits for row in self.read(stage, split, *connections).collect()]
        return sorted(found, key=str)

    def _create(self, name, data):
        self.files.append((name, len(data)))
        self.store.create(f"loaded/{name}", data)
        return self.store.spark_url(f"loaded/{name}")


@pytest.fixture
def attempt(spark, store):
    return Attempt(spark, store, [])
