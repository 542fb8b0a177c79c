"""The two files that travel with a submitted job: a program of a few lines, and one zip of modules.

Invariant: a driver that has nothing of this machine but these two files finds all of Weir and of the pipeline in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weir.formats.region_job import RegionJob, SparkJob
from weir_spark.region.archive import modules_of, pack

_PROGRAM = "import sys\n\nfrom weir_spark.transport.driver import main\n\nsys.exit(main())\n"
"""In a file of its own: beside a script's file, Python finds modules, and Weir's must not hide the pipeline's."""

_OWN = ("weir", "weir_spark")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The paths of the program and of the zip for `--py-files`."""

    program: Path
    modules: Path

    @property
    def paths(self) -> tuple[str, str]:
        """Both as text: program, modules."""
        return str(self.program), str(self.modules)


def write_bundle(folder: Path, job: SparkJob) -> Bundle:
    """Write both into an empty folder. Raises Misconfigured if a module of the pipeline is not on this machine."""
    of_stages = modules_of(job) if isinstance(job, RegionJob) else ()
    archive = pack(sorted({*of_stages, *_OWN}))
    program, modules = folder / "run_region.py", folder / archive.name
    program.write_text(_PROGRAM)
    modules.write_bytes(archive.data)
    return Bundle(program, modules)
