"""Run the program with Great Expectations that renders pages about checks.

Invariant: this process never imports Great Expectations.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from weir.errors import Message, Retryable
from weir.formats.quality_page import answer_from_json, request_to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weir.formats.quality_page import CheckToDocument


_START_SECONDS = 120.0
"""How long the first page may take: Great Expectations is imported in 8 s, on a busy machine in many more."""

_PAGE_SECONDS = 1.0


def render_pages(
    checks: Sequence[CheckToDocument], *, start_seconds: float = _START_SECONDS
) -> Iterator[tuple[int, bytes | str]]:
    """Render pages; yield the number of each check with its page, or the error text. Raises Retryable."""
    with tempfile.TemporaryDirectory(prefix="weir-quality-") as folder:
        request = Path(folder) / "request.json"
        request.write_text(request_to_json(checks))
        output = _run(
            [sys.executable, "-m", "weir_spark.checks.documents", str(request), folder], len(checks), start_seconds
        )
        for line in output.splitlines():
            answer = answer_from_json(line)
            if answer is not None:
                yield answer.check, answer.error or (Path(folder) / answer.file).read_bytes()


def _run(command: list[str], pages: int, start_seconds: float) -> str:
    limit = start_seconds + pages * _PAGE_SECONDS
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "GX_ANALYTICS_ENABLED": "false"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise Retryable(Message("quality.pages_took_too_long", pages=pages, limit=limit)) from error
    if done.returncode:
        raise Retryable(Message("quality.pages_failed", split=" ".join(done.stderr.split())[-500:]))
    return done.stdout
