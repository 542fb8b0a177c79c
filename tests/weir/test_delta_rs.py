"""What delta-rs says: only what may pass is silence."""

import pytest
from deltalake.exceptions import DeltaError

from weir.delta_rs import is_of_library, is_refusal, said
from weir.errors import Misconfigured

STATUS = "Kernel error -> Generic S3 error \x1b[31m\u21b3\x1b[0m Error performing GET http://s3:{}/b/t in 1.4ms - {}"


def of_s3(what, port=9000):
    return OSError(STATUS.format(port, what))


@pytest.mark.parametrize(
    "error",
    [
        of_s3("HTTP error error sending request tcp connect error"),
        of_s3("HTTP error operation timed out", 403),
        of_s3("Server returned non-2xx status code 503 Service Unavailable"),
        of_s3("Server returned non-2xx status code 429 Too Many Requests"),
        of_s3("Server returned non-2xx status code 409 Conflict"),
        OSError("Generic LocalFileSystem error: No space left on device (os error 28)"),
        DeltaError('Could not create local directory: /x Error: Os { code: 2, kind: NotFound, message: "No such" }'),
        Misconfigured("what Weir says itself (os error 13)"),
    ],
)
def test_silence_load_and_conflicts_pass(error):
    assert not is_refusal(error)


@pytest.mark.parametrize(
    "error",
    [
        of_s3("Server returned non-2xx status code 400 Bad Request"),
        of_s3("Server returned non-2xx status code 403 Forbidden"),
        of_s3("Server returned non-2xx status code 404 Not Found"),
        OSError("Generic LocalFileSystem error: Permission denied (os error 13)"),
        DeltaError('Could not create local directory: /x Error: Os { code: 36, kind: InvalidFilename, message: "" }'),
        DeltaError("Kernel error: No table metadata or protocol found in delta log."),
        ValueError("Schema error: Duplicate field name (case-insensitive): 'FOO'"),
        type("PanicException", (BaseException,), {})("Invalid object store url"),
    ],
)
def test_what_is_wrong_with_a_table_is_refused_again(error):
    assert is_refusal(error)


def test_a_message_is_one_line_without_colours_and_frames():
    error = DeltaError("Kernel error: Json error\n   0: <unknown>\n   1: <unknown>")
    assert (said(error), is_of_library(error)) == ("Kernel error: Json error", True)
    assert "\x1b" not in said(of_s3("x"))
