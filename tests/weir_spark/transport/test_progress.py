from __future__ import annotations

from dataclasses import dataclass

from weir_spark.transport.progress import ProgressLog


@dataclass
class Stage:
    stage_id: int
    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int
    done: bool


def test_many_updates_become_one_line_in_two_seconds() -> None:
    lines: list[str] = []
    now = [0.0]
    log = ProgressLog(lines.append, clock=lambda: now[0])
    for step in range(100):
        now[0] = step * 0.1
        log([Stage(1, 100, step, step * 2**20, done=False)], 2, "operation", done=False)
    assert len(lines) == 4
    assert lines[0] == "Spark: 0 of 1 stages done, 20 of 100 tasks done, 2 running, 20.0 MiB read"


def test_unchanged_progress_is_not_logged_again() -> None:
    lines: list[str] = []
    now = [0.0]
    log = ProgressLog(lines.append, clock=lambda: now[0])
    for second in range(0, 60, 3):
        now[0] = second
        log([Stage(1, 10, 5, 0, done=False)], 2, "operation", done=False)
        log(None, 0, "operation", done=True)
    assert len(lines) == 1
