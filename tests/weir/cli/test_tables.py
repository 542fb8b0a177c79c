"""Tables at any width: what identifies a row is whole and comes first, whatever the terminal's width."""

import json
import random
import re
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.checking import NOT_NULL, with_suites, write_suite
from tests.weir.command_line import invoked, typed, use
from tests.weir.small_dataflow import Saved, World

import weir.cli
import weir_dev
from weir.cli.commands.verify import print_checks
from weir.cli.tables import key, number, print_cells, text, value
from weir.dataflow import Dataflow, Stage, blocking, expectations, keyed_state, sink, source
from weir.dataflow.quality import Policy
from weir.formats.checks import CheckReason, CheckReport, ExpectationResult
from weir.formats.suite import Severity
from weir.integrity.expectation_checks import ChecksReport
from weir.ledger.database.tables import ResultRow

WIDTHS = (60, 80, 100, 200)
NAME = "departures_and_arrivals_of_the_north_atlantic"
CLEAN, SUITE = "cleaned_flights_with_delays", "rows_are_complete_and_unique"
EPOCHS = [f"2013010{day}T000000Z" for day in (1, 2, 3)]
RUNS = [f"scheduled_by_the_timetable_of_the_north__2013-01-0{day}" for day in (1, 2, 3)]
FLOW = Dataflow(
    NAME,
    [
        source("flights_of_all_carriers", "p:flights"),
        Stage(CLEAN, "p:clean", [blocking("flights_of_all_carriers")], quality=expectations(SUITE)),
        Stage(
            "history_of_each_aircraft",
            "p:aircraft",
            [blocking(CLEAN, by="k")],
            state=keyed_state("kilometres_flown", key="k", schema="k BIGINT"),
        ),
        sink("history_of_each_aircraft", "published_history"),
    ],
)


@pytest.fixture(scope="module")
def three_days():
    """Three days of a dataflow with long names, and a savepoint."""
    with fast_folder() as folder:
        world = World(folder / "world", FLOW)
        write_suite(with_suites(world), SUITE, NOT_NULL)
        for day in (1, 2, 3):
            world.content["flights_of_all_carriers"] = f"flights of day {day}"
            world.airflow.dag_run(day, kind=RUNS[0].rpartition("__")[0])
            world.airflow.run_until_quiet()
        yield Saved(world, folder / "saved")


