"""Measurements as Markdown. Invariant: a ratio is of two runs of one round, its spread that of the rounds."""

from __future__ import annotations

from statistics import mean, median

NAMES = {
    "by_hand_connect": "by hand, Connect",
    "flights_connect_1": "Weir, Connect, 1 subtask",
    "flights_connect": "Weir, Connect, 12 regions",
    "one_application": "one application, spark-submit",
    "by_hand_submit": "by hand, spark-submit",
    "flights_submit_1": "Weir, spark-submit, 1 subtask",
    "flights_submit": "Weir, spark-submit, 12 regions",
}
REFERENCES = {
    "flights_connect_1": "by_hand_connect",
    "flights_connect": "by_hand_connect",
    "one_application": "by_hand_submit",
    "flights_submit_1": "by_hand_submit",
    "flights_submit": "by_hand_submit",
}
STEPS = {
    "start of the task": "Airflow's process, imports, registration",
    "begin": "inputs probed and leased, job described",
    "session": "Spark session made and ended (with spark-submit: the JVM)",
    "prepare": "settings, modules packed and shipped",
    "plan": "stage functions called, schema asked",
    "compute": "computed once for several outputs",
    "write": "computed, digested and written by Spark",
    "seal": "files read back, SHA-256",
    "commit": "inputs verified, manifest, ledger",
    "end of the task": "XCom, state sent to Airflow",
}


def tables(found) -> str:
    """All tables of `found`, a list of measurements."""
    return "\n".join(
        f"### {_title(copies)}\n\n{_times(some)}\n\n{_bytes(some)}\n\n{_steps(some)}\n"
        for copies in sorted({one["copies"] for one in found})
        if (some := [one for one in found if one["copies"] == copies])
    )


def _title(copies):
    return "One day of flights as it is" if copies == 1 else f"The same, each flight {copies} times"


def _times(found):
    rows = []
    for variant, of_variant in _by_variant(found):
        ratio = _ratios(found, variant, lambda one: one["seconds"])
        cpu_ratio = _ratios(found, variant, _net_cpu)
        rows.append(
            (
                NAMES[variant],
                str(of_variant[0]["airflow_tasks"]),
                _spread([one["seconds"] for one in of_variant]),
                ratio,
                _spread([one["with_scheduling"] for one in of_variant]),
                _spread([_net_cpu(one) for one in of_variant]),
                cpu_ratio,
                str(len(of_variant)),
                f"{median(one['others'] / one['window'] for one in of_variant):.2f}",
                f"{median(one['load'] for one in of_variant):.1f}",
            )
        )
    header = "variant | tasks | seconds | ratio | with scheduling | CPU seconds | ratio | rounds | others | load"
    return _markdown(header, rows)


def _bytes(found):
    rows = []
    for variant, of_variant in _by_variant(found):
        spark = {key: median(one["spark"][key] for one in of_variant) for key in of_variant[0]["spark"]}
        left = {key: median(one["left"][key] for one in of_variant) for key in ("files", "bytes")}
        read, written = (median(one[f"process_{kind}"] for one in of_variant) for kind in ("read", "written"))
        rows.append(
            (
                NAMES[variant],
                *(f"{spark[key]:.0f}" for key in ("applications", "jobs", "tasks")),
                *(_size(spark[key]) for key in ("read", "shuffled", "written")),
                _size(left["bytes"]),
                f"{left['files']:.0f}",
                _size(read),
                _size(written),
            )
        )
    header = (
        "variant | Spark applications | jobs | tasks | Spark read | shuffled | written | left | files left | "
        "all processes read | wrote"
    )
    return _markdown(header, rows)


def _steps(found):
    variants = [variant for variant, some in _by_variant(found) if some[0]["regions"]]
    if not variants:
        return ""
    rows = []
    means = {
        variant: {step: median(_mean(one, step) for one in found if one["variant"] == variant) for step in STEPS}
        for variant in variants
    }
    totals = {variant: sum(steps.values()) for variant, steps in means.items()}
    for step, words in STEPS.items():
        shares = (f"{means[each][step]:.2f} ({100 * means[each][step] / totals[each]:.0f} %)" for each in variants)
        rows.append((f"{step}: {words}", *shares))
    rows.append(("all", *(f"{totals[each]:.2f}" for each in variants)))
    header = " | ".join(["seconds of a region's task", *(NAMES[variant] for variant in variants)])
    return _markdown(header, rows)


def _by_variant(found):
    for variant in NAMES:
        some = [one for one in found if one["variant"] == variant]
        if some:
            yield variant, some


def _mean(one, step):
    """Of all regions of a run."""
    return mean(steps[step] for steps in one["regions"].values())


def _net_cpu(one):
    """What an idle stack would not have used."""
    return sum(one["cpu"].values()) - one["idle"] * one["window"]


def _ratios(found, variant, value):
    reference = REFERENCES.get(variant)
    of_reference = {one["round"]: value(one) for one in found if one["variant"] == reference}
    ratios = [
        value(one) / of_reference[one["round"]]
        for one in found
        if one["variant"] == variant and one["round"] in of_reference
    ]
    return _spread(ratios, 2) if ratios else "1" if variant in REFERENCES.values() else "-"


def _spread(values, digits=1):
    low, high = min(values), max(values)
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({low:.{digits}f}-{high:.{digits}f})"


def _size(count):
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def _markdown(header, rows):
    columns = header.count("|") + 1
    lines = [f"| {header} |", "|" + "---|" * columns, *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
