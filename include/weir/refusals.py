"""Judges what servers and client libraries say when a connection or a request fails, for targets and sources.

Invariants: a login, a right, a name or a certificate that is refused is refused by the next try, too, and is no
silence. Silence, load and conflicts may pass by themselves.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from weir.errors import first_line, reached


class Verdict(Enum):
    """What is to be expected of the next try."""

    REFUSED = "refused"
    """The same: a person has to mend an account, a right, a name or a certificate."""
    DOUBTFUL = "doubtful"
    """Mostly the same, but a server that is started again has no name for a while, or answers in its own language."""
    OTHER = "other"
    """Nothing that this module knows."""


# How codes of PostgreSQL begin that say that it is away, overloaded or busy: connections, deadlocks, resources, a
# shutdown or start, its own system, and a lock or an idle transaction that was waited for too long.
_PASSING: Final = ("08", "40", "53", "57P0", "58", "25P03", "55P03")

_ACCESS: Final = ("28", "3D", "3F", "42501")
"""How SQLSTATEs begin that say that login, database, schema or right are not what is needed."""

_STATUS: Final = (401, 403, 407)
_BUSY: Final = re.compile("rate.?limit|quota|throttl", re.IGNORECASE)
"""What some services say with the status 403 that passes."""

_OF_S3: Final = frozenset(
    {
        *("AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "InvalidAccessKeyId"),
        *("InvalidBucketName", "InvalidToken", "NoSuchBucket", "NotSignedUp", "PermanentRedirect"),
        *("SignatureDoesNotMatch", "UnrecognizedClientException"),
    }
)

_RENEWED: Final = frozenset({"ExpiredToken", "TokenRefreshRequired"})

_UNTRUSTED: Final = re.compile(
    "certificate[ _]verify[ _]failed|invalid peer certificate|SSL peer certificate|(?:curlCode: |CURLE_)60|"
    "does not match host name|wrong[ _]version[ _]number|alert unknown ca|alert certificate required|"
    "does not support SSL, but SSL was required|received corrupt message of type InvalidContentType",
    re.IGNORECASE,
)
"""What Python, libpq, curl and Rust say of a certificate that nobody trusts, and of a server without TLS."""

_UNKNOWN_HOST: Final = re.compile(
    "Name or service not known|nodename nor servname|No address associated with hostname|Name does not resolve|"
    "Could not resolve host|failed to lookup address information|UnknownHostException"
)

_ANSWERED: Final = re.compile(r"(?:^|failed: )(?P<severity>\w+):  (?P<said>.*)", re.MULTILINE)
"""An answer of PostgreSQL to a login, in any language: libpq puts two spaces after the severity, and tells no code."""

_LOGIN_PASSES: Final = re.compile(
    r"starting up|shutting down|recovery mode|database system|too many|connection slots|no more connections|"
    r"terminating|out of memory|time-?out|timed out|server (?:conn|login)|could not (?:fork|accept)|pooler",
    re.IGNORECASE,
)
_LOGIN_REFUSED: Final = re.compile(
    r"authentication failed|pg_hba\.conf|no password supplied|not permitted to log in|[Pp]ermission denied|"
    r"(?:database|role|user|file) .* does not exist|no such (?:database|user)|is not currently accepting connections|"
    r"(?:database|user|role) not found|has no credentials|wrong password|channel binding|SCRAM|"
    r"invalid (?:integer )?value|could not (?:read|load) (?:certificate|private key|root certificate)|"
    r"has group or world access|authentication method"
)
"""A failed login has no code. PostgreSQL's words, libpq's and those of poolers."""


def is_passing(sqlstate: str | None) -> bool:
    """Report whether an error of PostgreSQL may pass by itself; without a code, the connection was lost.

    All other answers are refusals: 54 (a limit of the server) and 57014 (a statement's time-out) are what they say.
    """
    return sqlstate is None or sqlstate.startswith(_PASSING)


def is_access(sqlstate: str) -> bool:
    """Report whether an SQLSTATE says that login, database, schema or a right are refused, of whatever database."""
    return sqlstate.startswith(_ACCESS)


def is_login_refused(error: BaseException) -> bool:
    """Report whether PostgreSQL or its client has refused a login, by its words: a failed login has no code."""
    return _of_login(str(error)) is Verdict.REFUSED


def login_line(error: BaseException) -> str:
    """Return the line that says why a login failed: of several addresses or hosts, the last one that has answered."""
    lines = str(error).strip().splitlines()
    return next((each for each in reversed(lines) if _of_login(each) is not Verdict.OTHER), first_line(error)).strip()


def verdict(error: BaseException) -> Verdict:
    """Judge an error of a client library by its causes."""
    own = list(_causes(error))
    if any(_of_s3(each) in _RENEWED for each in own):
        return Verdict.DOUBTFUL  # whoever renews tokens may be about to
    if any(_is_refused(each) for each in own) or any(_is_untrusted(each) for each in _contexts(error)):
        return Verdict.REFUSED
    if any(_is_doubtful(each) for each in (*own, *_contexts(error))):
        return Verdict.DOUBTFUL
    return Verdict.OTHER


def _is_refused(error: BaseException) -> bool:
    code = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    if isinstance(code, str) and code:
        return is_access(code)
    if _is_of_postgres(error):
        return is_login_refused(error)
    is_status = _status(error) in _STATUS and not _BUSY.search(str(error))
    return isinstance(error, PermissionError) or _of_s3(error) in _OF_S3 or is_status


def _is_untrusted(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) or _UNTRUSTED.search(str(error)) is not None


def _is_doubtful(error: BaseException) -> bool:
    if isinstance(error, socket.gaierror):
        return error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
    is_answer = _is_of_postgres(error) and _of_login(str(error)) is Verdict.DOUBTFUL
    return is_answer or _UNKNOWN_HOST.search(str(error)) is not None


def _of_login(text: str) -> Verdict:
    answer = _ANSWERED.search(text)
    if answer is not None and _LOGIN_PASSES.search(answer["said"]) and not _LOGIN_REFUSED.search(answer["said"]):
        return Verdict.OTHER
    if _LOGIN_REFUSED.search(text) or _UNTRUSTED.search(text):
        return Verdict.REFUSED
    return Verdict.DOUBTFUL if answer is not None or _UNKNOWN_HOST.search(text) else Verdict.OTHER


def _is_of_postgres(error: BaseException) -> bool:
    """Report whether an error is psycopg's, and has no code: then it is of a login, or the connection was lost."""
    kind = type(error)
    return kind.__module__.startswith("psycopg") and kind.__name__ == "OperationalError"


def _of_s3(error: BaseException) -> str:
    """Return S3's code in an error of botocore, or of our client."""
    answer: Any = getattr(error, "response", None)
    found = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else getattr(error, "code", None)
    return found if isinstance(found, str) else ""


def _status(error: BaseException) -> int:
    """Return the HTTP status in an error of requests, httpx, aiohttp, urllib, botocore, Google's or Azure's client."""
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, dict):
        answer = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    found = (getattr(each, name, None) for each in (answer, error) for name in ("status_code", "status", "code"))
    return next((int(each) for each in (answer, *found) if isinstance(each, int) and each), 0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, also those that a library has as an attribute."""
    return reached(error, lambda found: (found.__cause__, getattr(found, "orig", None)))


def _contexts(error: BaseException) -> Iterator[BaseException]:
    """Yield causes, and what was handled meanwhile: clients translate what a socket says in many ways."""
    return reached(
        error, lambda found: (found.__cause__, found.__context__, getattr(found, "reason", None), *found.args)
    )
