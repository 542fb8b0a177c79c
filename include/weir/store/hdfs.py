"""Files in HDFS, over the HTTP interface of its NameNodes and DataNodes (WebHDFS).

Invariants: a file gets its name by a rename, which the NameNode carries out at once, and only when it is whole and
closed; of many creators of one name it lets one win. A file is "not found" only if the NameNode says so. A request ends
within the time limit: `HdfsRefused` is a definite answer; safe mode, a NameNode that is on standby or starts, and
servers that do not answer are retried, and become `TimeoutError` at the limit.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import httpx

from weir.errors import Misconfigured
from weir.store.files import FreeSpace, R
from weir.store.time_limit import repeated

_OPTIONS: Final = frozenset({"user", "namenodes"})
_HTTP_PORT: Final = 9870
_DURABLE: Final = {"createflag": "CREATE,SYNC_BLOCK"}
"""DataNodes sync a block to their disks before they say that it is written."""

_UNLIMITED: Final = 2**63 - 1
"""What HDFS itself takes for no quota."""


class HdfsFiles:
    """A folder in HDFS. Users are who they say they are: there is no Kerberos here."""

    __slots__ = ("_requests", "_root", "_url")

    def __init__(self, url: str, requests: HdfsRequests) -> None:
        self._url = url
        self._root = url.removeprefix("hdfs://").partition("/")[2]
        self._requests = requests

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any], seconds: float) -> HdfsFiles:
        """Open `hdfs://namenode:8020/folder`; touches nothing yet.

        Options: `user`, otherwise HADOOP_USER_NAME or the user of this process; and `namenodes`, the HTTP addresses
        (`host:port`) of all NameNodes, otherwise the host in the URL with port 9870. Raises Misconfigured for others.
        """
        unknown = sorted(set(storage_options) - _OPTIONS)
        if unknown:
            raise Misconfigured.of("store.hdfs_options_unknown", url=url, unknown=unknown)
        user = storage_options.get("user") or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        return cls(url, HdfsRequests(_namenodes(url, storage_options.get("namenodes")), str(user), seconds))

    @property
    def url(self) -> str:
        """The root, as configured."""
        return self._url

    @property
    def namenodes(self) -> tuple[str, ...]:
        """The HTTP addresses, `host:port`, of the NameNodes."""
        return tuple(urlsplit(each).netloc for each in self._requests.namenodes)

    def replicas(self, path: str) -> int:
        """Ask how many DataNodes are to have a file."""
        return int(_require_file(self._status(path), path)["replication"])

    def datanode_of(self, path: str) -> str:
        """Return the HTTP address of a DataNode that has a file."""
        requests = self._requests.begun()
        return urlsplit(requests.repeated("OPEN", lambda: requests.once("GET", "OPEN", self._full(path)).place)).netloc

    def make_root(self) -> None:
        """Make the root folder unless it is there, and make sure that this user may read and write there."""
        requests = self._requests.begun()
        requests.of_namenode("PUT", "MKDIRS", self._full(""))
        requests.of_namenode("GET", "CHECKACCESS", self._full(""), fsaction="rwx")

    def create(self, path: str, data: bytes) -> None:
        """Write a new file by a temporary name, and a rename that is refused if the name is taken."""
        self._publish(path, data, "NONE")

    def create_private(self, path: str, data: bytes) -> None:
        """Write a new file that only this user may read."""
        self._publish(path, data, "NONE", permission="600")

    def replace(self, path: str, data: bytes) -> None:
        """Write a file by a temporary name, and a rename in place of any earlier one."""
        self._publish(path, data, "OVERWRITE")

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of a file."""
        if length == 0:
            return b""
        requests, full = self._requests.begun(), self._full(path)
        part = {"offset": offset, **({} if length is None else {"length": length})}

        def ask() -> bytes:
            place = requests.once("GET", "OPEN", full, **part).place
            try:
                return requests.send("GET", place).body
            except FileNotFoundError as error:
                _require_file(requests.status(full), path)
                raise ConnectionError(errno.EIO, f"a DataNode does not find what the NameNode has: {error}") from error

        try:
            return requests.repeated("OPEN", ask)
        except HdfsRefused as error:
            if error.errno == errno.ESPIPE:
                return b""  # the file ends before the offset
            raise

    def size(self, path: str) -> int:
        """Ask for the size of a file."""
        return int(_require_file(self._status(path), path)["length"])

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written, by the clock of the NameNode."""
        return datetime.fromtimestamp(self._status(path)["modificationTime"] / 1000, UTC)

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List names and sizes directly below a folder, a page at a time."""
        found: list[tuple[str, int | None]] = []
        last: dict[str, str] = {}
        while True:
            answer = self._requests.begun().of_namenode("GET", "LISTSTATUS_BATCH", self._full(path), **last)
            page = answer["DirectoryListing"]
            named = [(str(each["pathSuffix"]), each) for each in page["partialListing"]["FileStatuses"]["FileStatus"]]
            if any(not name for name, _ in named):
                raise FileNotFoundError(errno.ENOENT, "is a file, not a folder", path)
            found += [(name, None if each["type"] == "DIRECTORY" else int(each["length"])) for name, each in named]
            if not page["remainingEntries"] or not named:
                return found
            if last == (last := {"startafter": named[-1][0]}):
                raise OSError(errno.EIO, "HDFS has answered the same page of a listing twice", path)

    def delete(self, path: str) -> None:
        """Delete one file."""
        self._delete(path, recursive="false")

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it, by one request."""
        self._delete(path, recursive="true")

    def prune(self, path: str) -> None:
        """Remove empty folders below a folder, and the folder itself; a folder that is filled meanwhile stays."""
        try:
            found = self.entries(path)
        except FileNotFoundError:
            return
        for name, size in found:
            if size is None:
                self.prune(f"{path}/{name}")
        with suppress(FileNotFoundError):
            self._delete_if_empty(path)

    def flush(self, path: str) -> None:
        """Do nothing: what Spark wrote is as durable as `dfs.datanode.synconclose` makes it."""

    def free_space(self) -> FreeSpace | None:
        """Return how much the folder's quotas leave; a quota counts the bytes of all replicas.

        A NameNode before Hadoop 3.1.3, and 3.2.0, does not know the question: it only refuses what is too much.
        """
        try:
            found = self._requests.begun().of_namenode("GET", "GETQUOTAUSAGE", self._full(""))["QuotaUsage"]
        except HdfsRefused as error:
            if error.errno == errno.EINVAL:
                return None
            raise
        space, files = int(found["spaceQuota"]), int(found["quota"])
        if space < 0 and files < 0:
            return None
        return FreeSpace(
            max(space - int(found["spaceConsumed"]), 0) if space >= 0 else _UNLIMITED,
            space if space >= 0 else _UNLIMITED,
            max(files - int(found["fileAndDirectoryCount"]), 0) if files >= 0 else None,
        )

    def _publish(self, path: str, data: bytes, how: str, **rights: str) -> None:
        requests = self._requests.begun()
        with _folder_is_there(path):
            temporary = self._written(requests, path, data, rights)
            try:
                self._rename(requests, temporary, path, how)
            except BaseException:
                with suppress(OSError):
                    requests.once("DELETE", "DELETE", temporary)
                raise

    def _written(self, requests: _Begun, path: str, data: bytes, rights: Mapping[str, str]) -> str:
        """Write a closed file beside the target, and return its path; each try has a name of its own.

        A writer that was lost may still hold the name of the try before.
        """
        folder, _, name = self._full(path).rpartition("/")

        def write() -> str:
            temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
            place = requests.once("PUT", "CREATE", temporary, **_DURABLE, **rights).place
            try:
                requests.send("PUT", place, data)
            except BaseException:
                with suppress(OSError):
                    requests.once("DELETE", "DELETE", temporary)
                raise
            return temporary

        return requests.repeated("CREATE", write)

    def _rename(self, requests: _Begun, temporary: str, path: str, how: str) -> None:
        own = requests.status(temporary)["fileId"]
        target = self._full(path)
        try:
            answer = requests.of_namenode("PUT", "RENAME", temporary, destination=target, renameoptions=how)
        except FileNotFoundError as error:
            # An earlier try may have been carried out, and its answer lost: the file keeps its id.
            if _id_of(requests, target) != own:
                raise OSError(errno.EIO, "the file that was to get this name is gone", path) from error
        except HdfsRefused as error:
            if error.errno == errno.EEXIST:
                raise FileExistsError(errno.EEXIST, "exists already", path) from error
            raise
        else:
            if answer:
                raise HdfsRefused(errno.EOPNOTSUPP, _NO_NAMENODE)

    def _delete(self, path: str, **how: str) -> None:
        if not self._requests.begun().of_namenode("DELETE", "DELETE", self._full(path), **how)["boolean"]:
            raise FileNotFoundError(errno.ENOENT, "is not there", path)

    def _delete_if_empty(self, path: str) -> None:
        try:
            self.delete(path)
        except HdfsRefused as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def _status(self, path: str) -> dict[str, Any]:
        return self._requests.begun().status(self._full(path))

    def _full(self, path: str) -> str:
        return "/" + "/".join(part for part in (self._root, path) if part)


def _namenodes(url: str, given: Any) -> tuple[str, ...]:
    """Return the URLs of the NameNodes' HTTP interfaces."""
    place = urlsplit(url).netloc
    named = [place.partition(":")[0]] if not given else given.split(",") if isinstance(given, str) else given
    found = []
    for each in [str(address).strip() for address in named]:
        host, _, port = each.partition(":")
        if not host or set("@/") & set(place + each) or not (port or str(_HTTP_PORT)).isdigit():
            raise Misconfigured.of("store.hdfs_address_wrong", url=url, given=each)
        found.append(f"http://{host}:{port or _HTTP_PORT}/webhdfs/v1")
    return tuple(found)


