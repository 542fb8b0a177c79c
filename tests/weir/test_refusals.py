"""A login, a right, a name or a certificate that is refused is no silence; what may pass by itself is no refusal."""

import socket
import ssl
import string

import httpx
import psycopg2
import pytest
import requests
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from weir.refusals import Verdict, is_access, is_passing, login_line, verdict
from weir.store.s3 import S3Refused

SERVER = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


def of_http(status, text="x"):
    request = httpx.Request("GET", "http://h")
    return httpx.HTTPStatusError(text, request=request, response=httpx.Response(status, request=request))


def of_requests(status):
    answer = requests.Response()
    answer.status_code = status
    return requests.HTTPError("x", response=answer)


def of_boto(code, status):
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


def after(error, cause):
    """An error that a client raises while it handles another one, without naming it as the cause."""
    error.__context__ = cause
    return error


def because(error, cause):
    error.__cause__ = cause
    return error


class Coded(Exception):
    def __init__(self, sqlstate):
        super().__init__("of any driver")
        self.sqlstate = sqlstate


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
REFUSED = {
    "password": psycopg2.OperationalError(f'{SERVER}FATAL:  password authentication failed for user "u"\n'),
    "of two addresses": psycopg2.OperationalError(
        f"{SERVER}Connection refused\n\tIs the server running?\n{SERVER}FATAL:  password authentication failed"
    ),
    "database": psycopg2.OperationalError(f'{SERVER}FATAL:  database "none" does not exist\n'),
    "role": psycopg2.OperationalError(f'{SERVER}FATAL:  role "nobody" does not exist\n'),
    "rule": psycopg2.OperationalError(f"{SERVER}FATAL:  pg_hba.conf rejects connection for host"),
    "closed database": psycopg2.OperationalError(
        f'{SERVER}FATAL:  database "d" is not currently accepting connections'
    ),
    "pooler": psycopg2.OperationalError(f"{SERVER}FATAL:  no such database: none"),
    "no TLS": psycopg2.OperationalError(f"{SERVER}server does not support SSL, but SSL was required"),
    "certificate of PostgreSQL": psycopg2.OperationalError(f"{SERVER}SSL error: certificate verify failed"),
    "port": psycopg2.OperationalError('invalid integer value "x" for connection option "port"'),
    "28": Coded("28P01"),
    "3D": Coded("3D000"),
    "3F": Coded("3F000"),
    "right": Coded("42501"),
    "httpx": of_http(401),
    "requests": of_requests(403),
    "botocore": of_boto("InvalidAccessKeyId", 403),
    "bucket": of_boto("NoSuchBucket", 404),
    "our S3": S3Refused("SignatureDoesNotMatch", 403, "m"),
    "disk": PermissionError(13, "Permission denied"),
    "certificate": after(requests.exceptions.SSLError("pool"), ssl.SSLCertVerificationError(1, "self-signed")),
    "text of Python": OSError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
    "text of curl": OSError("AWS Error NETWORK_CONNECTION: curlCode: 60, SSL peer certificate was not OK"),
    "text of Rust": OSError("error sending request: invalid peer certificate: UnknownIssuer"),
}
DOUBTFUL = {
    "PostgreSQL": psycopg2.OperationalError('could not translate host name "n" to address: Name or service not known'),
    "another language": psycopg2.OperationalError(f"{SERVER}FATAL:  Passwort-Authentifizierung fehlgeschlagen"),
    "Python": after(requests.ConnectionError("pool"), UNKNOWN),
    "curl": OSError("curlCode: 6, Could not resolve hostname; Details: Could not resolve host: none"),
    "Rust": OSError("dns error: failed to lookup address information"),
    "token": S3Refused("ExpiredToken", 400, "m"),
    "token of s3fs": because(PermissionError("The provided token has expired"), of_boto("ExpiredToken", 400)),
}
OTHER = {
    "refused": psycopg2.OperationalError(f"{SERVER}Connection refused\n\tIs the server running?"),
    "silence": psycopg2.OperationalError(f"{SERVER}timeout expired"),
    "lost": psycopg2.OperationalError("server closed the connection unexpectedly"),
    "starting": psycopg2.OperationalError(f"{SERVER}FATAL:  the database system is starting up"),
    "recovering": psycopg2.OperationalError(f"{SERVER}FATAL:  the database system is not yet accepting connections"),
    "full": psycopg2.OperationalError(f"{SERVER}FATAL:  sorry, too many clients already"),
    "slots": psycopg2.OperationalError(f"{SERVER}FATAL:  remaining connection slots are reserved for roles"),
    "failing pooler": psycopg2.OperationalError(f"{SERVER}FATAL:  server login has been failing, try again later"),
    "load": of_http(503),
    "limit": of_http(403, "rateLimitExceeded"),
    "throttled": of_boto("SlowDown", 503),
    "resolver": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    "reset": ConnectionResetError(104, "Connection reset by peer"),
    "eof": ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    "conflict": Coded("40001"),
    "bug": KeyError("a bug"),
}


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        *((Verdict.REFUSED, each) for each in REFUSED.values()),
        *((Verdict.DOUBTFUL, each) for each in DOUBTFUL.values()),
        *((Verdict.OTHER, each) for each in OTHER.values()),
    ],
    ids=[*(f"refused-{name}" for name in REFUSED), *(f"doubtful-{name}" for name in DOUBTFUL), *OTHER],
)
def test_what_a_server_or_its_client_says_is_judged(expected, error):
    assert verdict(error) is expected
    wrapped = RuntimeError("of a target")
    wrapped.__cause__ = error
    assert verdict(wrapped) is expected


@given(st.text(string.ascii_uppercase + string.digits, min_size=5, max_size=5))
def test_no_code_is_both_a_refused_access_and_a_silence(code):
    assert not (is_access(code) and is_passing(code))
    assert is_access(code) == (code[:2] in ("28", "3D", "3F") or code == "42501")
    assert verdict(Coded(code)) is (Verdict.REFUSED if is_access(code) else Verdict.OTHER)


def test_an_access_that_is_refused_while_another_error_is_handled_is_not_its_cause():
    """A client that gets a new token after a 401, and then no answer."""
    assert verdict(after(ConnectionResetError(104, "reset"), of_http(401))) is Verdict.OTHER


def test_of_several_addresses_the_one_that_has_answered_is_told():
    assert login_line(REFUSED["of two addresses"]).endswith("password authentication failed")
    assert "Connection refused" in login_line(OTHER["refused"])
