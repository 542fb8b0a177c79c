"""The forms in which programs write a secret: quoted for a URL or a shell, escaped, in base64, in a header.

Invariant: a pattern finds each of these forms, also a mixture of them, and takes time that grows with the text alone.
Functions here are given secrets and return what has them in it: it goes into no message and no file.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from html.entities import codepoint2name
from itertools import groupby
from typing import Final
from urllib.parse import quote, quote_plus

_ENTITIES: Final = {**codepoint2name, ord("'"): "apos"}
_CONTROLS: Final = {"\n": "n", "\r": "r", "\t": "t"}
_LEAST_CORE: Final = 6
"""Of base64: so many letters of it are those of a secret, and of nothing else."""

_MOST_IN_HEX: Final = 256
_BETWEEN_LINES: Final = r"(?:[\r\n]|\\+[rn])*"
_BACKSLASH: Final = "\\"


@lru_cache(maxsize=1024)
def pattern_of(secret: str) -> re.Pattern[str]:
    """Return what finds a secret in a text, as it stands and in the forms in which programs write it."""
    data = secret.encode(errors="replace")
    coded = [_hex(data.hex()) if len(data) <= _MOST_IN_HEX else "", *(_of_base64(data, before) for before in range(3))]
    return re.compile("|".join([_of_characters(secret), *filter(None, coded)]))


def literal_forms(secret: str) -> list[str]:
    """Return the most frequent forms of a secret as texts, for a masker that knows nothing but texts."""
    data, as_html = secret.encode(errors="replace"), html.escape(secret)
    forms = {secret, secret.replace(_BACKSLASH, 2 * _BACKSLASH), shlex.quote(secret).strip("'"), data.hex()}
    forms |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    forms |= {repr(data)[2:-1], as_html, html.escape(secret, quote=False), as_html.replace("&#x27;", "&apos;")}
    forms |= {*(secret.replace(each, each * 2) for each in "'\"%"), secret.replace("'", "\\'")}
    for form in [*forms]:
        urls = {quote(form, safe, errors="replace") for safe in ("/", "", "!*'()")}
        urls |= {quote_plus(form, safe, errors="replace") for safe in ("", "*")}
        forms |= {
            json.dumps(form)[1:-1],
            *urls,
            *(_HEX_OF_URL.sub(lambda found: found[0].lower(), each) for each in urls),
        }
    for core in filter(None, (_core(data, before) for before in range(3))):
        forms |= {core, core.replace("+", "-").replace("/", "_"), quote(core, safe="")}
    return sorted(forms, key=lambda each: (-len(each), each))


_HEX_OF_URL: Final = re.compile("%[0-9A-F]{2}")


def _of_characters(secret: str) -> str:
    """Return a pattern of a secret each of whose characters may be written in another way.

    Equal characters are taken together, and backslashes all at once, so that there is one way to read a run of them.
    """
    parts, before = [], ""
    for character, run in groupby(secret):
        count = len(list(run))
        if character.isascii() and character.isalnum():
            parts.append(character * count)
        elif character == _BACKSLASH:
            ways = "|".join(_encoded(character, r"\\+"))
            parts.append(rf"(?:\\{{{count},}}+|(?:{ways}){{{count}}})")
        else:
            # The backslashes before it have been read, if it comes after one of the secret.
            escapes = "" if before == _BACKSLASH else r"\\++"
            ways = "|".join([rf"\\*+{re.escape(character)}", *_encoded(character, escapes)])
            # SQL, csv and psycopg2's queries write a quote or a percent sign twice.
            parts.append(rf"(?:{ways}){{{count},{2 * count}}}")
        before = character
    guard = "" if secret[0].isascii() and secret[0].isalnum() else r"(?<!\\)"
    return guard + "".join(parts)


def _encoded(character: str, escapes: str) -> Iterator[str]:
    """Yield patterns of a character; `escapes` is that of the backslashes before a letter or a number."""
    code, data = ord(character), {character.encode(errors="replace")}
    units = character.encode("utf-16-be", errors="replace")
    with suppress(UnicodeEncodeError):
        data.add(character.encode("latin-1"))
    for each in sorted(data):
        yield "".join(rf"%(?:25)*{_hex(f'{byte:02x}')}" for byte in each)
        yield "".join(rf"{escapes}x{_hex(f'{byte:02x}')}" for byte in each)
        yield "".join(rf"{escapes}{byte:03o}" for byte in each)
    yield "".join(rf"{escapes}u{_hex(units[place : place + 2].hex())}" for place in range(0, len(units), 2))
    yield rf"{escapes}U{_hex(f'{code:08x}')}"
    names = [rf"#0*{code}", rf"#[xX]0*{_hex(f'{code:x}')}", *([_ENTITIES[code]] if code in _ENTITIES else [])]
    yield rf"&(?:amp;)*(?:{'|'.join(names)});"
    if character in _CONTROLS:
        yield rf"{escapes}{_CONTROLS[character]}"
    if character == " ":
        yield r"\+"
    if character == "'":
        yield r"'\"'\"'"
        yield r"'\\+''"


def _core(data: bytes, before: int) -> str:
    """Return the letters of base64 that are those of the data alone, with so many bytes before it."""
    first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
    core = b64encode(bytes(before) + data).decode()[first:last]
    return core if len(core) >= _LEAST_CORE else ""


def _of_base64(data: bytes, before: int) -> str:
    core = _core(data, before)
    if not core:
        return ""
    letters = {"+": r"(?:[+-]|%2[bB]|\\+u002[bB])", "/": r"(?:\\*/|_|%2[fF])"}
    first = -(-before * 8 // 6)
    found = "".join(
        (_BETWEEN_LINES if place % 4 == 0 and place > first else "") + letters.get(each, each)
        for place, each in enumerate(core, first)
    )
    # At both ends a letter may be of the secret and of what stands beside it.
    return rf"{'[A-Za-z0-9+/_-]?' if before else ''}{found}[A-Za-z0-9+/_-]?(?:=|%3[dD]|\\+u003[dD]){{0,2}}"


def _hex(digits: str) -> str:
    return "".join(f"[{each}{each.upper()}]" if each.isalpha() else each for each in digits.lower())