def _require_file(status: dict[str, Any], path: str) -> dict[str, Any]:
    if status["type"] != "FILE":
        raise FileNotFoundError(errno.ENOENT, "is a folder, not a file", path)
    return status


def _id_of(requests: _Begun, full: str) -> int | None:
    try:
        return int(requests.status(full)["fileId"])
    except FileNotFoundError:
        return None


@contextmanager
def _folder_is_there(path: str) -> Iterator[None]:
    """Translate "not found" of a write: somebody has deleted the folder, which is no answer about the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise OSError(errno.EIO, f"its folder was deleted meanwhile ({error})", path) from error


_CONNECT_SECONDS: Final = 5.0
_SILENCES: Final = 3
"""A connection without a response for the limit divided by this is replaced."""

_LEAST_SECONDS: Final = 0.5
"""What a request has that tidies up after the limit."""

_CONNECTIONS: Final = 32
_REFUSALS: Final = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "SecurityException": errno.EACCES,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "InvalidPathException": errno.EINVAL,
    "PathComponentTooLongException": errno.ENAMETOOLONG,
    "IllegalArgumentException": errno.EINVAL,
    "UnsupportedOperationException": errno.EOPNOTSUPP,
}
"""The exceptions of Java that the same request meets again; all others may pass."""

_BELOW_A_FILE: Final = "(is not a directory)"
"""Part of the NameNode's message for a path below a file, which it answers as if a right were missing."""

