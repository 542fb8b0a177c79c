"""The two files that travel with a submitted job: a program of a few lines, and one zip of modules.

Invariant: a driver that has nothing of this machine but these two files finds all of Weir in them. It imports the
pipeline's modules from the archive that the job names, which is in the store.
"""

from __future__ import annotations

from pathlib import Path

from weir.code.archive import pack

_PROGRAM = "import sys\n\nfrom weir_spark.transport.driver import main\n\nsys.exit(main())\n"
"""In a file of its own: beside a script's file, Python finds modules, and Weir's must not hide the pipeline's."""

_OWN = ("weir", "weir_spark")


def write_bundle(folder: Path) -> tuple[str, str]:
    """Write both into an empty folder; return the paths of the program, and of the zip for `--py-files`."""
    archive = pack(_OWN)
    program, modules = folder / "run_region.py", folder / archive.name
    program.write_text(_PROGRAM)
    modules.write_bytes(archive.data)
    return str(program), str(modules)
