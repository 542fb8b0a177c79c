"""What docs/on-call.md, docs/backfills.md and docs/state.md show is true."""

import re
from pathlib import Path

import pytest
from tests.weir.command_line import invoked, typed, use
from tests.weir.restoring import run_days, states_of
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source

DOCS = Path(__file__).parents[3] / "docs"
RUN = "ladder@20130102T000000Z"


def shown(page):
    """The commands of a page with the lines that they print; `...` stands for some that are left out."""
    for block in re.findall(r"(?s)```console\n\$ weir (.*?)```", (DOCS / page).read_text()):
        command, *lines = block.splitlines()
        yield command.split(), [line for line in lines if line != "..."]


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """Two runs; a byte of a result of the second one has changed."""
    world = World(tmp_path, ladder())
    for day in (1, 2):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
    world.ledger.close()
    [file] = (tmp_path / "store/ladder/20130102T000000Z/joined").glob("*/0/*/part-*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    use(monkeypatch, tmp_path, columns=118)
    invoked("verify", "ladder")
    return tmp_path


def test_what_the_guides_show_is_what_the_commands_print(damaged):
    examples = [*shown("on-call.md"), *shown("backfills.md")]
    assert [" ".join(words) for words, _ in examples] == [
        *(f"plan {RUN}", "ledger rebuild --all", f"verify {RUN} --repair", f"run adopt {RUN}")
    ]
    for words, lines in examples:
        if words[0] == "ledger":
            (damaged / "ledger.db").unlink()
        told = invoked(*words).stdout.splitlines()
        assert [line for line in lines if line not in told] == []


HISTORY = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")
DELAYS = Dataflow(
    "delays",
    [
        source("flights", "pipelines.ladder:flights"),
        Stage("aircraft", "pipelines.ladder:aircraft", [blocking("flights", by="k")], state=HISTORY),
        sink("aircraft", "known"),
    ],
)


def test_the_failure_that_the_page_about_state_works_through_is_as_it_says(tmp_path, monkeypatch):
    world = World(tmp_path, DELAYS)
    run_days(world.airflow, 1, 2, 3, 4, 5)
    before = states_of(world, 5, "delays")
    [file] = (tmp_path / "store/delays/20130105T000000Z/history").glob("*/0/*/part-*")
    file.unlink()
    run_days(world.airflow, 6)
    assert set(world.airflow.states().values()) == {"success"}
    assert states_of(world, 5, "delays") == before
    use(monkeypatch, tmp_path)
    runs = [row.split() for row in typed("runs", "delays").splitlines() if "known" in row]
    assert [row[-2:-1] for row in runs] == [["v1"]] * 6
    examples = [(words, lines) for words, lines in shown("state.md") if words[0] in ("failovers", "plan")]
    assert [words[0] for words, _ in examples] == ["failovers", "plan"]
    for words, lines in examples:
        told = typed(*words).splitlines()
        assert [line for line in lines if not any(each.startswith(line.removesuffix("...")) for each in told)] == []