_NO_NAMENODE: Final = "this server, which is no NameNode (HttpFS?), does not know the renameoptions of RENAME"
"""Such a server answers whether it has renamed, and NameNodes that are told how to rename have no answer."""

_PAST_END: Final = ("out of the range [", "Cannot seek after EOF")
"""Parts of the messages of NameNodes, and of DataNodes for an empty file."""


class HdfsRefused(OSError):
    """HDFS has refused a request, and would again."""


class HdfsRequests:
    """Requests to NameNodes, and to the DataNodes that they name. Safe across threads and forks."""

    __slots__ = ("_active", "_opened", "namenodes", "seconds", "user")

    def __init__(self, namenodes: tuple[str, ...], user: str, seconds: float) -> None:
        self.seconds = seconds
        self.user = user
        self.namenodes = namenodes
        self._active = 0
        self._opened: tuple[int, httpx.HTTPTransport] | None = None

    def begun(self) -> _Begun:
        """Begin an operation of one or several requests, which have the time limit together."""
        return _Begun(self, time.monotonic() + self.seconds)

    @property
    def namenode(self) -> str:
        """The URL of the NameNode that is asked."""
        return self.namenodes[self._active % len(self.namenodes)]

    def ask_another(self, than: str) -> None:
        """Ask the next NameNode from now on, unless another thread has decided so already."""
        if self.namenode == than:
            self._active += 1

    def transport(self) -> httpx.HTTPTransport:
        """Return the connections of this process, since they do not survive a fork.

        A transport alone keeps no cookies, follows no redirects, uses no proxy and logs no URLs.
        """
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), httpx.HTTPTransport(limits=httpx.Limits(max_connections=_CONNECTIONS)))
        return self._opened[1]


