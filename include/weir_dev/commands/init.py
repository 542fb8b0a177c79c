"""`weir init`: a small project of one's own, which runs.

Invariant: nothing that is there is changed: the folder is new, or empty.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.errors import Misconfigured
from weir.local_stack import PROJECT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE: Final = Path(__file__).parents[1] / "new_project"
_FIRST_DAY: Final = date(2026, 1, 1)
_DAYS: Final = 3
_ZONES: Final = ("airport", "harbour", "market", "museum", "station", "university")
_TRIPS: Final = 200

_LAUNCHER: Final = """\
#!/bin/sh
# Starts Weir for this project, with the Python that has made it.
{variable}=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
export {variable}
export WEIR_EXPECTATIONS="${{WEIR_EXPECTATIONS:-${variable}/expectations}}"
if [ ! -x {python} ]; then
  echo "weir: there is no "{python}" any more: make a new project with weir init, and copy this file from it" >&2
  exit 2
fi
exec {python} -m weir_dev.main "$@"
"""


def init(folder: Annotated[Path, typer.Argument(help="A folder that does not exist, or is empty.")]) -> None:
    """Make a small project of your own: a DAG, its stages and three days of data."""
    make_project(folder)
    print(
        f"{folder} is a project:\n"
        "  dags/trips.py            the DAG: a source, two stages and a sink\n"
        "  dags/trips_stages.py     a stage in Python\n"
        "  dags/sql/by_zone.sql     a stage in SQL\n"
        "  dags/weir_upkeep.py      Weir's own DAGs\n"
        "  expectations/            suites for quality=expectations(...)\n"
        f"  data/                    {_DAYS} days of trips\n"
        f"Next: cd {shlex.quote(str(folder))}, then ./weir check, and ./weir up"
    )


def make_project(folder: Path) -> None:
    """Write the files of a new project. Raises Misconfigured if the folder has any file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Misconfigured.of("dev.folder_not_empty", folder=folder)
    shutil.copytree(_SOURCE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text(".weir/\nout/*\n!out/.gitkeep\n__pycache__/\n")
    (folder / "out").mkdir()
    (folder / "out" / ".gitkeep").touch()  # a target makes its folder, and none above
    (folder / "expectations").mkdir()
    (folder / "expectations" / ".gitkeep").touch()
    (folder / "data").mkdir()
    for number in range(_DAYS):
        day = _FIRST_DAY + timedelta(days=number)
        (folder / "data" / f"{day}.csv").write_text("".join(_lines(number)))
    launcher = folder / "weir"
    launcher.write_text(_LAUNCHER.format(variable=PROJECT_VARIABLE, python=shlex.quote(sys.executable)))
    launcher.chmod(0o755)


def _lines(day: int) -> Iterator[str]:
    """Yield a day's trips as CSV, of which some come twice and some went nowhere."""
    chance = Random(day)  # noqa: S311  the same data each time
    yield "trip_id,zone,distance\n"
    for number in range(_TRIPS):
        distance = 0.0 if chance.random() < 0.03 else round(chance.uniform(0.4, 18.0), 1)
        line = f"{day * _TRIPS + number},{chance.choice(_ZONES)},{distance}\n"
        yield line * (2 if chance.random() < 0.03 else 1)
