"""
Run a command that must not outlive its owner: `python guard.py COMMAND ...`

The guard leads a process group of its own. When its standard input ends (the owner closed it, or died in whatever way,
SIGKILL included) or when the command exits, the whole group is ended: first asked, after ten seconds killed. This also
reaches the processes that the command started itself, such as vLLM's engine core. Linux only, as vLLM is.

Runs as a plain file and imports nothing heavy, so that it is up at once.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    # Orphans of the command come to this process, so that none is left as somebody else's zombie.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, _asked_to_end)
    with suppress(KeyboardInterrupt):
        select.select([sys.stdin, os.pidfd_open(child.pid)], [], [])
    status = child.poll() or 0
    end_group()
    return status


def _asked_to_end(*_: object) -> None:
    raise KeyboardInterrupt


def end_group() -> None:
    """Ask every other process of this group to end; kill those that are left after a while."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process is in the group too
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and others():
        time.sleep(0.05)
    for process in others():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while others():
        time.sleep(0.01)
    with suppress(ChildProcessError):  # none left to be waited for
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def others() -> list[int]:
    """Living processes of this group but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                # pid (command) state parent group ...; the command may hold spaces and brackets
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:  # it ended meanwhile
                continue
            if int(group) == os.getpgrp() and state != "Z":
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
