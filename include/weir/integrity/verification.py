"""Verifies all results of some runs, and the records about them: what `weir verify` and an operator report.

Invariant: what is bad is recorded, so that no task reads it; it is recomputed by a repair only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from weir.coordination.services import Services
from weir.integrity.archives import archive_inconsistencies
from weir.integrity.records import Inconsistency, published_inconsistencies, released_inconsistencies
from weir.integrity.source_copies import source_copy_inconsistencies
from weir.integrity.states import checkpoint_inconsistencies
from weir.integrity.tables import table_inconsistencies
from weir.integrity.verify import BAD, VERIFIED, VerifiedResult, results_to_verify, verify_results
from weir.ledger.runs import runs_named
from weir.store.verification import Watch
from weir.units import format_size

Progress = Callable[[str, int], AbstractContextManager[Watch]]
"""Shows what is done, and how many of so many bytes are."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The verified runs, the outcome of each of their results, and misfits between records."""

    runs: tuple[str, ...]
    verified: tuple[VerifiedResult, ...]
    misfits: tuple[Inconsistency, ...]

    @property
    def bad(self) -> tuple[VerifiedResult, ...]:
        """Return the bad results."""
        return tuple(each for each in self.verified if each.outcome in BAD)

    @property
    def is_right(self) -> bool:
        """Report whether nothing is wrong."""
        return not self.bad and not self.misfits

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of results, and of bytes, by outcome."""
        numbers = Counter(each.outcome.value for each in self.verified)
        sizes: Counter[str] = Counter()
        for each in self.verified:
            sizes[each.outcome.value] += each.bytes
        return {outcome: (count, sizes[outcome]) for outcome, count in numbers.items()}

    def __str__(self) -> str:
        """Return how many results have which outcome, for people."""
        counts = sorted(self.counts().items())
        said = ", ".join(f"{count} {outcome} ({format_size(size)})" for outcome, (count, size) in counts)
        return f"{len(self.verified)} result(s) of {len(self.runs)} run(s): {said or 'none is stored'}."


def verify_runs(
    services: Services,
    name: str | None,
    what: str,
    progress: Progress = lambda _title, _total: nullcontext(lambda _bytes: None),
) -> VerifyReport:
    """Verify the results of a dataflow, of one run, or of all (None); `what` names the reader in the leases.

    Raises Misconfigured for a name that is not known, and Retryable where ledger or store do not answer.
    """
    with services.ledger.transaction() as session:
        runs = runs_named(session, name)
        rows = results_to_verify(session, runs, VERIFIED)
    total = sum(row.bytes for row in rows)
    with progress(f"verifying {len(rows)} result(s) of {len(runs)} run(s)", total) as watch:
        found = tuple(verify_results(services, rows, what, watch))
    misfits = (
        *published_inconsistencies(services, runs),
        *released_inconsistencies(services, runs),
        *checkpoint_inconsistencies(services, runs),
        *archive_inconsistencies(services, runs),
        *source_copy_inconsistencies(services, runs),
        *table_inconsistencies(services, runs),
    )
    return VerifyReport(tuple(runs), found, misfits)
