"""A job runs the code of the archive that it names: here, in a driver of its own, and in the functions on workers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import traceback
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.codec import from_json, to_json
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import RegionReport
from weir.store.errors import NotFound
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

PACKAGE = {
    "__init__.py": "",
    "stages.py": """
from importlib.resources import files
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from told_pipeline.middle import from_middle

NUMBER = 0


@F.udf(StringType())
def on_worker(_):
    from told_pipeline.lazy.late import LATE

    return f"{NUMBER} {from_middle()} {LATE} {files('told_pipeline').joinpath('sql/query.sql').read_text()}"


def told(ctx):
    from told_pipeline.lazy.late import LATE

    here = "".join(path.read_text() for path in Path(__file__).parent.glob("sql/*.sql"))
    there = files("told_pipeline").joinpath("sql", "query.sql").read_text()
    on_driver = f"{NUMBER} {from_middle()} {LATE} {here} {there}"
    return ctx.spark.range(2).select(F.lit(on_driver).alias("on_driver"), on_worker("id").alias("on_worker"))


def failing(ctx):
    raise ArithmeticError("no luck")  # of this line
""",
    "middle.py": "from told_pipeline.deep import DEEP\n\n\ndef from_middle():\n    return DEEP\n",
    "deep.py": "DEEP = 0\n",
    "lazy/late.py": "LATE = 0\n",
    "sql/query.sql": "0",
}
"""All that a stage can reach, each part with the number of its edition.

`lazy` is a folder without `__init__.py`, and `sql` a link to a folder that is in no package.
"""

IN_ONE_DRIVER = """
import sys
import told_pipeline.stages, told_pipeline.lazy.late
from weir_spark.transport.driver import main

print([main([job]) for job in sys.argv[1:]])
"""


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Write an edition of the package; it is where this process finds it."""
    folder = tmp_path / "modules"
    (folder / "told_pipeline").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (folder / "told_pipeline" / "sql").symlink_to("../../shared")
    monkeypatch.syspath_prepend(str(folder))

    def write(number: int) -> Path:
        for name, content in PACKAGE.items():
            path = folder / "told_pipeline" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                content.replace("0", str(number))
                if name != "stages.py"
                else content.replace("NUMBER = 0", f"NUMBER = {number}")
            )
        importlib.invalidate_caches()
        return folder

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "told_pipeline"]:
        del sys.modules[name]


@pytest.fixture
def told(jobs):
    """Describe a job with the code that is on this machine now."""
    return lambda: jobs.region(jobs.stage("told", "told_pipeline.stages:told", jobs.output("told")))


@pytest.fixture
def rows(store):
    """Read the rows that a job has written, without duplicates."""

    def read(job):
        (output,) = from_json(RegionReport, store.read(job.report)).outputs
        files = [store.spark_url(f"{output.folder}/{each.name}").removeprefix("file://") for each in output.files]
        return {tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist()}

    return read


def of_edition(number):
    return {(" ".join(5 * [str(number)]), " ".join(4 * [str(number)]))}


@pytest.fixture
def on_server(server):
    """Run jobs in this process on a Connect server, each in a session of its own."""

    def run(*jobs):
        for job in jobs:
            ConnectEngine(server.url).run(job, str(uuid.uuid4()), lambda line: None)

    return run


@pytest.fixture
def in_one_driver(store, tmp_path, monkeypatch):
    """Run jobs one after the other in a process with a session of its own; their exit codes.

    It has imported the edition that is on disk when it starts.
    """
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)

    def run(*jobs):
        for job in jobs:
            store.create(f"{job.folder}/job.json", to_json(job))
        urls = [f"{store.url}/{job.folder}/job.json" for job in jobs]
        done = subprocess.run(
            [sys.executable, "-c", IN_ONE_DRIVER, *urls], capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_a_server_runs_each_job_by_its_archive_whatever_was_imported_or_edited_since(edit, told, rows, on_server):
    edit(1)
    imported = importlib.import_module("told_pipeline.stages")
    first = told()
    edit(2)
    second = told()
    edit(3)
    on_server(second, first)
    assert rows(first) == of_edition(1)
    assert rows(second) == of_edition(2)
    assert sys.modules["told_pipeline.stages"] is imported
    assert not [name for name in sys.modules if name == "told_pipeline.lazy"]


def test_a_driver_runs_each_job_by_its_archive_and_refuses_one_that_is_lost(edit, told, rows, store, in_one_driver):
    edit(1)
    first, lost = told(), told()
    store.delete(lost.code.path)
    edit(2)
    second = told()
    edit(3)
    assert in_one_driver(second, first, lost) == [0, 0, 78]
    assert rows(first) == of_edition(1)
    assert rows(second) == of_edition(2)
    failure = from_json(RegionFailure, store.read(f"{lost.folder}/failure.json"))
    assert failure.error == "Misconfigured"
    assert "Clear a subtask of this stage in Airflow" in failure.message


def test_a_damaged_archive_is_refused(edit, told, store, on_server):
    edit(1)
    job = told()
    path = Path(store.url.removeprefix("file://")) / job.code.path
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Misconfigured, check=of_kind("store.code_lost")):
        on_server(job)


def test_a_lost_archive_is_refused(edit, told, store, on_server):
    edit(1)
    job = told()
    store.delete(job.code.path)
    with pytest.raises(Misconfigured, check=of_kind("store.code_lost")):
        on_server(job)


def test_a_module_that_a_changed_path_finds_elsewhere_is_refused(pipeline, jobs, store, tmp_path, on_server):
    helper = pipeline("VALUE = 1\n\ndef other(ctx):\n    return ctx.spark.range(VALUE)\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{helper}.py").write_text("VALUE = 2\n\ndef other(ctx):\n    return ctx.spark.range(VALUE)\n")
    changing = pipeline(
        f"import sys\nsys.path.insert(0, {str(elsewhere)!r})\n"
        f"from {helper} import VALUE\n\ndef numbers(ctx):\n    return ctx.spark.range(VALUE)\n"
    )
    stages = [
        jobs.stage(name, f"{module}:{name}", jobs.output(name))
        for module, name in [(changing, "numbers"), (helper, "other")]
    ]
    job = jobs.region(*stages)
    with pytest.raises(Misconfigured, match=f"{elsewhere}", check=of_kind("region.module_from_elsewhere", name=helper)):
        on_server(job)
    with pytest.raises(NotFound):
        store.read(job.report)
    sys.path.remove(str(elsewhere))


def test_the_traceback_of_a_failed_stage_shows_its_lines(edit, jobs, on_server):
    edit(1)
    with pytest.raises(ArithmeticError) as raised:
        on_server(jobs.region(jobs.stage("failing", "told_pipeline.stages:failing", jobs.output("failing"))))
    assert 'raise ArithmeticError("no luck")  # of this line' in "".join(traceback.format_exception(raised.value))
