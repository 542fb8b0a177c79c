"""What a stack has used: processor time, bytes, and Spark's own counts.

Invariant: a process that has ended is counted, by the one that waited for it: its parent's times include it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SETTLED_SECONDS = 2.0


@dataclass(frozen=True)
class Usage:
    """Up to now, in seconds and bytes.

    `cpu` is user and system time by the stack's component, tasks and what they start counting for the scheduler.
    `read` and `written` are what all processes asked of the system for files and pipes, cached or not. `machine` is the
    busy time of all processors, whoever used them.
    """

    at: float
    cpu: dict[str, float]
    read: int
    written: int
    machine: float

    @classmethod
    def of(cls, stack):
        """Look at all processes below the stack's components."""
        cpu, read, written = Counter(), 0, 0
        for component in stack.state.processes:
            if component.name == "keeper":
                continue
            for process in _tree(component.pid):
                with suppress(psutil.NoSuchProcess):
                    times, counters = process.cpu_times(), process.io_counters()
                    cpu[component.name] += times.user + times.system + times.children_user + times.children_system
                    read, written = read + counters.read_chars, written + counters.write_chars
        times = psutil.cpu_times()
        machine = times.user + times.nice + times.system + times.irq + times.softirq
        return cls(time.monotonic(), dict(cpu), read, written, machine)

    def since(self, before):
        """What was used after `before`."""
        cpu = {name: seconds - before.cpu.get(name, 0.0) for name, seconds in self.cpu.items()}
        return Usage(
            self.at - before.at,
            cpu,
            self.read - before.read,
            self.written - before.written,
            self.machine - before.machine,
        )

    @property
    def cpu_seconds(self):
        """Of all components."""
        return sum(self.cpu.values())


def await_settled(stack):
    """Wait until the stack has started and ended no process for a while: then nothing of a run is left."""
    pids, since = set(), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        time.sleep(0.2)
        now = {process.pid for component in stack.state.processes for process in _tree(component.pid)}
        if now != pids:
            pids, since = now, time.monotonic()


def _tree(pid):
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        return [*leader.children(recursive=True), leader]
    return []


class EventLogs:
    """The event logs of all Spark applications, those that still run too; each event is counted once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._seen = Counter()

    def settings(self) -> dict[str, str]:
        """What makes Spark write them."""
        return {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.folder.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            # What threads other than the task's read is not in Spark's counts.
            "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        }

    def news(self) -> dict[str, int]:
        """Applications, jobs, tasks, and bytes read, written and shuffled, since the last time."""
        counts = Counter(dict.fromkeys(("applications", "jobs", "tasks", "read", "written", "shuffled"), 0))
        for file in sorted(self.folder.iterdir()):
            # A finished application's log loses its suffix.
            name = file.name.removesuffix(".inprogress")
            with file.open("rb") as log:
                log.seek(self._seen[name])
                for line in log:
                    if not line.endswith(b"\n"):
                        break
                    self._seen[name] += len(line)
                    _count(json.loads(line), counts)
        return dict(counts)


def _count(event, counts):
    match event["Event"]:
        case "SparkListenerApplicationStart":
            counts["applications"] += 1
        case "SparkListenerJobStart":
            counts["jobs"] += 1
        case "SparkListenerTaskEnd":
            metrics = event.get("Task Metrics") or {}
            counts["tasks"] += 1
            counts["read"] += metrics.get("Input Metrics", {}).get("Bytes Read", 0)
            counts["written"] += metrics.get("Output Metrics", {}).get("Bytes Written", 0)
            counts["shuffled"] += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)


def left_in(folder: Path) -> Counter:
    """How many files a folder holds, and how many bytes."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()] if folder.exists() else []
    return Counter(files=len(sizes), bytes=sum(sizes))
