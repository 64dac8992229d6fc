"""Dagster's event log under the shipped settings."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import dagster as dg

from pipelines.definitions import defs
from text2sql.config import REPOSITORY

STEPS = 60
RUNS_AT_A_TIME = 2
ONE_RUN = f"""
import sys
import dagster as dg
from pipelines.definitions import defs
from pipelines.home import dagster_instance
from text2sql.config import Settings

def small(number):
    @dg.asset(name=f"small_{{number}}", pool=None if number % 10 else "small")
    def asset(context):
        context.log.info("at work")
    return asset

shipped = dg.Definitions(assets=[small(number) for number in range({STEPS})], executor=defs.executor)
print("ready", flush=True)
sys.stdin.readline()
with dagster_instance(Settings.from_environment()) as instance:
    run = shipped.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    print(run.run_id, len([event for event in run.all_events if event.is_step_success]))
"""


def test_many_small_steps_in_as_many_runs_as_the_settings_allow_find_the_event_log_free(tmp_path: Path):
    """
    Case da-event-log-locked: the shipped settings let two runs go on at a time, with one step at a time each. Two runs of
    60 steps that share a new home and a pool, started together, end with every event written and the databases sound.
    """
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path)
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RUN],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(tmp_path / f"{number}.log").open("w"),  # a pipe that nobody reads would hold a run up
            text=True,
        )
        for number in range(RUNS_AT_A_TIME)
    ]
    for run in runs:
        assert run.stdout is not None
        assert "ready\n" == run.stdout.readline()
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    ended = [(run.communicate()[0], (tmp_path / f"{number}.log").read_text()) for number, run in enumerate(runs)]

    assert defs.executor is dg.in_process_executor
    for output, errors in ended:
        assert "database is locked" not in errors
        assert str(STEPS) == output.split()[-1], errors
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert RUNS_AT_A_TIME == instance.get_concurrency_config().run_queue_config.max_concurrent_runs
        assert {dg.DagsterRunStatus.SUCCESS} == {run.status for run in instance.get_runs()}
        for output, _ in ended:
            events = instance.all_logs(output.split()[0], of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
            assert STEPS == len(events)
    databases = list(tmp_path.rglob("*.db"))
    assert databases
    assert {"ok"} == {sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone()[0] for path in databases}
