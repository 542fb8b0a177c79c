"""What Spark says of an S3 that refuses or does not answer, as its connector says it: recorded from the real one."""

from __future__ import annotations

import pytest
from tests.messages.kinds import of_kind

from weir_spark.transport.driver import translate_of_own_session
from weir_spark.transport.failures import s3_silent

OF_S3A = "\tat org.apache.hadoop.fs.s3a.S3AFileSystem.getFileStatus(S3AFileSystem.java:4069)\n"
OF_READER = "\tat software.amazon.s3.analyticsaccelerator.io.physical.reader.StreamReader.read(StreamReader.java:276)\n"


class Told(Exception):
    """An error of Spark, with the stack trace of its server."""

    def __init__(self, trace: str) -> None:
        super().__init__("[TASK_WRITE_FAILED] Task failed while writing rows.")
        self._stackTrace = trace


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            f"{OF_S3A}Caused by: S3Exception: null (Service: S3, Status Code: 503, Request ID: null)",
            "Service: S3, Status Code: 503",
        ),
        (
            f"{OF_READER}Caused by: S3Exception: Please wait. (Service: S3, Status Code: 500, Request ID: null)",
            "Service: S3, Status Code: 500",
        ),
        (
            f"{OF_S3A}Caused by: SdkClientException: Unable to execute HTTP request: Connection reset (SDK Attempt",
            "Unable to execute HTTP request: Connection reset",
        ),
        (f"{OF_S3A}Caused by: ApiCallTimeoutException: Client execution did not end", "ApiCallTimeoutException"),
    ],
)
def test_an_s3_that_answers_no_try_is_told_and_tried_again(trace, said) -> None:
    told = translate_of_own_session(Told(trace), "numbers")
    assert of_kind("transport.s3_silent", region="numbers", error=said)(told)


def test_a_token_that_has_expired_is_told_and_tried_again() -> None:
    trace = f"{OF_S3A}Caused by: S3Exception: ExpiredToken (Service: S3, Status Code: 400, Request ID: null)"
    told = translate_of_own_session(Told(trace), "numbers")
    assert of_kind("transport.token_expired", region="numbers")(told)


@pytest.mark.parametrize(
    "trace",
    [
        "Caused by: S3Exception: null (Service: S3, Status Code: 503)",  # of a client of a function's own
        f"{OF_S3A}Caused by: S3Exception: The bucket is not there (Service: S3, Status Code: 404)",
        f"{OF_S3A}Caused by: java.nio.file.AccessDeniedException: Access Denied (Service: S3, Status Code: 403)",
    ],
)
def test_other_failures_are_not_taken_for_silence(trace) -> None:
    assert s3_silent(Told(trace), "numbers") is None
