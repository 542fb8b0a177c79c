"""Default retention of a deployment, for dataflows that set none: options of Airflow's section `[weir]`.

Invariant: an option that cannot be understood is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.retention import RetainUntil, RetentionPolicy
from weir.errors import Misconfigured
from weir.units import size_from_text, time_from_text

_DAY = timedelta(days=1)
_TWO_RUNS = RetentionPolicy(RetainUntil.RUNS, runs=2)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Retention, quotas and scrubbing where a dataflow does not set them; None is forever, or unlimited.

    `keep` is the policy of intermediate results, `keep_published` the retention of published versions. `keep_failed` is
    counted from the last event of a run that never closed, `expire_runs` from the last event of any run: then manifests
    and records are deleted too. `orphan_age` is the least age at which a file without an owner is deleted. Each hour
    `scrub_share` of all bytes is read again, and with `scrub_repair` damaged results are recomputed before they are
    needed. `quota` (of a dataflow) and `least_free` (of the store's disk) are in bytes. `retained_checkpoints` is how
    many checkpoints and savepoints of a dataflow with state are retained, without automatic savepoints.
    """

    keep: RetentionPolicy = _TWO_RUNS
    keep_failed: timedelta | None = 14 * _DAY
    keep_published: timedelta | None = None
    expire_runs: timedelta | None = 90 * _DAY
    orphan_age: timedelta = _DAY
    scrub_share: float = 1 / 168
    scrub_repair: bool = True
    quota: int | None = None
    least_free: int = 16 * 2**20
    retained_checkpoints: int = 3

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> RetentionSettings:
        """Read the options of the section [weir]; empty and other options are ignored. Raises Misconfigured."""
        given = {key.lower(): str(value).strip() for key, value in options.items() if str(value).strip()}
        usual = RetentionSettings()
        orphan_age = _time("orphan_age", given.get("orphan_age"), usual.orphan_age)
        if orphan_age is None:
            raise Misconfigured.of("dataflow.orphan_age_is_forever")
        return RetentionSettings(
            keep=RetentionPolicy.from_text(given["keep"]) if "keep" in given else usual.keep,
            keep_failed=_time("keep_failed", given.get("keep_failed"), usual.keep_failed),
            keep_published=_time("keep_published", given.get("keep_published"), usual.keep_published),
            expire_runs=_time("expire_runs", given.get("expire_runs"), usual.expire_runs),
            orphan_age=orphan_age,
            scrub_share=_share(given.get("scrub_share"), usual.scrub_share),
            scrub_repair=_flag(given.get("scrub_repair"), usual=usual.scrub_repair),
            quota=size_from_text("quota", given["quota"]) if "quota" in given else None,
            least_free=size_from_text("least_free", given["least_free"]) if "least_free" in given else usual.least_free,
            retained_checkpoints=_count(given, "retained_checkpoints", usual.retained_checkpoints),
        )

    def of(self, dataflow: Dataflow) -> RetentionSettings:
        """Return the settings of a dataflow: its own choices, and these where it makes none."""
        retained = dataflow.retained_checkpoints
        return replace(
            self,
            keep=self.keep if dataflow.keep is None else RetentionPolicy.from_text(dataflow.keep),
            keep_failed=_time("keep_failed", dataflow.keep_failed, self.keep_failed),
            keep_published=_time("keep_published", dataflow.keep_published, self.keep_published),
            quota=self.quota if dataflow.quota is None else size_from_text("quota", dataflow.quota),
            retained_checkpoints=self.retained_checkpoints if retained is None else retained,
        )


def _time(what: str, text: str | None, usual: timedelta | None) -> timedelta | None:
    return usual if text is None else time_from_text(what, text)


def _count(given: Mapping[str, str], what: str, usual: int) -> int:
    text = given.get(what)
    if text is None:
        return usual
    if not text.isdecimal() or int(text) < 1:
        raise Misconfigured.of("dataflow.count_malformed", what=what, text=text)
    return int(text)


def _share(text: str | None, usual: float) -> float:
    if text is None:
        return usual
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Misconfigured.of("dataflow.scrub_share_malformed", text=text)
    return share


def _flag(text: str | None, *, usual: bool) -> bool:
    if text is None or text.lower() in (*_TRUE, *_FALSE):
        return usual if text is None else text.lower() in _TRUE
    raise Misconfigured.of("dataflow.scrub_repair_malformed", text=text)
