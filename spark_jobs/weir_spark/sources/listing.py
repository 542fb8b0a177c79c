"""Lists the files that match a pattern. Invariant: what matches is listed, hidden, or refused by name; never dropped.

Links are followed, in a local folder also by `**`. A file that two names lead to would be read twice: it is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weir.errors import Misconfigured, Retryable, WeirError
from weir.refusals import Verdict, verdict
from weir.secrecy import without_secrets
from weir_spark.files.paths import is_hidden, is_pattern
from weir_spark.sources.accounts import fsspec_options
from weir_spark.sources.marks import HASHED_BYTES, file_mark

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from weir.connections import Connections

_REMOTE_MARKS: Final = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime")
"""What object stores tell about a file's content, as their fsspec packages call it: the first that is there counts."""

_FOLDER_MARKER: Final = "_$folder$"
"""The end of an empty object that some tools write for a folder; others write one whose key ends with a slash."""

_LINKED: Final = "link"
"""The type of a link that leads nowhere."""


def listed(
    pattern: str, conn_id: str | None, connections: Connections, *, is_read: bool = True
) -> list[dict[str, Any]]:
    """Return the mark of each file that matches, by path; without `is_read` no content is looked at.

    Raises Misconfigured for what matches and cannot be read, and Retryable.
    """
    files, found = _found(pattern, conn_id, connections)
    with reaching(pattern):
        _require_readable(files, found, pattern)
        return _marks(files, found, pattern, is_read=is_read)


def marks_by_path(pattern: str, conn_id: str | None, connections: Connections) -> dict[str, dict[str, Any]]:
    """Return the marks of the files that match now, of which some may have been listed before. Raises Retryable."""
    files, found = _found(pattern, conn_id, connections)
    with reaching(pattern):
        return {each["path"]: each for each in _marks(files, found, pattern)}


@contextmanager
def reaching(pattern: str) -> Iterator[None]:
    """Translate what a file system says of a listing."""
    try:
        yield
    except ImportError as error:
        cure = "pip install 'weir[s3]' there" if pattern.startswith("s3") else "Install the package there"
        raise Misconfigured.of("sources.listing_impossible", pattern=pattern, error=error, cure=cure) from error
    except (WeirError, ValueError, TypeError):
        raise
    except Exception as error:  # each client library has errors of its own; also of a file that has gone since
        said = without_secrets(f"{type(error).__name__}: {error}")
        if verdict(error) is Verdict.REFUSED:
            raise Misconfigured.of("sources.listing_refused", pattern=pattern, said=said) from error
        raise Retryable.of("sources.listing_failed", pattern=pattern, said=said) from error


def opened(path: str, conn_id: str | None, connections: Connections) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a listed file, and the file's path there."""
    from fsspec.core import url_to_fs  # noqa: PLC0415  slow to import

    if "://" not in path:
        return _local(), path
    files, place = url_to_fs(path, **fsspec_options(path, conn_id, connections))
    return files, place


def is_local(path: str) -> bool:
    """Report whether a path or pattern is of a disk, not of an object store."""
    return "://" not in path


def _found(
    pattern: str, conn_id: str | None, connections: Connections
) -> tuple[AbstractFileSystem, dict[str, dict[str, Any]]]:
    """Return what matches and is not hidden, by path: files, folders and links that lead nowhere."""
    with reaching(pattern):
        files, place = opened(pattern, conn_id, connections)
        files.invalidate_cache()
        fixed = _fixed(place)
        matching = sorted(files.glob(place, detail=True).items())
        if not matching and pattern.startswith("s3://"):
            files.call_s3("list_objects_v2", Bucket=place.partition("/")[0], MaxKeys=1)  # no bucket is no empty one
        return files, {path: info for path, info in matching if not _is_left_out(path, info, fixed)}


def _marks(
    files: AbstractFileSystem, found: Mapping[str, Mapping[str, Any]], pattern: str, *, is_read: bool = True
) -> list[dict[str, Any]]:
    seen = {path: info for path, info in found.items() if info["type"] == "file"}
    if is_local(pattern):
        # Small listings are known by their content, which outlives a copy; large ones are not read twice.
        is_small = is_read and sum(info["size"] for info in seen.values()) <= HASHED_BYTES
        hashed = HASHED_BYTES if is_small else -1
        return [file_mark(path, hashed) for path in seen]
    return [_remote_mark(files.unstrip_protocol(path), info) for path, info in seen.items()]


