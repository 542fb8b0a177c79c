"""An S3 for tests: moto's server, in a process of its own that can be suspended. Invariant: it ends with its parent.

Of many conditional writes exactly one succeeds, as Amazon promises; moto by itself looks first and writes then.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

_START_LINE = "serving on port "


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs: its endpoint, and the options by which s3fs reaches it."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for `Store.open`: any credentials will do."""
        return options_of(self.url)

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        client_of(self.url).create_bucket(Bucket=name)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the server accept connections and answer nothing, as one that hangs does."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def options_of(endpoint: str) -> dict[str, Any]:
    """Options for `Store.open` of an S3 at an endpoint."""
    return {
        "key": "weir",
        "secret": "hush-hush",
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }


@cache
def client_of(endpoint: str) -> Any:
    """Make botocore's own client, for what a store does not do: buckets, metadata, versions."""
    import botocore.session

    return botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="weir",
        aws_secret_access_key="hush-hush",
    )


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Start an empty S3 on a free loopback port, and stop it."""
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(_START_LINE):
            raise AssertionError(f"the S3 server did not start; it said {line!r}")
        yield S3Server(int(line.removeprefix(_START_LINE)), process)
    finally:
        process.kill()
        process.communicate()


def _one_conditional_write_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_conditional = not {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"}.isdisjoint(environ)
        if not is_conditional or environ["REQUEST_METHOD"] not in ("PUT", "POST"):
            return application(environ, start_response)
        with lock:
            return list(application(environ, start_response))

    return serve


def _end_with_parent() -> None:
    sys.stdin.read()
    signal.raise_signal(signal.SIGKILL)


def main() -> None:
    """Serve until the parent is gone."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = _one_conditional_write_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write(f"{_START_LINE}{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
