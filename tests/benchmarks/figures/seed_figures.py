"""The figures of the papers that Weir comes from, with Weir's own measurements, as charts and as Markdown.

Invariant: a figure is drawn from kept results and from nothing else; what others have measured stands here, with where
it was published. `snapshots.json`, `failures.json` and `alignment.json` hold lists of measurements, which
`test_figures.py` and `test_alignment.py` write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from line_chart import Axis, Chart, Series, decades

Measurements = list[dict[str, Any]]

MODES = {
    "first": "Weir: first epoch",
    "full": "Weir: full",
    "incremental": "Weir: incremental",
    "blind": "Weir: incremental, blind",
}
ROCKSDB_FIRST = ((0.154, 0.80), (0.665, 1.95))
"""GB and seconds of the first checkpoint, all files new: Flink 2.3, RocksDB, values of 200 bytes, two cores."""
ROCKSDB_INCREMENTAL = ((0.154, 0.07), (0.665, 0.18))
"""1 % of the keys updated; the middles of 40 to 100 ms and of 110 to 250 ms. A compaction made it 0.21 and 0.38 s."""
ALIGNMENT_SECONDS = 1.3
"""Carbone et al. 5.1.2: the mean of all full snapshots in five deployments of 100 to 500 GB, parallelism 70."""

SUBTASKS = Axis("parallelism", 1, 128, tuple((2.0**each, f"{2**each}") for each in range(8)), is_log=True)

ARMS = {"region": "Weir, failover=region", "full": "Weir, failover=full", "plain": "Airflow, retries"}


def snapshot_charts(found: Measurements) -> dict[str, Chart]:
    """Figure 9 of the paper, by file name: duration against size, waiting against size, and against parallelism."""
    sizes = Axis("size of the state, GB", 0.01, 1000.0, decades(-2, 3), is_log=True)
    seconds = Axis("seconds", 0.01, 1000.0, decades(-2, 3), is_log=True)
    by_size = [one for one in found if one["subtasks"] == 1 and one["mode"] in MODES]
    durations = [
        Series(name, _points(by_size, mode, lambda one: median(one["seconds"]))) for mode, name in MODES.items()
    ]
    theirs = [
        Series("RocksDB: first checkpoint", ROCKSDB_FIRST, is_dashed=True),
        Series("RocksDB: incremental", ROCKSDB_INCREMENTAL, is_dashed=True),
    ]
    waits = Axis("seconds", 0.001, 10.0, decades(-3, 1), is_log=True)
    parallel = [one for one in found if one["mode"] == "parallel"]
    return {
        "snapshot-duration": Chart(
            "Duration of a snapshot, 1 % of the keys changed", sizes, seconds, (*durations, *theirs)
        ),
        "waiting-by-size": Chart(
            "Waiting time of an attempt, by size of the state",
            sizes,
            waits,
            (Series("Weir: median of attempts", _points(by_size, "incremental", lambda one: median(one["waited"]))),),
        ),
        "waiting-by-parallelism": Chart(
            "Waiting time of an attempt, by parallelism",
            SUBTASKS,
            waits,
            (Series("Weir: median", _waits(parallel, median)), Series("Weir: longest", _waits(parallel, max))),
        ),
    }


def alignment_charts(found: Measurements) -> dict[str, Chart]:
    """Figure 9 (b, c) of the paper: alignment against parallelism, and against the number of shuffles, by file name."""
    if not found:
        return {}
    seconds = Axis("seconds", 0.01, 100.0, decades(-2, 2), is_log=True)
    by_parallelism = [one for one in found if one["shuffles"] == 1]
    widest = max((one["parallelism"] for one in found if one["shuffles"] > 1), default=1)
    by_shuffles = [one for one in found if one["parallelism"] == widest]
    most = max(one["shuffles"] for one in found)
    shuffles = Axis("shuffles", 0, most + 1, tuple((float(each), str(each)) for each in range(1, most + 1)))
    return {
        "alignment-by-parallelism": Chart(
            "Alignment of an epoch with one shuffle, by parallelism",
            SUBTASKS,
            seconds,
            (
                Series("Weir: median of epochs", _totals(by_parallelism, "parallelism", median)),
                Series("Weir: longest", _totals(by_parallelism, "parallelism", max)),
                Series("Flink 1.2: mean", ((70.0, ALIGNMENT_SECONDS),), is_dashed=True),
            ),
        ),
        "alignment-by-shuffles": Chart(
            f"Alignment of an epoch at parallelism {widest}, by shuffles",
            shuffles,
            seconds,
            (
                Series("Weir: median of epochs", _totals(by_shuffles, "shuffles", median)),
                Series("Weir: longest", _totals(by_shuffles, "shuffles", max)),
            ),
        ),
    }


def alignment_table(found: Measurements) -> str:
    """The measurements behind the charts of alignment."""
    rows = [
        (
            str(one["parallelism"]),
            str(one["shuffles"]),
            str(len(one["seconds"])),
            "; ".join(_spread(each, 2) for each in zip(*one["seconds"], strict=True)),
            _spread([sum(epoch) for epoch in one["seconds"]], 2),
            _spread([max(epoch) for epoch in one["computed"]], 2),
            f"{one['load']:.1f}",
            one["date"],
        )
        for one in sorted(found, key=lambda one: (one["shuffles"], one["parallelism"]))
    ]
    header = "parallelism | shuffles | epochs | alignment at each, s | in all, s | then computed, s | load | date"
    return _markdown(header, rows) + "\n"


def snapshot_tables(found: Measurements) -> str:
    """The measurements behind the charts of snapshots, with the published ones."""
    rows = [
        (
            MODES[one["mode"]],
            f"{one['keys']:,}",
            f"{_gigabytes(one):.3g}",
            f"{one['written'] / 1e6:,.1f}",
            _spread(one["seconds"], 2),
            _spread(one["waited"], 3),
            f"{one['load']:.1f}",
            one["date"],
        )
        for one in sorted(found, key=lambda one: (one["keys"], [*MODES, "parallel"].index(one["mode"])))
        if one["mode"] in MODES
    ]
    first = _markdown(
        "snapshot | keys | state, GB | written, MB | duration, s | waiting, s | load | date",
        rows,
    )
    parallel = [
        (
            str(one["subtasks"]),
            f"{_gigabytes(one):.3g}",
            str(len(one["waited"])),
            _spread(one["waited"], 3),
            f"{one['load']:.1f}",
            one["date"],
        )
        for one in sorted(found, key=lambda one: one["subtasks"])
        if one["mode"] == "parallel"
    ]
    second = _markdown("parallelism | state, GB | attempts | waiting, s | load | date", parallel)
    theirs = [
        ("Flink 2.3, RocksDB, first checkpoint", "0.154; 0.665", "0.80; 1.95", "measured on two cores, one run"),
        ("the same, incremental, 1 % changed", "0.154; 0.665", "0.04 to 0.10; 0.11 to 0.25", "the same"),
        ("the same, when RocksDB has compacted", "0.154; 0.665", "0.21; 0.38", "the same; 50 to 100 x the bytes"),
        ("Flink 2.3, RocksDB, full", "0.154", "0.27", "the same"),
        ("Flink, full; incremental", "1,000", "more than 180; 30", "Flink's blog, January 2018"),
        ("Flink 1.2, RocksDB, parallelism 70", "100 to 500", "alignment: 1.3 on average", "Carbone et al. 5.1.2"),
    ]
    third = _markdown("others | state, GB | s | source", theirs)
    return f"{first}\n\n{second}\n\n{third}\n"


def failure_charts(found: Measurements) -> dict[str, Chart]:
    """Time to finish against mean time between failures, by file name."""
    means = sorted({one["mean"] for one in found if one["mean"] is not None}, reverse=True)
    ticks = ((0.0, "no failures"), *((float(place), f"{mean:g}") for place, mean in enumerate(means, 1)))
    places = {None: 0.0, **{mean: float(place) for place, mean in enumerate(means, 1)}}
    longest = max((one["given_up_after"] for one in found), default=60.0)
    step = 20 if longest <= 160 else 60
    seconds = Axis(
        "time to finish, s", 0, longest, tuple((float(each), str(each)) for each in range(0, int(longest) + 1, step))
    )
    series = []
    for arm, name in ARMS.items():
        points = [(place, _finished(_of(found, arm, mean))) for mean, place in places.items() if _of(found, arm, mean)]
        series.append(Series(name, tuple(points)))
    failures = Axis("mean time between failures, s", 0, max(1, len(means)), tuple(ticks))
    return {"failures": Chart("Time to finish, by mean time between failures", failures, seconds, tuple(series))}


def failure_tables(found: Measurements) -> str:
    """The measurements behind the chart of failures."""
    means = sorted({one["mean"] or float("inf") for one in found}, reverse=True)
    rows = []
    for mean in means:
        cells = [_cell(_of(found, arm, None if mean == float("inf") else mean)) for arm in ARMS]
        rows.append(("never" if mean == float("inf") else f"{mean:g}", *cells))
    return _markdown(f"a task is killed every ... s | {' | '.join(ARMS.values())}", rows) + "\n"


def captions(found: Measurements) -> str:
    """When, under which load, and in how many runs it was measured."""
    dates = sorted({one["date"] for one in found})
    loads = [one["load"] for one in found]
    works = sorted({one["work"] for one in found})
    seeds = {one["seed"] for one in found if one["mean"] is not None}
    patience = {one["given_up_after"] for one in found}
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"{when}, load {min(loads):.1f} to {max(loads):.1f}; a stage works {_listed(works)} s; "
        f"sequences of failures: {len(seeds)}; given up after {_listed(sorted(patience))} s.\n"
        "In brackets: kills, and tries of tasks beyond the first."
    )


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{each:g}" for each in values)


def _points(
    found: Measurements, mode: str, value: Callable[[dict[str, Any]], float]
) -> tuple[tuple[float, float], ...]:
    return tuple(sorted((_gigabytes(one), value(one)) for one in found if one["mode"] == mode))


def _waits(found: Measurements, of: Callable[[Sequence[float]], float]) -> tuple[tuple[float, float], ...]:
    return tuple(sorted((float(one["subtasks"]), of(one["waited"])) for one in found))


def _totals(found: Measurements, by: str, of: Callable[[Sequence[float]], float]) -> tuple[tuple[float, float], ...]:
    """The seconds of all shuffles of an epoch together; a chart of logarithms has no zero."""
    return tuple(sorted((float(one[by]), max(0.01, of([sum(epoch) for epoch in one["seconds"]]))) for one in found))


def _gigabytes(one: dict[str, Any]) -> float:
    return float(one["bytes"]) / 1e9


def _of(found: Measurements, arm: str, mean: float | None) -> Measurements:
    return [one for one in found if one["arm"] == arm and one["mean"] == mean]


def _finished(some: Measurements) -> float | None:
    """The median; none if most runs were given up."""
    middle = median(float("inf") if one["seconds"] is None else one["seconds"] for one in some)
    return None if middle == float("inf") else middle


def _cell(some: Measurements) -> str:
    """Seconds, tries beyond the first, and kills that hit."""
    if not some:
        return ""
    seconds = _finished(some)
    again = _spread([one["tries"] - one["tasks"] for one in some], 0)
    kills = _spread([one["kills"] for one in some], 0)
    given_up = sum(one["seconds"] is None for one in some)
    told = "given up" if seconds is None else f"{seconds:.0f} s"
    told += f", {given_up} of {len(some)} given up" if given_up and len(some) > 1 else ""
    return f"{told} ({kills}, {again})"


def _spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = min(values), median(values), max(values)
    told = f"{middle:.{digits}f}"
    return told if len(values) == 1 or low == high else f"{told} ({low:.{digits}f}-{high:.{digits}f})"


def _markdown(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {header} |", "|" + "---|" * (header.count("|") + 1), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
