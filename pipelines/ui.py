"""Serve the Dagster and MLflow UIs side by side until Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

from assets.process import stop_group
from pipelines.disks import warn_of_network_disks
from pipelines.home import dagster_instance
from stages.tracking import DAGSTER_ADDRESS, UI_ADDRESS, check
from text2sql.config import REPOSITORY, Settings
from text2sql.errors import Text2SqlError


def serve(settings: Settings) -> int:
    """
    `dagster dev` (with its daemon) and, for a local store, `mlflow server`; both end together, with all their children.
    Raises when one cannot start (a port in use, for example).
    """
    warn_of_network_disks(settings)
    check(settings)
    dagster_instance(settings).dispose()  # its databases are there before the server, its daemon and a run open them
    servers = {
        "Dagster": _start(
            settings, [*_module("dagster"), "dev", "-m", "pipelines.definitions", "-p", _port(DAGSTER_ADDRESS)]
        )
    }
    remote = settings.mlflow_uri.startswith(("http://", "https://"))
    if not remote:
        store = ["--backend-store-uri", settings.mlflow_uri]
        servers["MLflow"] = _start(
            settings, [*_module("mlflow"), "server", *store, "--port", _port(UI_ADDRESS), "--workers", "1"]
        )
    print(f"Dagster: {DAGSTER_ADDRESS}    MLflow: {settings.mlflow_uri if remote else UI_ADDRESS}    Ctrl-C ends both.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            for name, process in servers.items():
                if process.poll() is not None:
                    raise Text2SqlError(f"{name} ended (status {process.returncode}); its last lines above say why.")
            time.sleep(0.5)
    finally:
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_IGN)  # a second Ctrl-C must not leave one of them behind
        for process in servers.values():
            stop_group(process, seconds=10)


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def _port(address: str) -> str:
    return address.rsplit(":", 1)[1]


def _start(settings: Settings, command: list[str]) -> subprocess.Popen[str]:
    """In a group of its own, with the one Dagster home: without it Dagster would serve an empty temporary one."""
    environment = {**os.environ, "DAGSTER_HOME": str(settings.dagster_home)}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, start_new_session=True)
