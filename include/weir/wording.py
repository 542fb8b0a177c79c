"""What many messages end in: the names that may be meant, and the first few of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, form: str = "{!r}", most: int = 1, likeness: float = 0.6
) -> str:
    """Ask whether the closest known names are meant, each written in this form; else return `otherwise`."""
    close = get_close_matches(name, list(known), most, likeness)
    return f"did you mean {' or '.join(map(form.format, close))}?" if close else otherwise


def first_few(names: Sequence[object], most: int) -> str:
    """Name the first few, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"
