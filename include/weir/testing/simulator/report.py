"""What a person is told of a finding. Invariant: it holds all that is needed to see it again."""

from __future__ import annotations

from collections.abc import Sequence

from weir.testing.simulator.dataflows import Scene
from weir.testing.simulator.events import Event, events_to_text
from weir.testing.simulator.shrink import shrunk
from weir.testing.simulator.simulate import USUAL, Finding, Shares, scene_and_events, simulate


def report_of(seed: int, finding: Finding, *, shrink: bool = True, shares: Shares = USUAL) -> str:
    """The seed, what is wrong, the dataflow, and the events that lead there."""
    scene, events = scene_and_events(seed, shares)
    if shrink:
        events = shrunk(events, lambda fewer: _breaks(scene, fewer, finding.invariant))
        finding = simulate(scene, events) or finding
    when = "while all healed" if finding.behind is None else f"at event {finding.behind + 1}"
    again = f"python -m weir.testing.simulator --seed {seed}{_as(shares)}"
    return "\n".join(
        [
            f"# seed {seed}: {finding.invariant.replace('_', ' ')}",
            f"# {' '.join(finding.found.split())} ({when})",
            str(scene),
            events_to_text(events),
            f"# see it again: {again} (or --replay a file with these lines)",
            "",
        ]
    )


def _as(shares: Shares) -> str:
    return "" if shares == USUAL else f" --stateful {shares.stateful:g} --gated {shares.gated:g}"


def _breaks(scene: Scene, events: Sequence[Event], invariant: str) -> bool:
    finding = simulate(scene, events)
    return finding is not None and finding.invariant == invariant
