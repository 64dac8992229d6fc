"""Run a model stage as its own process, so that torch, vLLM and TRL never load in the Dagster process."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from text2sql.config import REPOSITORY
from text2sql.errors import Text2SqlError

_GRACE_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
# For trainings on a CPU: glibc gives freed memory back to the kernel eagerly, which costs small ones a good part of their
# time; and OpenMP threads that spin while they wait make two jobs on the same cores nearly stand still.
_CPU_TRAINING = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "OMP_WAIT_POLICY": "PASSIVE",
}


class StageError(Text2SqlError):
    """A stage's process ended with an error; its last lines are the message."""


def run_stage(
    experiment: str,
    key: str,
    lineage_run: str,
    dagster_run: str,
    say: Callable[[str], None],
    seconds_to_stop: float = _GRACE_SECONDS,
) -> None:
    """
    `python -m stages EXPERIMENT KEY` in a process group of its own, its output forwarded line by line. When this
    process is stopped or fails, the whole group is: first asked, then killed. Should this process be killed outright,
    the kernel ends the child (Linux). Raises StageError with the last lines.
    """
    command = [
        sys.executable,
        "-m",
        "stages",
        experiment,
        key,
        "--lineage-run",
        lineage_run,
        "--dagster-run",
        dagster_run,
    ]
    run_command(command, say, seconds_to_stop)


def run_command(command: Sequence[str], say: Callable[[str], None], seconds_to_stop: float = _GRACE_SECONDS) -> None:
    environment = {**_CPU_TRAINING, **os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    last: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-19:], line.rstrip()]
            say(line.rstrip())
        status = process.wait()
    except BaseException:
        stop_group(process, seconds_to_stop)
        raise
    if status:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        raise StageError(f"`{' '.join(command[1:5])}` failed ({how}). Its last lines:\n" + "\n".join(last))


def stop_group(process: subprocess.Popen[str], seconds: float) -> None:
    """End a process and everything it started: SIGTERM to the group, SIGKILL to what is left after `seconds`."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies, so that a killed lineage leaves no stage behind (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
