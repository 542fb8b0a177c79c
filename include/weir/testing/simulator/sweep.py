"""Many seeds, on all cores. Invariant: how they are divided changes nothing of what is found in each."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context

from weir.testing.simulator.simulate import USUAL, Finding, Shares, scene_and_events, simulate

CHUNK = 20
"""Seeds that a process is given at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """A seed that breaks an invariant."""

    seed: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Swept:
    """What came of many seeds; `seeds` are those that were simulated."""

    seeds: int
    findings: tuple[Found, ...]
    seconds: float


def sweep(seeds: Iterable[int], *, processes: int | None = None, most: int = 5, shares: Shares = USUAL) -> Swept:
    """Simulate seeds until all are done, or `most` have broken an invariant."""
    began = time.monotonic()
    done, findings = 0, list[Found]()
    # Not forked: the caller may have threads, and SQLite connections must not cross a fork.
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for chunk, found in pool.map(partial(_simulated, shares=shares), list(_chunks(seeds))):
            done += chunk
            findings += found
            if len(findings) >= most:
                pool.shutdown(cancel_futures=True)
                break
    return Swept(done, tuple(findings[:most]), time.monotonic() - began)


def _chunks(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    rest = iter(seeds)
    while chunk := tuple(islice(rest, CHUNK)):
        yield chunk


def _simulated(seeds: tuple[int, ...], shares: Shares) -> tuple[int, list[Found]]:
    gc.set_threshold(100_000, 20, 100)  # a simulation makes much that lives as long as it does
    findings = []
    for seed in seeds:
        finding = simulate(*scene_and_events(seed, shares))
        if finding is not None:
            findings.append(Found(seed, finding))
    return len(seeds), findings
