"""Run an experiment's lineage through Dagster in this process, with progress on the terminal."""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import dagster as dg
import psutil

from assets.process import warm_stages
from pipelines.definitions import defs
from pipelines.disks import warn_of_network_disks
from pipelines.home import dagster_instance
from pipelines.jobs import LINEAGE_JOB
from pipelines.terminal import terminal_logger
from stages.plan import Plan
from stages.tracking import check
from text2sql.config import Settings, load_profile

_OWNER_TAG = "owner_process"


def run_lineage(experiment: str, settings: Settings) -> int:
    """
    Materialize every stage of `experiment` that is not complete. The run shows in the Dagster UI like any other. Checks
    MLflow before it starts. Prints the report at the end; returns 1 when a stage failed.
    """
    profile = load_profile(experiment, settings.experiments)
    warn_of_network_disks(settings)
    plan = Plan(profile, settings)
    states = list(plan.states().values())
    if set(states) != {"complete"}:
        check(settings)
    print(f"{experiment}: {states.count('complete')} of {len(states)} stages are complete already", flush=True)
    started = time.monotonic()
    with ExitStack() as stack:
        if set(states) != {"complete"}:
            stack.enter_context(warm_stages())
        instance = stack.enter_context(dagster_instance(settings, experiment))
        close_dead_runs(instance)
        job = defs.resolve_job_def(LINEAGE_JOB).with_logger_defs({"console": terminal_logger})
        tags = {_OWNER_TAG: owner(), "experiment": experiment}
        result = job.execute_in_process(
            instance=instance,
            partition_key=experiment,
            asset_selection=[dg.AssetKey(key.split("/")) for key in plan.stages],  # not what other experiments have
            tags=tags,
            run_config={"loggers": {"console": {}}},
            raise_on_error=False,
        )
        failed = [event for event in result.all_events if event.is_step_failure]
    seconds = time.monotonic() - started
    if not result.success:
        print(f"\n{experiment} failed after {seconds:.0f} s at: {', '.join(str(event.step_key) for event in failed)}")
        print("Finished work is kept: the same command goes on from there.")
        return 1
    report = Plan(profile, settings).find("report")
    assert report is not None
    print("\n" + (report.path / "report.md").read_text(encoding="utf-8"))
    print(f"{experiment}: all stages complete in {seconds:.0f} s. Report: {report.path / 'report.md'}")
    print("Look next: `make ui` opens the lineage (Dagster, port 3000) and the runs (MLflow, port 5000).")
    return 0


def run_missing(
    experiments: Sequence[str], settings: Settings, run: Callable[[str, Settings], int] = run_lineage
) -> list[str]:
    """Run those that are not complete, one by one; returns those that failed, which keep no other from its turn."""
    failed = []
    for name in experiments:
        states = Plan(load_profile(name, settings.experiments), settings).states()
        if set(states.values()) == {"complete"}:
            print(f"{name}: complete already", flush=True)
        elif run(name, settings):
            failed.append(name)
    return failed


def owner() -> str:
    """This process, so that nobody mistakes a later one with the same number for it."""
    process = psutil.Process()
    return f"{socket.gethostname()}:{process.pid}:{process.create_time():.0f}"


def close_dead_runs(instance: dg.DagsterInstance) -> None:
    """
    Mark runs of this machine whose process is gone (kill -9, power cut) as failed and give their pool slots back. The
    daemon's run monitoring does this for runs launched from the UI; a run in a shell's own process has only this.
    """
    open_runs = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING]))
    for run in open_runs:
        tag = run.tags.get(_OWNER_TAG)
        if tag is None or _alive(tag):
            continue
        instance.report_run_failed(run, message="The process of this run is gone.")
        storage = instance.event_log_storage
        if storage.supports_global_concurrency_limits:
            storage.free_concurrency_slots_for_run(run.run_id)


def _alive(tag: str) -> bool:
    host, pid, created = tag.rsplit(":", 2)
    if host != socket.gethostname():
        return True
    try:
        return f"{psutil.Process(int(pid)).create_time():.0f}" == created
    except psutil.NoSuchProcess:
        return False
