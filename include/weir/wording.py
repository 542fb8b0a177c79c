"""What many messages end in: the names that may be meant, the first few of many, and the beginning of a long text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LIKENESS = 0.6
"""From 0 to 1, how like a name has to be."""

_DOTS = "..."
"""What stands where a text goes on."""


def closest(name: str, known: Iterable[str], most: int = 1, likeness: float = LIKENESS) -> list[str]:
    """Return the known names that a name is like, the closest first."""
    return get_close_matches(name, list(known), most, likeness)


def meant(names: Sequence[str], form: str = "{!r}") -> str:
    """Ask whether one of these names is meant, each written in this form."""
    return f"did you mean {' or '.join(map(form.format, names))}?"


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    lead: str = "",
    form: str = "{!r}",
    most: int = 1,
    likeness: float = LIKENESS,
) -> str:
    """Ask, after `lead`, whether the closest known names are meant; where none is close, return `otherwise`."""
    names = closest(name, known, most, likeness)
    return f"{lead}{meant(names, form)}" if names else otherwise


def first_few(names: Sequence[object], most: int) -> str:
    """Name the first few, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def shortened(text: str, most: int) -> str:
    """Return the text if it has at most so many characters; else what of it ends with a word, and dots."""
    if len(text) <= most:
        return text
    kept = text[: max(most - len(_DOTS), 0)]
    words, blank, begun = kept.rpartition(" ")
    is_whole = text[len(kept)] == " " or not blank or len(begun) > most // 2
    return f"{(kept if is_whole else words).rstrip()}{_DOTS}"
