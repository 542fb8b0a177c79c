"""Clocks of other machines. Invariant: the time that the answer took is never counted as a difference."""

from __future__ import annotations

from datetime import datetime

from weir.doctor.examination import Finding, ok, warning

MOST_SECONDS = 5.0
"""Airflow's tokens bear ten."""


def clock_difference(before: datetime, other: datetime, after: datetime) -> float:
    """How many seconds another clock is ahead of this one, which read `before` and `after` around the question."""
    if other < before:
        return (other - before).total_seconds()
    return max(0.0, (other - after).total_seconds())


def judge_clock(area: str, whose: str, seconds: float) -> Finding:
    """Judge how far another clock is ahead (negative: behind)."""
    if abs(seconds) <= MOST_SECONDS:
        return ok(area, "clock", f"{whose} and this machine's clock agree within {max(1.0, abs(seconds)):.0f} s")
    side = "ahead of" if seconds > 0 else "behind"
    return warning(
        area,
        "clock",
        f"{whose} are {abs(seconds):.0f} s {side} this machine's clock",
        expected=f"at most {MOST_SECONDS:.0f} s: leases, tokens and clean-up compare times of several machines",
        mend="let an NTP service (chrony, systemd-timesyncd) keep the clocks of all machines",
    )
