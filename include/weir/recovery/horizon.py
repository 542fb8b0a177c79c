"""How far back a decision has looked. Invariant: what was not looked at is asked for, never assumed."""

from __future__ import annotations


class BeyondHorizon(Exception):
    """The decision needs to know of an earlier run that was not looked at: look at `run` too, and decide again."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run} is not in the state that the decision was asked of")
