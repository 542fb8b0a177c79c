"""What docs/on-call.md and docs/backfills.md show is true."""

import re
from pathlib import Path

import pytest
from tests.weir.command_line import invoked, use
from tests.weir.small_dataflow import World, ladder

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
    use(monkeypatch, tmp_path, columns=150)
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
