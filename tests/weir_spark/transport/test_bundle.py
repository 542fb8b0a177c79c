from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import weir
import weir_spark
from weir_spark.transport.bundle import write_bundle

GOLDEN = Path(__file__).parents[2] / "golden"


def test_the_modules_of_weir_travel_in_one_zip_and_no_others(tmp_path) -> None:
    _, modules = write_bundle(tmp_path)
    names = zipfile.ZipFile(modules).namelist()
    assert {"weir/errors.py", "weir_spark/region/region.py"} <= set(names)
    assert not [name for name in names if name.startswith(("weir_airflow", "pipelines"))]


def test_the_program_finds_all_of_weir_in_the_zip(tmp_path) -> None:
    program, modules = write_bundle(tmp_path)
    imports = "import runpy; from weir_spark.transport import driver"
    show = f"{imports}; print(driver.__file__); runpy.run_path({program!r})"
    done = subprocess.run(
        [sys.executable, "-c", show, "--help"],
        env={"PYTHONPATH": modules},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"{modules}/weir_spark/transport/driver.py"), done.stderr
    assert "job.json" in done.stdout


def test_nothing_that_could_hide_a_module_of_the_pipeline_lies_beside_the_program(tmp_path) -> None:
    program, _ = write_bundle(tmp_path)
    assert [path.name for path in Path(program).parent.glob("*.py")] == ["run_region.py"]


def driver_without(package, tmp_path, program):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('no {package} here', name='{package}')\n")
    paths = [str(tmp_path), *(str(Path(package.__file__).parents[1]) for package in (weir, weir_spark))]
    done = subprocess.run(
        [sys.executable, "-c", f"import weir_spark.transport.driver, weir_spark.region.region\n{program}"],
        env={"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_driver_needs_no_grpc(tmp_path) -> None:
    """Spark submits to clusters whose Python has nothing that only clients of a Connect server need."""
    driver_without("grpc", tmp_path, "")


def test_a_driver_reads_its_job_and_writes_what_it_reports_without_msgspec(tmp_path) -> None:
    """It is what clusters have: pyspark, fsspec and pyarrow."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "job.json").write_bytes((GOLDEN / "region-job-v1.json").read_bytes())
    program = (
        "from pathlib import Path\n"
        "from weir.formats.codec import to_json\n"
        "from weir.formats.region_failure import failure_of\n"
        "from weir.formats.region_job import RegionReport\n"
        "from weir_spark.transport.driver import _read_job\n"
        f"job = _read_job({str(tmp_path / 'files' / 'job.json')!r}, {{}})\n"
        "report = RegionReport(attempt=job.attempt, outputs=(), code='c', session={}, metrics={})\n"
        "to_json(report), to_json(failure_of(ValueError('x'), job.attempt))\n"
    )
    driver_without("msgspec", tmp_path, program)
