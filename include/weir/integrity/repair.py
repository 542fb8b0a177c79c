"""Has bad results recomputed that were found when they were verified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from weir.coordination.services import Services
from weir.errors import Loss
from weir.integrity.records import Inconsistency
from weir.integrity.verify import VerifiedResult, VerifyOutcome
from weir.recovery.repair import Repair, repair


def repair_runs(
    services: Services, found: Iterable[VerifiedResult], inconsistencies: Iterable[Inconsistency] = (), by: str = ""
) -> tuple[Repair, ...]:
    """Plan and record the repair of every run with a bad result that is current, or published. Raises Retryable.

    `by` is the person who asks for it, where that is known.
    """
    lost: dict[str, list[Loss]] = defaultdict(list)
    for each in found:
        if (
            each.outcome in (VerifyOutcome.LOST, VerifyOutcome.QUARANTINED)
            and each.is_current
            and each.loss is not None
        ):
            lost[each.run].append(each.loss)
    unpublished = {each.run: f"{each.path}: {each.detail}" for each in inconsistencies if each.is_published}
    runs = sorted(lost.keys() | unpublished.keys())
    return tuple(repair(services, run, lost.get(run, ()), unpublished.get(run, ""), by) for run in runs)
