"""Pages about checks, as tasks have them made.

Invariant: a task does not depend on its pages: where they cannot be made, upkeep makes them, and the task goes on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weir.errors import WeirError
from weir.quality.page_program import render_pages
from weir.quality.pages import make_pages, make_pages_everywhere
from weir.upkeep import Upkept

if TYPE_CHECKING:
    from collections.abc import Callable

    from weir_airflow.tasks.context import Office


_EVERYTHING = "pages"

_TASK_SECONDS = 25.0
"""How long a task waits for the first page."""


def make_pages_of(office: Office, attempt: str, tell: Callable[[str], None]) -> None:
    """Make the pages about what an attempt has found bad; costs nothing where all is right."""
    try:
        made = make_pages(office.services, partial(render_pages, start_seconds=_TASK_SECONDS), by_attempt=attempt)
    except (WeirError, OSError) as error:
        tell(f"No page was made about what the checks have found: {error}")
        return
    if made.pages or made.problems:
        tell(f"{made}: {office.store.url}/{made.newest}" if made.newest else str(made))


def make_all_pages(office: Office) -> Upkept:
    """Make the next batch of pages about checks that have none, of every dataflow."""
    kept = Upkept()
    with kept.trying(_EVERYTHING):
        kept.done[_EVERYTHING] = make_pages_everywhere(office.services, render_pages)
    return kept
