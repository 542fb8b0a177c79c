"""The command line's manners."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from tests.weir.command_line import use

from weir.cli.main import ALLOCATIONS, COMMANDS, WeirApp
from weir.errors import Misconfigured


@pytest.fixture
def failing_app():
    app = WeirApp(pretty_exceptions_enable=False)

    @app.command()
    def fail():
        raise Misconfigured("the store [red] is read-only: make it writable")

    return app


def test_an_error_of_weir_is_a_message_and_no_traceback(failing_app, capsys):
    with pytest.raises(SystemExit) as ended:
        failing_app([])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err.strip() == "the store [red] is read-only: make it writable"
    assert shown.out == ""


def test_an_error_that_is_not_ours_keeps_its_traceback():
    app = WeirApp(pretty_exceptions_enable=False)

    @app.command()
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        app([])


def test_exit_codes_of_commands_are_kept():
    app = WeirApp()

    @app.command()
    def leave():
        raise typer.Exit(3)

    with pytest.raises(SystemExit) as ended:
        app([])
    assert ended.value.code == 3


SLOW = {"airflow", "alembic", "fsspec", "great_expectations", "grpc", "httpx", "numpy", "pandas", "pyarrow", "pyspark"}
SLOW |= {
    "aiohttp",
    "asyncpg",
    "botocore",
    "confluent_kafka",
    "cryptography",
    "deltalake",
    "jinja2",
    "psycopg2",
    "pyiceberg",
    "requests",
}
"""Packages that take a tenth of a second and more to import."""


def printed_by(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_names_the_verbs_of_the_product_and_imports_nothing_slow():
    said = printed_by(
        "import sys\n"
        "from weir.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"assert not {SLOW | {'sqlalchemy'}} & set(sys.modules)\n"
    )
    assert set(COMMANDS) <= set(said.split())
    assert "chaos" not in said


def test_commands_that_ask_the_ledger_import_their_own_module_and_nothing_slow(done, monkeypatch):
    use(monkeypatch, done.folder)
    run = "ladder@20130101T000000Z"
    asked = {
        "runs": ["runs"],
        "results": ["results", run],
        "plan": ["plan", run],
        "failovers": ["why", "totals[0]", "--run", run],
        "snapshots": ["checkpoints"],
        "advise": ["advise", "ladder"],
        "sinks": ["sinks"],
        "datasets": ["datasets"],
        "code": ["code"],
        "quality": ["quality"],
        "gc": ["gc", "--dry-run"],
    }
    said = printed_by(
        "import sys\n"
        "from weir.cli.main import app\n"
        f"for words in {list(asked.values())}:\n"
        "    try:\n        app(words)\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == (2 if 'advise' in words else 0), words  # advice needs more runs\n"
        "    prefix = 'weir.cli.commands.'\n"
        "    print('imported', *(each.removeprefix(prefix) for each in sys.modules if each.startswith(prefix)))\n"
        f"    assert not {SLOW} & set(sys.modules), (words, {SLOW} & set(sys.modules))\n"
    )
    imported = [set(line.split()[1:]) for line in said.splitlines() if line.startswith("imported ")]
    assert imported == [set(list(asked)[: each + 1]) for each in range(len(asked))]


def test_a_process_of_a_command_looks_for_no_garbage_when_it_ends():
    said = printed_by(
        "import atexit, gc\n"
        "atexit.register(lambda: print('ends', gc.get_threshold()[0], gc.get_freeze_count() > 10_000))\n"
        "from weir.cli.main import app\n"
        "app(['--help'])\n"
    )
    assert said.splitlines()[-1] == f"ends {ALLOCATIONS} True"


def test_a_verb_that_is_mistyped_is_told_which_one_it_resembles():
    done = subprocess.run([sys.executable, "-m", "weir.cli.main", "rnus"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Did you mean 'runs'?" in done.stderr
