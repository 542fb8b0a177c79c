"""Keeping secrets out of what is shown.

Invariant: a text that passed through here holds no password of a URL and none of the secrets that were named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from weir.doctor.finding import Finding

HIDDEN = "***"

_LEAST_LENGTH = 6
"""A shorter secret is a part of too many words to be blackened wherever it stands."""
_IN_URL = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)[^\s/@'\"]+(?P<after>@)", re.IGNORECASE)
_NAMED = re.compile(
    r"(?P<before>\b[\w-]*(?:password|passwd|token|secret|secret_key|access_key|authorization)"
    r"['\"]?\s*[=:]\s*(?:bearer\s+)?['\"]?)[^\s'\",;&]+",
    re.IGNORECASE,
)


class Secrecy:
    """Knows secrets and blackens them."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        self._secrets: set[str] = set()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str | None) -> None:
        """Hide this from now on."""
        if secret is not None and len(secret) >= _LEAST_LENGTH:
            self._secrets.add(secret)

    def learn_url(self, url: str | None) -> None:
        """Hide the password of a URL."""
        account = (url or "").partition("://")[2].partition("/")[0].rpartition("@")[0]
        password = account.partition(":")[2]
        for spelling in (password, unquote(password)):
            self.learn(spelling)

    def learn_all(self, values: Mapping[str, Any]) -> None:
        """Hide every text in these options, however deep, but those that say where or how."""
        for key, value in values.items():
            if isinstance(value, Mapping):
                self.learn_all(value)
            elif isinstance(value, str) and _may_be_secret(key):
                self.learn(value)

    def clean(self, text: str) -> str:
        """The text without secrets."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        text = _IN_URL.sub(rf"\g<before>{HIDDEN}\g<after>", text)
        return _NAMED.sub(rf"\g<before>{HIDDEN}", text)

    def cleaned(self, finding: Finding) -> Finding:
        """The finding without secrets."""
        return replace(
            finding,
            found=self.clean(finding.found),
            expected=self.clean(finding.expected),
            mend=self.clean(finding.mend),
        )


def _may_be_secret(key: str) -> bool:
    return not any(word in key.lower() for word in ("url", "region", "host", "version", "timeout", "profile"))
