"""The process of `weir check` that imports DAG files: `python -m weir_airflow.doctor.dag_files PATH...`.

It writes lines of JSON to its standard output: the name of each file before it is imported, and what was found in it.
What DAG files and libraries print goes to its standard error.
Invariants: Spark is not asked, and Airflow's database for connections only, where these are to be looked up. A DAG file
is a problem of the report, whatever it raises.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from weir.dataflow.graph import datasets_read
from weir.dataflow.sources import days_in_utc
from weir.doctor.declarations import connection_problems, of_gx, problems_of
from weir.doctor.problems import Problem, texts_of
from weir.settings import EXPECTATIONS
from weir.topology.regions import compacted_regions, compaction_task
from weir_airflow.connections.connections import user_connection
from weir_airflow.dags.declaration import CLOSE, declared_meanwhile
from weir_airflow.doctor.doctor import enable_connections_in_database, reserve_standard_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weir.dataflow import Dataflow, Stage
    from weir.topology.regions import Topology
    from weir_airflow.dags.declaration import Declaration

_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""With this variable, `@udf` and `F.col` at the top of a module need no session, as in a task on Spark Connect; and
pyspark refuses who asks for a session, as long as no server is named."""


def main(arguments: Sequence[str]) -> None:
    """Check the DAG files, and write what was found."""
    parser = argparse.ArgumentParser(prog="python -m weir_airflow.doctor.dag_files", description=__doc__)
    parser.add_argument("paths", nargs="+", help="DAG files, and folders of them")
    parser.add_argument("--expectations", default="", help="the folder of the suites, if not that of the settings")
    parser.add_argument("--connections", action="store_true", help="look up the connections that are named, too")
    parser.add_argument("--declare", action="store_true", help="write what is declared, and check nothing")
    given = parser.parse_args(arguments)
    answers = reserve_standard_output()
    os.environ[_CONNECT_MODE] = "1"
    os.environ.pop("SPARK_REMOTE", None)
    expectations = given.expectations or _expectations()
    if given.connections:
        enable_connections_in_database()
    for file in files_of(given.paths):
        _write(answers, {"begun": file})
        found = declared(file, expectations) if given.declare else checked(file, expectations, given.connections)
        _write(answers, found)
    sys.stderr.flush()
    os._exit(0)  # also while a thread of a DAG file runs


def files_of(paths: Sequence[str]) -> Iterator[str]:
    """Yield the files that are named, and those in the folders that Airflow would parse.

    The folders are put on Python's path, as Airflow does.
    """
    from airflow.utils.file import list_py_file_paths  # noqa: PLC0415  slow to import

    seen: set[Path] = set()
    for path in paths:
        folder = path if Path(path).is_dir() else str(Path(path).parent)
        if folder not in sys.path:
            sys.path.append(folder)
        for file in sorted(list_py_file_paths(path)) if Path(path).is_dir() else [path]:
            if Path(file).resolve() not in seen:
                seen.add(Path(file).resolve())
                yield file


