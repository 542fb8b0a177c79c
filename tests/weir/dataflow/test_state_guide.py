"""What docs/state.md shows is true."""

import re
from pathlib import Path

import pytest

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, sink, source
from weir.dataflow.state_evolution import incompatibilities

GUIDE = (Path(__file__).parents[3] / "docs" / "state.md").read_text()


def flow(*states):
    stage = Stage("aircraft", "p:aircraft", [blocking("flights", by="k")], state=states)
    return Dataflow("delays", [source("flights", "p:flights"), stage, sink("aircraft", "known")])


def test_its_example_is_a_sound_dataflow():
    shown = {}
    exec(compile(re.findall(r"(?s)```python\n(.*?)```", GUIDE)[0], "state.md", "exec"), shown)  # noqa: S102  it is ours
    declared = Dataflow("delays", [source("flights", "p:flights"), shown["aircraft"], sink("aircraft", "known")])
    assert declared.state("history").keys == ("tailnum",)


def history(schema="k STRING, n INT", **more):
    return keyed_state("history", key="k", schema=schema, **more)


@pytest.mark.parametrize(
    ("said", "old", "new"),
    [
        ("a new column", history(), history("k STRING, n INT, m DATE")),
        ("a wider type", history(), history("k STRING, n BIGINT")),
        ("a column that is gone", history(), history("k STRING")),
        ("another order of columns", history(), history("n INT, k STRING")),
        ("any other type", history(), history("k STRING, n STRING")),
        ("key columns", history(), history("k BINARY, n INT")),
        ("`ttl` shorter", history(ttl="9 days"), history(ttl="7 days")),
        ("`ttl` longer", history(ttl="7 days"), history(ttl="9 days")),
        ("`ttl` where there was none", history(), history(ttl="9 days")),
        ("`runs`, `budget`, `incremental`", history(), history(runs=2, incremental=False)),
        ("keyed state to a list", history(), list_state("history")),
        ("a state that is gone", history(), list_state("other")),
    ],
)
def test_what_its_table_calls_refused_is_and_nothing_else(said, old, new):
    (row,) = [line for line in GUIDE.splitlines() if line.startswith(f"| {said}")]
    is_refused = bool(list(incompatibilities(flow(old), flow(new))))
    assert is_refused is row.partition("| ")[2].partition("| ")[2].startswith("refused")
