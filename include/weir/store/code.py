"""Reads the code of an attempt, which its job names.

Invariant: what is read is what the job names: an archive with another content is an error.
"""

from __future__ import annotations

from weir.code.archive import Archive, archive_of
from weir.code.generation_rules import short
from weir.errors import Message, Misconfigured
from weir.formats.region_job import CodeToRun
from weir.store.errors import NotFound
from weir.store.store import Store


def read_archive(code: CodeToRun, store: Store) -> Archive:
    """Read a job's archive from the store. Raises Misconfigured if it is gone or damaged, and Retryable."""
    try:
        return archive_of(store.read(code.path), code.archive)
    except (NotFound, ValueError) as error:
        raise Misconfigured(
            Message("store.code_lost", short=short(code.version), code_path=code.path, error=error)
        ) from error
