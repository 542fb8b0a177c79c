"""The programs that commands start: what they are told, and what stands on their command lines."""

import json

import pytest

from weir.cli.programs import answered, compared, lines_of
from weir.errors import EngineLost, Misconfigured
from weir.formats.programs import ComparisonAnswer, RowsCompared, StateQuery
from weir.typed_json import message_to_json

URL = "sc://localhost:15002/;user_id=weir;token=hush-hush"

PROBE = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("WEIR_SPARK_REMOTE")]))
"""

QUERY = """
import os, sys
import pyarrow as pa
table = pa.table({"words": [" ".join(sys.argv)], "url": [os.environ.get("WEIR_SPARK_REMOTE")]})
with pa.OSFile(sys.argv[2], "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
    stream.write_table(table)
"""


COMPARISON = """
import os, shutil, sys
from pathlib import Path
import pyarrow as pa
folder = Path(sys.argv[2])
shutil.copy(Path(__file__).parents[2] / "said.json", folder / "answers.json")
table = pa.table({"words": [" ".join(sys.argv)], "url": [os.environ.get("WEIR_SPARK_REMOTE")]})
with pa.OSFile(str(folder / "rows-1.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
    stream.write_table(table)
"""


@pytest.fixture
def environ(tmp_path):
    """An environment in which the programs are others, which tell what they were given; with a server of its own."""
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "failing.py").write_text(f"import sys; sys.exit('cannot reach {URL}')")
    (tmp_path / "weir_spark" / "state").mkdir(parents=True)
    for folder in ("weir_spark", "weir_spark/state"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "weir_spark" / "state" / "query.py").write_text(QUERY)
    return {"PYTHONPATH": str(tmp_path), "WEIR_LEDGER": "sqlite:///x", "WEIR_JAVA": "bundled", "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(("named", "own"), [(URL, None), (URL, "sc://other"), (None, URL)])
def test_the_url_of_a_server_reaches_a_program_by_its_environment(environ, named, own):
    given = environ if own is None else {**environ, "WEIR_SPARK_REMOTE": own}
    (line,) = lines_of("probe", "{}", named, given)
    words, url = json.loads(line)
    assert url == URL
    assert "hush" not in " ".join(words)


def test_a_query_is_answered_without_a_token_on_a_command_line(environ):
    (row,) = answered(StateQuery("SELECT 1", {}, None), URL, environ).to_pylist()
    assert row["url"] == URL
    assert "hush" not in row["words"]


def test_rows_are_compared_without_a_token_on_a_command_line(environ, tmp_path):
    """The differing rows of the second comparison lie in a file of its own; the first one has failed."""
    (tmp_path / "weir_spark" / "checks").mkdir()
    (tmp_path / "weir_spark" / "checks" / "__init__.py").touch()
    program = tmp_path / "weir_spark" / "checks" / "comparison.py"
    program.write_text(COMPARISON)
    counts = RowsCompared(key=None, repeated=(), rows_a=1, rows_b=1, only_a=0, only_b=0, changed=0, columns={})
    answers = [ComparisonAnswer(error="unreadable"), ComparisonAnswer(counts)]
    (tmp_path / "said.json").write_text(message_to_json(answers))
    first, second = compared([], URL, environ)
    assert (first, second[0]) == ((answers[0], []), answers[1])
    assert second[1][0]["url"] == URL
    assert "hush" not in second[1][0]["words"]
    program.write_text((tmp_path / "failing.py").read_text())
    with pytest.raises(EngineLost, match="cannot reach") as failed:
        compared([], URL, environ)
    assert "hush" not in str(failed.value)


def test_without_a_server_a_program_is_told_of_none(environ):
    (line,) = lines_of("probe", "{}", None, environ)
    assert json.loads(line)[1] is None


def test_the_error_of_a_program_is_told_without_the_token(environ, tmp_path):
    with pytest.raises(EngineLost, match="cannot reach") as failed:
        list(lines_of("failing", "{}", URL, environ))
    assert "hush" not in str(failed.value)
    (tmp_path / "weir_spark" / "state" / "query.py").write_text((tmp_path / "failing.py").read_text())
    with pytest.raises(Misconfigured, match="cannot reach") as refused:
        answered(StateQuery("SELECT 1", {}, None), URL, environ)
    assert "hush" not in str(refused.value)