class _Answer(NamedTuple):
    """A whole response: where it leads to, and its body."""

    place: str
    body: bytes


class _Begun:
    """The requests of one operation, which ends at `end`."""

    __slots__ = ("_end", "_requests")

    def __init__(self, requests: HdfsRequests, end: float) -> None:
        self._requests = requests
        self._end = end

    def status(self, full: str) -> dict[str, Any]:
        """Ask the NameNode for what it knows of a path."""
        found: dict[str, Any] = self.of_namenode("GET", "GETFILESTATUS", full)["FileStatus"]
        return found

    def of_namenode(self, method: str, operation: str, full: str, **arguments: Any) -> dict[str, Any]:
        """Ask the NameNode until it has answered, and return the answer; {} for one without a body."""
        answer = self.repeated(operation, lambda: self.once(method, operation, full, **arguments))
        found: dict[str, Any] = json.loads(answer.body) if answer.body else {}
        return found

    def once(self, method: str, operation: str, full: str, **arguments: Any) -> _Answer:
        """Ask the NameNode once. Raises ConnectionError for what may pass."""
        namenode = self._requests.namenode
        query = urlencode({"op": operation, "user.name": self._requests.user, **arguments})
        try:
            return self.send(method, f"{namenode}{quote(full)}?{query}")
        except ConnectionError:
            self._requests.ask_another(namenode)
            raise

    def repeated(self, operation: str, ask: Callable[[], R]) -> R:
        """Ask until there is an answer. Raises TimeoutError at the limit."""
        return repeated("HDFS", operation, ask, self._requests.seconds, self._end)

    def send(self, method: str, url: str, data: bytes = b"") -> _Answer:
        """Send a request once, such as to where the NameNode has led."""
        left = max(self._end - time.monotonic(), _LEAST_SECONDS)
        silence = min(self._requests.seconds / _SILENCES, left)
        limits = httpx.Timeout(silence, connect=min(_CONNECT_SECONDS, silence)).as_dict()
        request = httpx.Request(method, url, content=data, extensions={"timeout": limits})
        try:
            response = self._requests.transport().handle_request(request)
            try:
                body = self._whole(response)
            finally:
                response.close()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            number = errno.ETIMEDOUT if isinstance(error, httpx.TimeoutException) else errno.EIO
            raise ConnectionError(number, f"{request.url.netloc.decode()}: {type(error).__name__} {error}") from error
        if response.status_code >= 400:
            raise _failure(response.status_code, body, request.url.netloc.decode())
        return _Answer(response.headers.get("Location", ""), body)

    def _whole(self, response: httpx.Response) -> bytes:
        found, is_late = bytearray(), False
        for chunk in response.iter_raw():
            if is_late:  # and not at its end
                raise httpx.ReadTimeout("the answer is too slow")
            found += chunk
            is_late = time.monotonic() > self._end
        return bytes(found)


def _failure(status: int, body: bytes, server: str) -> OSError:
    """Translate an answer that is an error; a ConnectionError if it may pass."""
    if status == HTTPStatus.UNAUTHORIZED:
        return HdfsRefused(errno.EACCES, f"{server} asks who this is, as with Kerberos, which Weir cannot tell")
    try:
        found = json.loads(body)["RemoteException"]
        name, message = str(found["exception"]), str(found["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        return ConnectionError(errno.EIO, f"{server} answered with HTTP status {status}, and not as HDFS does")
    number = _REFUSALS.get(name)
    if name == "AccessControlException" and _BELOW_A_FILE in message:
        number = errno.ENOENT
    if any(text in message for text in _PAST_END):
        number = errno.ESPIPE
    if number == errno.ENOENT:
        return FileNotFoundError(errno.ENOENT, message)
    if number is None:
        return ConnectionError(errno.EIO, f"{server}: {name}: {message}")
    return HdfsRefused(number, f"{name}: {message}")