@pytest.fixture
def world(three_days, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    return three_days.go_on(tmp_path)


def assert_whole(said, width, rows):
    """Each row has a line of its own that begins with its cells, in order; nothing is cut or wider than a table may."""
    assert "…" not in said
    lines = said.splitlines()
    plain = [re.sub(r"\s*│\s*", "  ", line).strip() for line in lines]
    for cells in rows:
        assert any(line.startswith("  ".join(cells)) for line in plain), (cells, said)
    assert all(len(line) <= width for line in lines if line.startswith(("│", "┏", "└")))


def of_runs(*cells):
    return [(epoch, NAME, *cells) for epoch in EPOCHS]


def checkpoint_numbers(world):
    return [
        (each["epoch"], NAME, str(each["number"])) for each in json.loads(typed("checkpoints", "--json"))["checkpoints"]
    ]


def expected_of_gc(world):
    found = json.loads(typed("gc", "--full", "--dry-run", "--json"))
    assert found["kept"]
    return [("kept", each["reason"]) for each in found["kept"]]


COMMANDS = {
    "runs": lambda world: [(epoch, NAME, run) for epoch, run in zip(EPOCHS, RUNS, strict=True)],
    f"results {NAME}": lambda world: [*of_runs(CLEAN), *of_runs("published_history")],
    "checkpoints": checkpoint_numbers,
    "quality": lambda world: of_runs(f"{CLEAN}[0]", SUITE),
    f"quality {NAME} --expectation {NOT_NULL}": lambda world: of_runs(f"{CLEAN}[0]", SUITE, f'{NOT_NULL}(column="k")'),
    f"plan {NAME}@{EPOCHS[2]} --lost {CLEAN} --fail history_of_each_aircraft": lambda world: [(f"{CLEAN}[0]",)],
    "gc --full --dry-run": expected_of_gc,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("words", COMMANDS)
def test_what_identifies_a_row_is_whole_at_any_width(world, monkeypatch, words, width):
    rows = COMMANDS[words](world)
    monkeypatch.setenv("COLUMNS", str(width))
    assert_whole(typed(*words.split()), width, rows)


@pytest.mark.parametrize("width", WIDTHS)
def test_bad_results_and_savepoints_are_named_whole_at_any_width(world, monkeypatch, width):
    typed("savepoint", "create", NAME)
    [made] = json.loads(typed("savepoint", "list", "--json"))["savepoints"]
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.stage == CLEAN, ResultRow.is_current).order_by(ResultRow.id)
        bad = list(session.scalars(query))[-1]
    path = world.folder / "store" / bad.folder / "part-0.bin"
    path.write_bytes(bytes(each ^ 1 for each in path.read_bytes()))
    monkeypatch.setenv("COLUMNS", str(width))
    said = invoked("verify", NAME).stdout
    assert_whole(said, width, [(EPOCHS[2], NAME, f"{CLEAN}[0]", bad.layout, bad.attempt)])
    said = typed("savepoint", "list")
    assert_whole(said, width, [(made["epoch"], NAME, str(made["number"]))])
    assert made["folder"] in said


@pytest.mark.parametrize("width", WIDTHS)
def test_checks_of_a_restore_test_are_named_whole_at_any_width(capsys, monkeypatch, width):
    wrong = ExpectationResult("weir_rows_as_recorded", {}, Severity.FAIL, success=False, observed=19)
    check = CheckReport(
        CLEAN, 0, SUITE, "", Policy.FAIL, CheckReason.RESTORE_TEST, "d", 20, (wrong,), 0.0, run=f"{NAME}@{EPOCHS[0]}"
    )
    monkeypatch.setenv("COLUMNS", str(width))
    print_checks([ChecksReport(what="checkpoint 3: restored", checks=(check,))], as_json=False)
    assert_whole(capsys.readouterr().out, width, [(EPOCHS[0], NAME, f"{CLEAN}[0]", SUITE)])


@pytest.mark.parametrize("seed", range(40))
def test_no_cell_is_cut_and_no_key_is_folded_whatever_is_printed(seed):
    draw = random.Random(seed)
    columns = [key("epoch"), *draw.choices([key("k"), value("v"), number("n"), text("t")], k=draw.randint(0, 8))]
    rows = [[word(draw, each) for each in columns] for _ in range(draw.randint(0, 5))]
    width = draw.choice([20, *WIDTHS])
    console = Console(width=width, force_terminal=True, no_color=True, color_system=None, record=True, quiet=False)
    with console.capture() as captured:
        print_cells(columns, rows, console)
    said = captured.get()
    assert "…" not in said
    words = "".join(re.sub(r"[│\s]", "", line) for line in said.splitlines())
    for cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            if column.kind.value == "text":
                assert all(one in words or is_folded(one, width) for one in cell.split())
            else:
                assert cell in said


def word(draw, column):
    letters = [draw.choice("abcdef[]_0") * draw.randint(1, 9) for _ in range(draw.randint(1, 9))]
    return (" " if column.kind.value == "text" else "_").join(letters)


def is_folded(one, width):
    """A word of a sentence may be broken where it is wider than its column may be."""
    return len(one) > min(20, width)


def test_what_is_piped_has_no_width(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_cells([key("epoch"), text("why")], [("20130101T000000Z", "because " * 40)])
    [line] = [each for each in capsys.readouterr().out.splitlines() if "2013" in each]
    assert line.count("because") == 40


def test_all_tables_of_the_command_line_are_printed_by_one_function():
    """But for the demo's report, whose columns have no lines."""
    folders = [Path(weir.cli.__file__).parent, Path(weir_dev.__file__).parent]
    users = [
        path.relative_to(folder)
        for folder in folders
        for path in folder.rglob("*.py")
        if "rich.table" in path.read_text()
    ]
    assert sorted(map(str, users)) == ["demo/report.py", "tables.py"]
