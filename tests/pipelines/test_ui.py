"""The command that serves both UIs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from text2sql.config import REPOSITORY


def children_of(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(pid) for pid in listed.split()]


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, told that it serves."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", home)
    places = {
        "TEXT2SQL_ARTIFACTS": str(tmp_path / "artifacts"),
        "DAGSTER_HOME": str(home),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "pipelines", "ui"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **places}) as process:
        assert process.stdout is not None
        assert any("Ctrl-C ends both" in line for line in process.stdout)
        yield process


@pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")
def test_both_servers_end_with_the_command_however_often_it_is_told(ui: subprocess.Popen[str]):
    """A second Ctrl-C while it stops the first server must not leave the other one on its port."""
    servers = children_of(ui.pid)
    while ui.poll() is None:
        ui.send_signal(signal.SIGINT)
        time.sleep(0.05)

    assert 2 == len(servers)
    for server in servers:
        with pytest.raises(ProcessLookupError):
            os.killpg(server, 0)