def _remote_mark(url: str, info: Mapping[str, Any]) -> dict[str, Any]:
    told = next((each for each in _REMOTE_MARKS if info.get(each) is not None), None)
    mark = {"path": url, "size": int(info["size"] or 0)}
    return mark if told is None else {**mark, told: str(info[told])}


def _require_readable(files: AbstractFileSystem, found: Mapping[str, Mapping[str, Any]], pattern: str) -> None:
    """Refuse what matches and would not be read, or not as often as once."""
    listed_files = [path for path, info in found.items() if info["type"] == "file"]
    for path, info in found.items():
        if info["type"] == "directory":
            _require_listed(files, path, listed_files, pattern)
        elif info["type"] != "file":
            what = f"a link to {info.get('destination')}, which is not there" if info["type"] == _LINKED else "no file"
            raise Misconfigured.of("sources.match_unreadable", path=path, pattern=pattern, what=what)
    for path in listed_files:
        _require_openable(path, is_local(pattern))
    if is_local(pattern):
        _require_once(listed_files, pattern)


def _require_listed(files: AbstractFileSystem, folder: str, names: Iterable[str], pattern: str) -> None:
    """Refuse a folder that matches a pattern for files, where none of its files matches, too."""
    inside = f"{folder}/"
    if any(each.startswith(inside) for each in names):
        return
    held = next((each for each in files.find(folder) if not _is_left_out(each, {"size": 1}, folder)), None)
    if held is not None:
        raise Misconfigured.of("sources.match_is_a_folder", folder=folder, pattern=pattern, held=held)


def _require_openable(path: str, on_disk: bool) -> None:  # noqa: FBT001
    """Refuse a path that Hadoop takes for a URI with a scheme, for the checksum file beside it or as a pattern."""
    if ":" in path.rpartition("/")[2] if on_disk and not is_pattern(path) else ":" in path and is_pattern(path):
        raise Misconfigured.of("sources.file_name_with_colon", path=path, renamed=path.replace(":", "-"))


def _require_once(names: Iterable[str], pattern: str) -> None:
    """Refuse a file that has two names, one of which is, or leads through, a link: its rows would be there twice."""
    folder_of = cache(os.path.realpath)
    real: dict[str, str] = {}
    for path in names:
        folder, _, name = path.rpartition("/")
        own = os.path.realpath(path) if Path(path).is_symlink() else f"{folder_of(folder)}/{name}"
        if own in real:
            raise Misconfigured.of("sources.file_twice", real=real[own], path=path, pattern=pattern)
        real[own] = path


def _fixed(pattern: str) -> str:
    """Return the folder of a pattern before its first wildcard."""
    cut = min((at for at in map(pattern.find, "*?[") if at >= 0), default=len(pattern))
    return pattern[:cut].rpartition("/")[0]


def _is_left_out(path: str, info: Mapping[str, Any], fixed: str) -> bool:
    """Report whether it is no data: hidden, in a folder of unfinished writes, or an object that stands for a folder."""
    if not info["size"] and path.endswith(("/", _FOLDER_MARKER)):
        return True
    *folders, name = path.removeprefix(fixed).strip("/").split("/")
    is_folder = info.get("type") == "directory"
    return any(map(_is_hidden_folder, folders)) or (_is_hidden_folder(name) if is_folder else is_hidden(name))


def _is_hidden_folder(name: str) -> bool:
    return name.startswith((".", "_")) and "=" not in name


@cache
def _local() -> AbstractFileSystem:
    """Return fsspec's local file system, which neither follows links nor tells what they lead to, made to do both."""
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  slow to import

    class Following(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
        """Tells of each link what it leads to."""

        def info(self, path: Any, **more: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().info(path, **more)
            if found["islink"]:
                found["type"] = _kind_behind(found["name"])
            return found

        def ls(self, path: str, detail: bool = False, **more: Any) -> list[Any]:  # noqa: FBT001, FBT002  fsspec's
            if Path(path).is_symlink() and f"{path}/".startswith(f"{os.path.realpath(path)}/"):
                raise Misconfigured.of("sources.link_without_end", path=path)
            found: list[Any] = super().ls(path, detail=detail, **more)
            return found

    return Following(skip_instance_cache=True)


def _kind_behind(link: str) -> str:
    try:
        mode = Path(link).stat().st_mode
    except OSError:
        return _LINKED
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
