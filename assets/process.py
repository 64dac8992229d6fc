"""Run a model stage as its own process, so that torch, vLLM and TRL never load in the Dagster process."""

import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Protocol

from text2sql.config import REPOSITORY
from text2sql.errors import Text2SqlError

_GRACE_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
# For trainings on a CPU: glibc gives freed memory back to the kernel eagerly, which costs small ones a good part of their
# time. OpenMP threads that wait for each other after each small kernel halve the speed when they sleep at once, and take the
# core from a job beside them when they spin as long as libgomp would: docs/experiments.md has the figures.
_STAGE_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "GOMP_SPINCOUNT": "100000",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # they would fill the run's log
    "TOKENIZERS_PARALLELISM": "false",
}

_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")

_warm: ForkServerContext | None = None


class StageError(Text2SqlError):
    """A stage's process ended with an error; its last lines are the message."""


class Running(Protocol):
    """A stage's process as `follow` sees it: subprocess.Popen, or a child of the warm process."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Exit status; raises subprocess.TimeoutExpired."""


@contextmanager
def warm_stages() -> Iterator[None]:
    """
    Within it `run_stage` forks each stage off one process that has imported torch, Transformers and TRL already: a
    stage starts at once instead of after 5 to 20 seconds. Stages stay processes of their own. On Linux without a GPU
    driver only: elsewhere such a fork is not safe, and with a GPU a stage is long; there it changes nothing.
    """
    global _warm
    if sys.platform != "linux" or any(map(os.path.exists, _GPU_DRIVERS)):
        yield
        return
    _warm = multiprocessing.get_context("forkserver")
    _warm.set_forkserver_preload(["stages.preload"])
    before = dict(os.environ)
    os.environ.update({**_STAGE_ENVIRONMENT, **before})
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield
    finally:
        _warm = None


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
    arguments = [experiment, key, "--lineage-run", lineage_run, "--dagster-run", dagster_run]
    if _warm is None:
        run_command([sys.executable, "-m", "stages", *arguments], say, seconds_to_stop)
    else:
        run_warm("stages.__main__", arguments, say, seconds_to_stop)


def run_warm(
    module: str, arguments: Sequence[str], say: Callable[[str], None], seconds_to_stop: float = _GRACE_SECONDS
) -> None:
    """`main(arguments)` of `module` in a child of the warm process, as `run_command` runs a command."""
    assert _warm is not None
    reader, writer = _warm.Pipe(duplex=False)
    environment = {**_STAGE_ENVIRONMENT, **os.environ}
    child = _warm.Process(target=_in_child, args=(module, list(arguments), writer, environment))
    child.start()
    writer.close()
    with reader, os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace") as lines:
        follow(
            _Forked(child), lines, f"{module.removesuffix('.__main__')} {' '.join(arguments[:2])}", say, seconds_to_stop
        )


class _Forked:
    def __init__(self, child: BaseProcess) -> None:
        assert child.pid is not None
        self.child, self.pid = child, child.pid

    def wait(self, timeout: float | None = None) -> int:
        self.child.join(timeout)
        if self.child.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.child.name), timeout or 0.0)
        return self.child.exitcode


def _in_child(module: str, arguments: list[str], output: Connection, environment: dict[str, str]) -> None:
    os.setsid()
    threading.Thread(target=_die_with_lineage, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(REPOSITORY)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.exit(importlib.import_module(module).main(arguments))


def _die_with_lineage() -> None:
    """Wait until the process that started the lineage is gone, then end this stage and all it started."""
    lineage = multiprocessing.parent_process()
    assert lineage is not None
    wait([lineage.sentinel])
    os.killpg(0, signal.SIGKILL)


def run_command(command: Sequence[str], say: Callable[[str], None], seconds_to_stop: float = _GRACE_SECONDS) -> None:
    environment = {**_STAGE_ENVIRONMENT, **os.environ, "PYTHONUNBUFFERED": "1"}
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
    assert process.stdout is not None
    with process.stdout as lines:
        follow(process, lines, " ".join(command[1:5]), say, seconds_to_stop)


def follow(
    process: Running, lines: Iterable[str], name: str, say: Callable[[str], None], seconds_to_stop: float
) -> None:
    """Say what the process prints until it ends; StageError with its last lines when it fails. Stops it with this one."""
    last: list[str] = []
    try:
        for line in lines:
            last = [*last[-19:], line.rstrip()]
            say(line.rstrip())
        status = process.wait()
    except BaseException:
        stop_group(process, seconds_to_stop)
        raise
    if status:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        raise StageError(f"`{name}` failed ({how}). Its last lines:\n" + "\n".join(last))


def stop_group(process: Running, seconds: float) -> None:
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
