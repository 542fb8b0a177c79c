"""`python -m tests.simulator --seeds 5000 --from 0`: simulate many seeds, and print the findings.

Invariant: the printed finding is enough to reproduce it: `--seed N`, or `--replay FILE` with the schedule.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Final

from tests.simulator.dataflows import scene_from_text
from tests.simulator.events import events_from_text
from tests.simulator.simulate import DRAWN, USUAL, Shares, report_of, simulate, sweep

_SHARES: Final = {
    "stateful": "of scenes that keep state",
    "gated": "of scenes whose rows are checked",
    "edited": "of schedules that edit functions",
    "collecting": "of scenes that release and sweep",
    "crowded": "of schedules that suspend several processes at once",
    "skewed": "of schedules with wrong clocks",
    "deleted": "of schedules that queue and delete DagRuns",
    "rebuilt": "of schedules that rebuild the ledger",
    "lossy": "of schedules in which the ledger loses commits",
    "forgotten": "of schedules in which Airflow loses commits",
    "told": "of scenes with a receiver of notifications",
    "listed": "of schedules in which files of sources come, go, and are corrected",
    "windowed": "of scenes whose rows have times, and are aggregated by windows",
}


def main(arguments: list[str]) -> int:
    """Run the command, and return the number of findings, at most 100."""
    asked = _parser().parse_args(arguments)
    if asked.replay is not None:
        return _replay(asked.replay, derives=asked.derive)
    shares = DRAWN if asked.draw_shares else Shares(*(getattr(asked, each.name) for each in fields(Shares)))
    first, seeds = (asked.first, asked.seeds) if asked.seed is None else (asked.seed, 1)
    swept = sweep(
        range(first, first + seeds), processes=asked.processes, most=asked.most, shares=shares, derives=asked.derive
    )
    for found in swept.findings:
        _say(report_of(found.seed, found.finding, shrink=not asked.raw, shares=shares))
    _say(f"# {swept.seeds} seeds from {first}: {len(swept.findings)} broke an invariant, in {swept.seconds:.0f} s")
    return min(len(swept.findings), 100)


def _replay(file: Path, *, derives: bool) -> int:
    text = file.read_text()
    finding = simulate(scene_from_text(text.splitlines()), events_from_text(text), derives=derives)
    _say("nothing is wrong" if finding is None else str(finding))
    return 0 if finding is None else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--replay", type=Path, help="a file with what was printed of a finding")
    parser.add_argument("--processes", type=int, help="at most so many at once (default: one a core)")
    parser.add_argument("--most", type=int, default=5, help="stop after so many findings")
    for each in fields(Shares):
        share, said = getattr(USUAL, each.name), _SHARES[each.name]
        parser.add_argument(f"--{each.name}", type=float, default=share, help=f"the share {said} (default: {share:g})")
    parser.add_argument(
        "--draw-shares",
        action="store_true",
        help="each seed draws all shares, and how often each event and fault comes",
    )
    parser.add_argument(
        "--derive", action="store_true", help="derive what is due after each transaction: it has to be decided"
    )
    parser.add_argument("--raw", action="store_true", help="do not shrink what is found")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
