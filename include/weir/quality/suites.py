"""The suites of the deployment, read when an attempt begins.

Invariant: an attempt is checked by the files as they are when it begins; a missing or invalid file is Misconfigured.
"""

from __future__ import annotations

from pathlib import Path

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.suite import Suite, suite_from_json
from weir.wording import did_you_mean


def read_suite(services: Services, name: str, stage: str = "") -> Suite:
    """Read the suite `name` of a stage. Raises Misconfigured."""
    try:
        return suite_in(services.expectations, name)
    except Misconfigured as error:
        raise Misconfigured.of(
            "quality.suite_unreadable", of_stage=f"stage {stage}: " if stage else "", error=error
        ) from error


def suite_in(folder: str, name: str) -> Suite:
    """Read the suite `name` of a folder. Raises Misconfigured."""
    path = Path(folder) / f"{name}.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Misconfigured.of("quality.suite_missing", name=name, known_suites=_known_suites(path)) from None
    except OSError as error:
        raise Misconfigured.of("quality.suite_file_unreadable", name=name, error=error) from error
    try:
        return suite_from_json(name, data)
    except Misconfigured as error:
        raise Misconfigured.of("quality.suite_wrong", path=path, error=error) from error


def _known_suites(path: Path) -> str:
    known = sorted(each.stem for each in path.parent.glob("*.json"))
    if not known:
        return f"{path} is missing, and the folder has none (set WEIR_EXPECTATIONS to the one that has)"
    others = f"the folder has {', '.join(known)}"
    return f"{path} is missing; {did_you_mean(path.stem, known, others, form='{}')}"