def checked(file: str, expectations: str, with_connections: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
    """Import a DAG file and check its dataflows; return what was found as plain JSON values."""
    with declared_meanwhile() as found:
        problems = list(_import_problems(file))
    for each in found:
        problems += problems_of(file, each.flow, expectations, each.recovery.failure_enrichers, _gx_registry)
        problems += connection_problems(file, each.flow, user_connection) if with_connections else ()
    return {
        "file": file,
        "dataflows": [_described(each) for each in found],
        "problems": [problem.to_json() for problem in problems],
        "notes": [*_unchecked(file, [each.flow for each in found], expectations), *_of_other_days(file, found)],
    }


def _unchecked(file: str, flows: Sequence[Dataflow], expectations: str) -> Iterator[str]:
    types = sorted({each for flow in flows for each in of_gx(flow, expectations)})
    if types and _gx_registry() is None:
        yield (
            f"{file}: types and arguments of {', '.join(types)} are not checked, since this Python has no Great "
            "Expectations (pip install 'weir[quality]'): a task checks them before it computes"
        )


def _of_other_days(file: str, found: Sequence[Declaration]) -> Iterator[str]:
    """Yield a note for each day in UTC that a stage names where the days of the schedule begin at another time."""
    for declared in found:
        for stage in declared.flow.stages:
            named = {each for text in _texts_of(declared, stage) for each in days_in_utc(text, declared.zone)}
            for utc, local in sorted(named):
                yield (
                    f"{file}: dataflow {declared.flow.name!r}, stage {stage.name!r}: {utc} is in UTC, and the schedule "
                    f"divides time in {declared.zone}, whose days begin at another time: write {local} for the day as "
                    "it is there"
                )


def _texts_of(declared: Declaration, stage: Stage) -> Iterator[str]:
    """Yield the texts of a stage in which bounds of the interval are filled in."""
    partition = stage.options.get("partition", {})
    found = [stage.options.get("path"), stage.options.get("query"), declared.sql.get(stage.function)]
    found += [*partition.values()] if isinstance(partition, dict) else []
    found += [] if stage.application is None else stage.application.arguments
    yield from (each for each in found if isinstance(each, str))


@cache
def _gx_registry() -> Any:
    """Return Great Expectations' registry, with what the modules of the user have registered; None without it."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        from great_expectations.expectations import registry  # noqa: PLC0415  it takes seconds
    except ImportError:
        return None
    return registry


def declared(file: str, expectations: str) -> dict[str, Any]:
    """Import a DAG file; return its dataflows as a run is pinned to them, and where their suites and queries are."""
    with declared_meanwhile() as found:
        problems = list(_import_problems(file))
    return {
        "file": file,
        "dataflows": [
            {
                "flow": each.flow.to_json(),
                "sql": dict(each.sql),
                "zone": each.zone,
                "applications": {name: str(path) for name, path in each.applications.items()},
            }
            for each in found
        ],
        "expectations": expectations,
        "problems": [problem.to_json() for problem in problems],
    }


def _import_problems(file: str) -> Iterator[Problem]:
    name = f"weir_checked_{Path(file).stem}_{abs(hash(file)):x}"
    # As Airflow imports it: what it makes of its own path has no `..`.
    spec = importlib.util.spec_from_file_location(name, os.path.normpath(Path(file).absolute()))
    if spec is None or spec.loader is None:
        yield Problem(file=file, text="it is no Python file: name DAG files, and folders of them")
        return
    try:
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a DAG file may raise anything
        for text in texts_of(error):
            yield Problem(file=file, line=_line_in(str(spec.origin), error), text=text)


def _line_in(file: str, error: BaseException) -> int:
    """Return the line of a file in which an error arose; 0 if none."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno or 0
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    return (lines[-1] or 0) if lines else 0


def _described(declared: Declaration) -> dict[str, Any]:
    topology: Topology = declared.topology
    others = [compaction_task(region.name) for region in compacted_regions(topology)] + [CLOSE]
    return {
        "dataflow": declared.flow.name,
        "stages": len(declared.flow.stages),
        "tasks": {region.name: region.parallelism for region in topology.regions} | dict.fromkeys(others, 1),
        "group": declared.task_prefix.rstrip("."),
        "cadence": declared.cadence,
        "zone": declared.zone,
        "sinks": list(topology.sinks),
        "started_by": dict(declared.started_by),
        "reads": [
            {"stage": stage.name, "dataset": each.stage, "epoch": each.epoch}
            for stage, _, each in datasets_read(declared.flow.stages)
        ],
    }


def _expectations() -> str:
    from airflow.sdk.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    return os.environ.get("WEIR_EXPECTATIONS") or conf.get("weir", "expectations", fallback=None) or EXPECTATIONS


def _write(answers: IO[str], document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
