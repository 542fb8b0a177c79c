"""`python -m tests.simulator.exhaustive SCOPE`: searches with 0, 1, 2 and 3 preemptions, then with any number.

It prints what each search has visited, and ends with 1 where one breaks an invariant, with the schedule that leads
there.
"""

from __future__ import annotations

import argparse
import sys

from tests.simulator.exhaustive.scope import SCOPES
from tests.simulator.exhaustive.search import searches


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.exhaustive", description=__doc__)
    parser.add_argument("scope", choices=SCOPES)
    parser.add_argument("--most", type=int, help="preemptions at most (default: 3, then any number)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of processor time, for all searches together")
    asked = parser.parse_args(arguments)
    for found in searches(SCOPES[asked.scope], asked.seconds, asked.most):
        sys.stdout.write(f"{asked.scope}, {found}\n{found.finding}")
        sys.stdout.flush()
        if found.finding:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
