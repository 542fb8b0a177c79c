"""The definite errors of a store.

Invariant: `NotFound` means that the store itself reported it. Every other failure is `Retryable`.
"""

from __future__ import annotations

from weir.errors import WeirError


class NotFound(WeirError):
    """There is definitely no such file or folder: the store itself has answered so."""


class OtherBytes(WeirError):
    """A file has other bytes than its digest says."""


class AlreadyExists(WeirError):
    """The name of an exclusive create exists already; nothing was written."""
