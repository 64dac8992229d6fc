"""A guarded command and all that it starts end with their owner, however the owner ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from text2sql.engines.vllm_engine import GUARD

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
OWNER = """
import subprocess, sys, time
command = [sys.executable, sys.argv[1], sys.executable, "-c", sys.argv[2]]
guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
print(guard.pid, int(guard.stdout.readline()), flush=True)
time.sleep(600)
"""


def start(program: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(GUARD), sys.executable, "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def alive(group: int) -> list[int]:
    """Processes of the group that are not merely waiting to be collected."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def wait_until_gone(group: int) -> None:
    while alive(group):
        time.sleep(0.05)


def test_closing_the_input_ends_the_whole_group() -> None:
    """The owner's way to stop it: the command and what it started are gone when the guard is."""
    guard = start(FAMILY)
    grandchild = int(guard.stdout.readline())
    assert psutil.pid_exists(grandchild)
    guard.stdin.close()
    guard.wait()

    assert not alive(guard.pid)
    assert not psutil.pid_exists(grandchild)


def test_request_to_the_guard_itself_ends_the_group() -> None:
    """SIGTERM to the guard alone, as a process supervisor sends it, does not orphan the command."""
    guard = start(FAMILY)
    guard.stdout.readline()
    guard.terminate()
    guard.wait()

    assert not alive(guard.pid)


def test_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    """Also when the owner is killed with SIGKILL and can close nothing any more."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(GUARD), FAMILY], stdout=subprocess.PIPE)
    group, grandchild = map(int, owner.stdout.readline().split())
    assert grandchild in alive(group)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()

    wait_until_gone(group)
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_end_of_the_command_ends_what_it_left_behind() -> None:
    """A command that dies leaves no children running, and its exit code is the guard's."""
    guard = start(FAMILY.replace("time.sleep(600)\n", "sys.exit(7)\n"))
    guard.stdout.readline()

    assert guard.wait() == 7
    assert not alive(guard.pid)


def test_command_that_ignores_the_request_is_killed() -> None:
    """SIGTERM may be ignored by the command; SIGKILL after the grace time is not."""
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(600)"
    )
    guard = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(GUARD.parent)!r}); import guard; guard.GRACE_SECONDS = 0.3; "
            "sys.exit(guard.main(sys.argv[1:]))",
            *(sys.executable, "-c", stubborn),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    guard.stdout.readline()
    guard.stdin.close()
    guard.wait()

    assert not alive(guard.pid)
