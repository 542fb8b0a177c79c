"""The files that commits of a Delta table have added.

Invariant: what is returned are the rows that came, each once, or there is an error: a commit that removed or changed
rows is one, and one that only rewrote files, as OPTIMIZE does, adds nothing. The commits' own files are read, since a
comparison of two versions does not tell rows that came from rows that were moved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from weir.errors import Message, Misconfigured
from weir_spark.sources.splits import LiveFile

if TYPE_CHECKING:
    from deltalake import DeltaTable


def added_files(table: DeltaTable, path: str, options: Mapping[str, str], since: int) -> list[LiveFile]:
    """Return the files that came after the version `since`, up to that of the table. Raises Misconfigured."""
    names = table.metadata().partition_columns
    found: list[LiveFile] = []
    for version in range(since + 1, table.version() + 1):
        for kind, action in _actions(path, options, version):
            if not action.get("dataChange", True):
                continue
            if kind in ("remove", "cdc") or action.get("deletionVector"):
                raise Misconfigured(Message("sources.delta_not_appended", path=path, version=version))
            values = tuple((name, action["partitionValues"].get(name) or None) for name in names)
            found.append(LiveFile(located(path, unquote(action["path"])), action["size"], values))
    return found


def _actions(path: str, options: Mapping[str, str], version: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow.fs as pa_fs  # noqa: PLC0415
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    files = pa_fs.PyFileSystem(DeltaStorageHandler(path, dict(options) or None))
    try:
        with files.open_input_file(f"_delta_log/{version:020d}.json") as file:
            lines = file.read().decode().splitlines()
    except FileNotFoundError as error:
        raise Misconfigured(Message("sources.delta_commit_gone", path=path, version=version)) from error
    for line in lines:
        for kind, action in json.loads(line).items():
            if kind in ("add", "remove", "cdc"):
                yield kind, action


def located(root: str, path: str) -> str:
    """Return the path of a file that the log of the table at `root` names."""
    return path if "://" in path or path.startswith("/") else f"{root}/{path}"
