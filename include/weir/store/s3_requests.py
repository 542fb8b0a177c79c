"""Single requests to S3, patiently repeated.

Invariant: a request ends, one way or the other, within the time limit. `S3Refused` is the store's own, definite answer;
whatever may pass (load, errors of the server, lost connections, silence) becomes `TimeoutError` when it does not.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    InvalidRegionError,
    MetadataRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.exceptions import ConnectionError as NotConnectedError
from fsspec.asyn import FSTimeoutError, sync
from s3fs.core import S3_RETRYABLE_ERRORS, S3FileSystem

from weir.errors import Misconfigured, WeirError
from weir.store.time_limit import OPTION

_Seconds = Callable[[], float]
R = TypeVar("R")

_CONNECTIONS: Final = 32
_CONNECT_SECONDS: Final = 5.0
_SILENCES: Final = 3
"""A connection that is silent for this part of the limit is given up for another one."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_PASSING_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_PASSING_CODES: Final = frozenset(
    {"RequestTimeout", "SlowDown", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}
)
_BROKEN: Final = (
    *S3_RETRYABLE_ERRORS,
    ConnectionError,
    NotConnectedError,
    TimeoutError,
    CredentialRetrievalError,
    MetadataRetrievalError,
)
_CONFUSED: Final = (InvalidRegionError, ParamValidationError, ProfileNotFound)


class S3Refused(OSError):
    """What S3 answered instead of doing what it was asked: its error code and the HTTP status."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(errno.EACCES if status == 403 else errno.EIO, f"{code} ({status}): {message}")
        self.code = code
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: load, an error inside S3, a write at the same moment."""
        return self.status in _PASSING_STATUS or self.code in _PASSING_CODES


class S3Requests:
    """Requests with the options of s3fs, each repeated for at most `seconds`. Safe across threads and forks."""

    __slots__ = ("_opened", "_options", "_seconds")

    def __init__(self, options: Mapping[str, Any], seconds: float) -> None:
        self._seconds = seconds
        self._options = _with_limits(options, seconds)
        self._opened: tuple[int, S3FileSystem] | None = None

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a request of botocore's S3 client."""
        answer: dict[str, Any] = self._patiently(
            method, lambda fs, left: fs.call_s3(method, timeout=left(), **arguments)
        )
        return answer

    def get(self, **arguments: Any) -> bytes:
        """Carry out a `get_object`, and read what it answers to the end."""

        def ask(fs: S3FileSystem, left: _Seconds) -> bytes:
            answer = fs.call_s3("get_object", timeout=left(), **arguments)
            return sync(fs.loop, _whole, answer["Body"], timeout=left())  # type: ignore[no-any-return]

        return self._patiently("get_object", ask)

    def _patiently(self, method: str, ask: Callable[[S3FileSystem, _Seconds], R]) -> R:
        end = time.monotonic() + self._seconds
        heard: OSError | None = None

        def left() -> float:
            return max(end - time.monotonic(), _FIRST_PAUSE)

        for tries, pause in enumerate(_pauses(), 1):
            try:
                return ask(self._file_system(left()), left)
            except WeirError:
                raise
            except Exception as error:  # each layer below has errors of its own
                failure = _failure(error)
                if not _may_pass(failure):
                    raise failure from error
                if heard is None or not isinstance(error, FSTimeoutError):
                    heard = failure  # more telling than that the time was over
                if time.monotonic() + pause >= end:
                    raise TimeoutError(
                        errno.ETIMEDOUT,
                        f"S3 did not carry out {method} within {self._seconds:g} s, in {tries} tries; heard last: "
                        f'{heard.strerror}. Nothing is marked lost. The store option "{OPTION}" sets the limit',
                    ) from error
            time.sleep(pause)
        raise AssertionError  # the pauses never end

    def _file_system(self, seconds: float) -> S3FileSystem:
        """The s3fs of this process: its event loop and its connections do not survive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), _connected(self._options, seconds))
        return self._opened[1]


def _connected(options: Mapping[str, Any], seconds: float) -> S3FileSystem:
    """Make a client; this asks for credentials, but nothing of S3. Raises Misconfigured for unknown options."""
    try:
        fs = S3FileSystem(**options)  # one of this process and thread, if it was asked for with these options before
        fs.connect(timeout=seconds)
    except (TypeError, ValueError, KeyError, *_CONFUSED) as error:
        raise Misconfigured(
            f"the store's options cannot be used: {type(error).__name__}: {error}. Expected are those of s3fs, in "
            "WEIR_STORE_OPTIONS or the Airflow connection weir_store"
        ) from error
    fs.retries = 1  # repeated here, and only here: the tries of all layers would multiply
    return fs


async def _whole(body: Any) -> bytes:
    async with body:
        data: bytes = await body.read()
        return data


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311  # spreads those that were refused together
        pause = min(2 * pause, _LONGEST_PAUSE)


def _with_limits(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    limits = {
        "connect_timeout": min(_CONNECT_SECONDS, seconds / _SILENCES),
        "read_timeout": seconds / _SILENCES,
        "max_pool_connections": _CONNECTIONS,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    return {**options, "config_kwargs": {**limits, **(options.get("config_kwargs") or {})}}


def _failure(error: Exception) -> OSError:
    """What an error of s3fs, botocore or aiohttp means."""
    answered = error if isinstance(error, ClientError) else error.__cause__
    if isinstance(answered, ClientError):
        said = answered.response.get("Error", {})
        status = int(answered.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return S3Refused(str(said.get("Code", "")), status, str(said.get("Message", "")))
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return PermissionError(errno.EACCES, f"no credentials for S3 ({error}): see the Airflow connection weir_store")
    if isinstance(error, FSTimeoutError):
        return ConnectionError(errno.ETIMEDOUT, "nothing")
    if isinstance(error, _BROKEN):
        return ConnectionError(errno.EIO, f"{type(error).__name__}: {error}")
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")


def _may_pass(failure: OSError) -> bool:
    return failure.may_pass if isinstance(failure, S3Refused) else isinstance(failure, ConnectionError)
