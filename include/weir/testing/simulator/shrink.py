"""Making a schedule that breaks an invariant short (Zeller's delta debugging).

Invariant: what is answered breaks the same invariant as what was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from weir.testing.simulator.events import Event
from weir.testing.simulator.process import NO_FATE

Breaks = Callable[[Sequence[Event]], bool]


def shrunk(events: Sequence[Event], breaks: Breaks) -> tuple[Event, ...]:
    """As few events as can be found by leaving some out, and as little as can be of what meets their processes."""
    found = _without_parts(tuple(events), breaks)
    while True:
        simpler = _simplified(found, breaks)
        if simpler == found:
            return found
        found = _without_parts(simpler, breaks)


def _without_parts(events: tuple[Event, ...], breaks: Breaks) -> tuple[Event, ...]:
    size = len(events)
    while size:
        events = _without(events, size, breaks)
        size //= 2
    return events


def _without(events: tuple[Event, ...], size: int, breaks: Breaks) -> tuple[Event, ...]:
    """Leave out each part of `size` events that nothing depends on."""
    at = 0
    while at < len(events):
        fewer = events[:at] + events[at + size :]
        if breaks(fewer):
            events = fewer
        else:
            at += size
    return events


def _simplified(events: tuple[Event, ...], breaks: Breaks) -> tuple[Event, ...]:
    for at in range(len(events)):
        for event in _simpler(events[at]):
            other = (*events[:at], event, *events[at + 1 :])
            if breaks(other):
                events = other
                break
    return events


def _simpler(event: Event) -> Iterator[Event]:
    if event.fate != NO_FATE:
        yield Event(event.verb, event.number, event.how)
    if event.number:
        yield Event(event.verb, 0, event.how, event.fate)
