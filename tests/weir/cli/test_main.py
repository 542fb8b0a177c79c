"""The command line's manners."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from weir.cli.main import WeirApp
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


def test_help_names_the_verbs_of_the_product_and_imports_no_engine():
    program = (
        "import sys\n"
        "from weir.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'airflow', 'pyspark', 'grpc'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(verb in done.stdout for verb in ("doctor", "plan", "why", "gc", "verify", "savepoint", "ledger"))
    assert "chaos" not in done.stdout
