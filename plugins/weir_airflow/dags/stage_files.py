"""The SQL files and applications of a dataflow's stages, as its DAG file finds them.

Invariant: a file that is missing, or that cannot be the query of its stage, is an error when the DAG file is parsed.
Applications may be large, and are not read then.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from weir import errors
from weir.code.application_rules import parameter_problems
from weir.code.hints import files_like
from weir.code.sql_rules import is_sql, sql_problems, text_of
from weir.dataflow.validation import refuse
from weir.wording import meant

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from weir.dataflow import Dataflow, Stage

_OWN: Final = (str(Path(__file__).parents[1]), str(Path(errors.__file__).parent))


def sql_of(flow: Dataflow, dag: DAG) -> Mapping[str, str]:
    """Return the texts of the SQL files of a dataflow, by the paths that its stages name.

    They are looked for below the folder of the DAG file and then below `template_searchpath` of the DAG, as Airflow
    looks for the files of templates. Raises Misconfigured, with all problems.
    """
    stages = [stage for stage in flow.stages if is_sql(stage.function)]
    if not stages:
        return {}
    folders = list(_folders(dag))
    texts: dict[str, str] = {}
    problems: list[str] = []
    for stage in stages:
        path = _found(stage, folders)
        if path is None:
            problems.append(_missing(stage, folders))
            continue
        try:
            # Line ends as those of any text: a checkout on Windows is no other code.
            texts[stage.function] = io.StringIO(text_of(path.read_bytes(), str(path)), newline=None).read()
        except (OSError, errors.Misconfigured) as error:
            problems.append(f"stage {stage.name!r}: the SQL file cannot be read: {error}")
            continue
        found = sql_problems(texts[stage.function], list(stage.exchanges), flow.parameters)
        problems += [errors.at(f"stage {stage.name!r}: {path}", problem) for problem in found]
    refuse(flow.name, problems)
    return texts


def applications_of(flow: Dataflow, dag: DAG) -> Mapping[str, Path]:
    """Return the files of the applications of a dataflow, by the paths that its stages name; found as SQL files are.

    Raises Misconfigured, with all problems.
    """
    stages = [(stage, stage.application) for stage in flow.stages if stage.application is not None]
    folders = list(_folders(dag)) if stages else []
    found = {stage.function: _found(stage, folders) for stage, _ in stages}
    problems = [_missing(stage, folders) for stage, _ in stages if found[stage.function] is None]
    problems += [
        errors.at(f"stage {stage.name!r}", problem)
        for stage, application in stages
        for problem in parameter_problems(application, flow.parameters)
    ]
    refuse(flow.name, problems)
    return {name: path for name, path in found.items() if path is not None}


def _found(stage: Stage, folders: Sequence[Path]) -> Path | None:
    return next((folder / stage.function for folder in folders if (folder / stage.function).is_file()), None)


def _missing(stage: Stage, folders: Sequence[Path]) -> str:
    places = " or ".join(str(folder) for folder in folders)
    near = files_like(stage.function, [folder for folder in folders if folder.is_dir()])
    hint = f"{meant(near)} Else " if near else ""
    return (
        f"stage {stage.name!r}: there is no file {stage.function!r} below {places}: {hint}write the path from the "
        "folder of the DAG file, or give another folder by dataflow_dag(..., template_searchpath=[...])"
    )


def _folders(dag: DAG) -> Iterator[Path]:
    """Yield the folders to search: that of the DAG file, and those of `template_searchpath`."""
    yield _file_of_dag().parent
    given = dag.template_searchpath or ()
    yield from (Path(each) for each in ([given] if isinstance(given, str) else given))


def _file_of_dag() -> Path:
    """Return the file whose top level makes the DAG, also by a function of another module; else that of the caller.

    The DAG does not know it yet: Airflow tells it once the file has been imported.
    """
    frames = [frame for frame in _frames() if not frame.f_code.co_filename.startswith(_OWN)]
    top = next((frame for frame in frames if frame.f_code.co_name == "<module>"), frames[0])
    return Path(top.f_code.co_filename).absolute()


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  `inspect.stack` would read every file
    while frame is not None:
        yield frame
        frame = frame.f_back
