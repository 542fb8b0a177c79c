"""A store that hangs: nothing is marked lost, nobody waits for ever, and no thread keeps a process from its end."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.messages.kinds import of_kind
from tests.servers.hung_file import hung_file

from weir.errors import Misconfigured, Retryable
from weir.store.local import LocalFiles
from weir.store.store import Store
from weir.store.worker_threads import in_parallel, in_time, is_abandoned


@pytest.fixture
def impatient(tmp_path):
    """A store that waits for a fifth of a second."""
    opened = Store.open(str(tmp_path / "store"), {"timeout": 0.2})
    opened.initialise()
    opened.create("a/file", b"content")
    return opened


@pytest.fixture
def file(impatient, tmp_path):
    return tmp_path / "store" / "a" / "file"


def test_a_read_that_hangs_is_given_up_and_not_taken_for_a_loss(impatient, file):
    with hung_file(file), pytest.raises(Retryable, check=of_kind("store.failed")):
        impatient.read("a/file")
    assert impatient.read("a/file") == b"content"


def test_a_pipe_in_the_place_of_a_file_has_no_size_and_is_not_taken_for_a_loss(impatient, file):
    with hung_file(file), pytest.raises(Retryable, match="is a pipe or a device, expected a file"):
        impatient.size("a/file")
    assert impatient.size("a/file") == 7


def test_what_waits_is_let_go_when_the_file_answers_again(impatient, file):
    with hung_file(file):
        with pytest.raises(Retryable):
            impatient.read("a/file")
        waiting = [each for each in threading.enumerate() if getattr(each, "is_abandoned", False)]
        assert waiting
    for hand in waiting:
        hand.join(60)
        assert not hand.is_alive()


@pytest.mark.parametrize("given", [0, -1, 86_401, float("inf"), float("nan"), "300", True, None])
def test_the_time_limit_is_a_number_of_seconds_of_at_most_a_day(tmp_path, given):
    with pytest.raises(Misconfigured, check=of_kind("store.time_limit_wrong", option="timeout")):
        Store.open(str(tmp_path), {"timeout": given})


def test_a_signal_is_handled_while_the_store_hangs(tmp_path, file):
    """So that Airflow's time limits and kills reach a task."""

    class TimeIsUp(Exception):
        pass

    def stop(_number, _frame):
        raise TimeIsUp

    patient = Store.open(str(tmp_path / "store"))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with hung_file(file), pytest.raises(TimeIsUp):  # noqa: PT012  # the timer is part of it
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            patient.read("a/file")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert patient.read("a/file") == b"content"


HANGING = """
import sys
from weir.errors import Retryable
from weir.store.worker_threads import in_parallel
from weir.store.store import Store
store = Store.open(sys.argv[1], {"timeout": 0.1})
try:
    in_parallel(store.read, ["a/file"] * 4, 4)
except Retryable:
    print("given up")
"""


def test_a_process_ends_though_its_reads_hang(tmp_path, file):
    with hung_file(file):
        ended = subprocess.run(
            [sys.executable, "-c", HANGING, str(tmp_path / "store")], check=True, stdout=subprocess.PIPE, timeout=120
        )
    assert ended.stdout == b"given up\n"


def test_a_write_that_was_given_up_takes_no_effect_later(tmp_path, file):
    """Such as the record of a run, which another attempt may have replaced meanwhile."""
    files, may_go_on, hands = LocalFiles(tmp_path / "store"), threading.Event(), []

    def late(action):
        def order():
            hands.append(threading.current_thread())
            may_go_on.wait(60)
            assert is_abandoned()
            action()

        return order

    for action in (lambda: files.create("b", b"late"), lambda: files.replace("a/file", b"late")):
        with pytest.raises(TimeoutError):
            in_time(late(action), 0.05)
    may_go_on.set()
    for hand in hands:
        hand.join(60)
        assert not hand.is_alive()
    assert sorted(each.name for each in (tmp_path / "store").iterdir()) == ["a", "weir-store.json"]
    assert file.read_bytes() == b"content"


def test_a_child_of_a_fork_has_hands_of_its_own(impatient):
    impatient.read("a/file")
    child = os.fork()
    if child == 0:
        os._exit(0 if impatient.read("a/file") == b"content" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_answers_come_in_the_order_of_the_questions():
    assert in_parallel(lambda number: number * 2, range(100), 16) == list(range(0, 200, 2))
    assert in_parallel(str, [], 16) == []


def test_the_first_error_leaves_the_rest_unasked():
    asked = []

    def ask(number):
        asked.append(number)
        raise Retryable(f"no answer to {number}")

    with pytest.raises(Retryable, match="no answer to"):
        in_parallel(ask, range(1000), 2)
    assert len(asked) < 1000
