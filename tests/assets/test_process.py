"""Model stages run as process groups that end with whoever started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from assets import process
from assets.process import StageError, run_command, warm_stages
from text2sql.config import REPOSITORY

SLEEPERS = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    "print('child', child.pid, flush=True); time.sleep(300)"
)


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether the process ends within `seconds` (a zombie has ended)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_output_is_forwarded_line_by_line():
    """What the stage prints is said as it comes, errors included."""
    said: list[str] = []

    run_command([sys.executable, "-c", "import sys; print('one'); print('två', file=sys.stderr)"], said.append)

    assert {"one", "två"} == set(said)


def test_a_failing_stage_raises_with_its_last_lines():
    """The user sees what the process said last, and its exit status."""
    with pytest.raises(StageError, match=r"exit status 3(.|\n)*no such table"):
        run_command([sys.executable, "-c", "print('no such table'); raise SystemExit(3)"], lambda line: None)


def test_a_stage_that_is_stopped_takes_its_children_with_it():
    """Cancelling ends the whole group: the stage and whatever it started."""
    pids: list[int] = []

    def stop_at_first_line(line: str) -> None:
        pids.append(int(line.split()[1]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", SLEEPERS], stop_at_first_line, seconds_to_stop=5)

    assert gone(pids[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is a feature of Linux")
def test_a_stage_does_not_outlive_a_parent_that_is_killed_outright(tmp_path: Path):
    """After kill -9 of the lineage its stage process is gone too."""
    parent_program = (
        "import sys; from assets.process import run_command\n"
        "run_command([sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(300)'],"
        " lambda line: print(line, flush=True))"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    stage = int(parent.stdout.readline())

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    assert gone(stage)


FORKED = pytest.mark.skipif(
    sys.platform != "linux" or Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists(),
    reason="stages are forked on Linux without a GPU only",
)
WARM_STAGE = """
import os, subprocess, sys, time

def main(arguments):
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])
    print('torch' in sys.modules, os.getpid(), child.pid, *arguments, flush=True)
    if arguments == ['fail']:
        child.kill()
        print('no such table', file=sys.stderr)
        return 3
    time.sleep(300)
"""
LINEAGE = """
import sys
from assets.process import run_warm, warm_stages

def say(line):
    print(line, flush=True)
    if sys.argv[1] == 'stop':
        raise KeyboardInterrupt

if __name__ == '__main__':
    with warm_stages():
        run_warm('warm_stage', [sys.argv[1]], say, seconds_to_stop=5)
"""


@pytest.fixture
def start_warm_lineage(tmp_path: Path):
    """Starts a process that runs one warm stage; gives the process and the first line of the stage."""
    (tmp_path / "warm_stage.py").write_text(WARM_STAGE)
    (tmp_path / "lineage.py").write_text(LINEAGE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}

    def start(how: str) -> tuple[subprocess.Popen[str], list[str]]:
        parent = subprocess.Popen(
            [sys.executable, str(tmp_path / "lineage.py"), how],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout is not None
        for line in parent.stdout:
            if line.startswith(("True", "False")):
                return parent, line.split()
        raise AssertionError(parent.communicate()[1])

    return start


@FORKED
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_warm_stage_starts_with_torch_loaded_and_ends_with_its_lineage(start_warm_lineage, how: str):
    """A forked stage need not import torch; kill -9 and Ctrl-C of the lineage end it like any other."""
    parent, (torch_loaded, stage, child, _) = start_warm_lineage(how)
    if how == "kill":
        os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    assert "True" == torch_loaded
    assert gone(int(stage))
    assert gone(int(child))


@FORKED
def test_a_failing_warm_stage_raises_with_its_last_lines(start_warm_lineage):
    """As from a process of its own: exit status and last lines."""
    parent, _ = start_warm_lineage("fail")
    errors = parent.communicate()[1]

    assert "exit status 3" in errors
    assert "no such table" in errors


def test_no_stage_is_forked_where_a_gpu_driver_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A library that asks for devices while it is imported would break the fork: each stage imports for itself."""
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(process, "_GPU_DRIVERS", (str(driver),))

    with warm_stages():
        assert process._warm is None
