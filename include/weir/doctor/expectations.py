"""The suites that dataflows name, as this machine finds them. Invariant: they are only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from weir.doctor.examination import Check, Finding, ok, problem, unknown
from weir.errors import Misconfigured
from weir.formats.suite import suite_from_json

AREA = "expectations"

_MEND = (
    "put them there, at every worker, or name their folder: WEIR_EXPECTATIONS, or [weir] expectations of airflow.cfg"
)


def expectation_checks(folder: str, named: Callable[[], tuple[str, ...]]) -> list[Check]:
    """The check of the suites in `folder`. `named` are those of dataflows; what it raises is told at the ledger."""
    return [Check(AREA, "suites", lambda: check_suites(Path(folder), named))]


def check_suites(folder: Path, named: Callable[[], tuple[str, ...]]) -> Iterator[Finding]:
    """Whether each suite that the newest runs name is there, and can be used."""
    try:
        names = named()
    except Exception:  # noqa: BLE001  whatever it is, the ledger's own checks tell it
        mend = "mend what is said of the ledger"
        yield unknown(AREA, "suites", "the ledger does not say which suites dataflows name", mend=mend)
        return
    wrong = [said for name in names if (said := _what_is_wrong(folder, name))]
    if wrong:
        yield problem(AREA, "suites", "; ".join(wrong), expected="each suite that a dataflow names", mend=_MEND)
    elif names:
        yield ok(AREA, "suites", f"{', '.join(names)}, in {folder}")
    else:
        yield ok(AREA, "suites", "no dataflow names one")


def _what_is_wrong(folder: Path, name: str) -> str:
    path = folder / f"{name}.json"
    try:
        suite_from_json(name, path.read_bytes())
    except FileNotFoundError:
        return f"{path} is not there"
    except (OSError, Misconfigured) as error:
        return str(error)
    return ""
