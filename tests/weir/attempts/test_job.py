"""What an attempt is asked to compute, or refused before anything is computed."""

import json
from dataclasses import replace

import pytest

from weir.dataflow import Dataflow, Stage, blocking, sink, source

KEYS = {"k": "long", "other": "string", "third": "integer"}
SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": k, "type": v, "nullable": True, "metadata": {}} for k, v in KEYS.items()]}
)


@pytest.fixture
def read_by(world):
    """Run a dataflow whose stage `joined` reads its two sources, or one of them twice, by the given columns."""

    def run(one, other, producers=("left", "right")):
        inputs = {"a": blocking(producers[0], by=one), "b": blocking(producers[1], by=other)}
        joined = Stage("joined", "pipelines.ladder:joined", inputs)
        sources = [source(name, f"pipelines.ladder:{name}") for name in sorted(set(producers))]
        world.airflow.deploy(Dataflow("ladder", [*sources, joined, sink("joined", "delays")]))
        write = world.airflow.engine._write
        world.airflow.engine._write = lambda *given: replace(write(*given), spark_schema=SCHEMA)
        task = world.airflow.task(world.airflow.dag_run(), "joined-delays")
        world.airflow.run_until_quiet()
        return task

    return run


@pytest.mark.parametrize("other", ["k", "third"])
def test_inputs_with_keys_of_one_canonical_type_are_joined(read_by, other):
    assert read_by("k", other).state == "success"


@pytest.mark.parametrize("producers", [("left", "right"), ("left", "left")])
def test_inputs_whose_keys_would_not_meet_are_refused_before_anything_is_computed(read_by, producers):
    task = read_by("k", "other", producers)
    assert (task.state, len(task.runs)) == ("failed", 1)
    assert "a by k (bigint); b by other (string)" in task.notes[-1]
