import os
import signal
import subprocess
import sys
import time

import pytest
from tests.servers.small_disk import small_disk, why_no_own_mounts, with_own_mounts

from weir.errors import Misconfigured


@pytest.fixture(name="disk")
def folder(tmp_path):
    """Where to mount; the name says that the test has to run where mounting is possible."""
    return tmp_path / "disk"


def test_it_is_as_small_as_it_was_asked_for_and_can_be_filled_and_emptied(disk):
    with small_disk(disk, megabytes=2) as mounted:
        assert mounted.free_bytes == 2 * 2**20
        mounted.fill(leave=8192)
        assert mounted.free_bytes == 8192
        mounted.fill()
        assert mounted.free_bytes == 0
        with pytest.raises(OSError, match="No space left on device"):
            (mounted.path / "file").write_bytes(b"x")
        mounted.make_room()
        assert mounted.free_bytes == 2 * 2**20
    assert not os.path.ismount(disk)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.servers.small_disk import small_disk
with small_disk(Path(sys.argv[1]), 1):
    print("mounted", os.path.ismount(sys.argv[1]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_stays_mounted_when_its_process_is_killed(disk):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(disk)], check=False, stdout=subprocess.PIPE, timeout=120)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"mounted True\n")
    deadline = time.monotonic() + 60
    while os.path.ismount(disk):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_may_not_mount_is_told_what_is_needed(tmp_path):
    refused = pytest.raises(Misconfigured, match="need root, or user namespaces: `unshare --user")
    with refused, small_disk(tmp_path / "disk", megabytes=-1):
        pass


@pytest.mark.skipif(bool(why_no_own_mounts()), reason=f"no namespaces for this user here: {why_no_own_mounts()}")
def test_a_command_may_mount_in_namespaces_of_its_own_and_nobody_else_sees_it(tmp_path):
    text = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "input()")
    command = with_own_mounts([sys.executable, "-c", text, str(tmp_path / "disk")])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "mounted True\n"
        assert not os.path.ismount(tmp_path / "disk")
        child.communicate("\n", timeout=60)
    assert child.returncode == 0
