"""What a store answers when it does not do what it was asked.

Invariant: `NotFound` means that the store itself said so. Whatever else went wrong is `Retryable`.
"""

from __future__ import annotations

from weir.errors import WeirError


class NotFound(WeirError):
    """The store answered, definitely, that there is no such file or folder."""


class AlreadyExists(WeirError):
    """An exclusive create found the name taken; nothing was written."""
