"""The local stack's executor: an idle scheduler looks for work less often, a busy one as often as it is set to."""

from types import SimpleNamespace

from weir_dev.stack import local_executor
from weir_dev.stack.local_executor import PAUSE_SECONDS, SETTLED_SECONDS, LocalExecutor


def test_the_scheduler_is_paused_only_after_a_while_without_a_task(monkeypatch):
    now, pauses = [100.0], []
    monkeypatch.setattr(local_executor, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pauses.append))
    executor = LocalExecutor(parallelism=1)
    executor.start()
    try:
        executor.sync()
        assert pauses == []
        now[0] += SETTLED_SECONDS + 1
        executor.sync()
        assert pauses == [PAUSE_SECONDS]

        executor.running.add("a task")
        executor.sync()
        executor.running.clear()
        executor.sync()
        assert pauses == [PAUSE_SECONDS]
        now[0] += SETTLED_SECONDS + 1
        executor.sync()
        assert pauses == [PAUSE_SECONDS] * 2
    finally:
        executor.end()
