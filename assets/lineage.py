"""
The lineage as Dagster assets: one asset per stage, one partition per experiment, and one more per further seed of it.

The graph is the plan of the experiment with the most rounds; for an experiment that has fewer stages the others
materialize as "not in this experiment" without any work, so that one job serves all.
"""

import json

import dagster as dg
import polars as pl

from assets.metadata import metadata_of, table
from assets.process import run_stage
from stages.plan import Plan, Stage, build_plan
from stages.runner import materialize
from stages.tracking import Tracker, check, run_url
from text2sql.artifacts import Artifact
from text2sql.config import Profile, Settings, experiment_names, load_profile
from text2sql.errors import ProfileError

_GROUPS = {
    "round": "warm_start",
    "reward": "reinforcement",
    "curriculum": "reinforcement",
    "grpo": "reinforcement",
}
NOT_IN_EXPERIMENT = "not in this experiment"
EXPERIMENTS = dg.DynamicPartitionsDefinition(name="experiments")
"""Dynamic, since an experiment has any number of seeds: `demo@2` is added when it is first asked for."""


def add_experiments(instance: dg.DagsterInstance, settings: Settings, *names: str) -> None:
    """Make the experiments that have a file, and `names`, known to `instance` as partitions."""
    wanted = dict.fromkeys((*experiment_names(settings.experiments), *names))
    instance.add_dynamic_partitions(str(EXPERIMENTS.name), list(wanted))  # those that it knows already stay as they are


def widest_profile(settings: Settings) -> Profile:
    """The experiment whose plan holds every stage that any experiment has: the graph is drawn from it."""
    profiles = []
    for name in experiment_names(settings.experiments):
        try:
            profiles.append(load_profile(name, settings.experiments))
        except ProfileError:  # a broken file breaks its own experiment, with its own message, not the whole graph
            continue
    rounds = max((profile.rounds for profile in profiles), default=3)
    splits = dict.fromkeys(("dev", *(split for profile in profiles for split in profile.evaluation.splits)))
    everything = {"rounds": rounds, "baselines": True, "controls": True, "evaluation": {"splits": tuple(splits)}}
    model = {"init": "scratch"}  # a pretrained one has no control of the warm start
    return Profile.model_validate({"name": "graph", "model": model, **everything})


def lineage_assets(settings: Settings) -> list[dg.AssetsDefinition]:
    return [stage_asset(stage) for stage in build_plan(widest_profile(settings)).values()]


def stage_asset(stage: Stage) -> dg.AssetsDefinition:
    """The asset of one stage. Its upstream assets are the stages it reads; its data version is the fingerprint."""

    @dg.asset(
        key=stage.key.split("/"),
        deps=[dg.AssetKey(source.split("/")) for source in dict.fromkeys(stage.inputs.values())],
        partitions_def=EXPERIMENTS,
        group_name=group_of(stage.key),
        code_version=stage.version,
        description=stage.description,
        kinds=set(stage.kinds),
        pool="gpu" if stage.needs_model else None,
    )
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        return materialize_asset(stage.key, context.partition_key, context)

    return asset


def group_of(key: str) -> str:
    first = key.split("/")[0]
    if "/" not in key:
        return "report" if key == "report" else "data"
    return _GROUPS.get(first.split("_")[0], first)


def materialize_asset(key: str, experiment: str, context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Make or find the stage's artifact and tell Dagster what it is."""
    settings = Settings.from_environment()
    plan = Plan(load_profile(experiment, settings.experiments), settings)
    if key not in plan.stages:
        return dg.MaterializeResult(metadata={"state": NOT_IN_EXPERIMENT}, data_version=dg.DataVersion("absent"))
    lineage_run = context.run.tags.get("lineage_run", context.run_id)
    if plan.state(key) != "complete" and plan.stages[key].needs_model:
        check(settings)
        run_stage(experiment, key, lineage_run, context.run_id, context.log.info)
    tracker = Tracker.opener(plan.profile, settings, lineage_run, context.run_id)
    artifact, made = materialize(plan, key, tracker, context.log.info)
    made_now = made or artifact.manifest["lineage_run"] == lineage_run
    return dg.MaterializeResult(
        metadata=describe(artifact, plan, reused=not made_now), data_version=dg.DataVersion(artifact.fingerprint)
    )


def describe(artifact: Artifact, plan: Plan, reused: bool) -> dict[str, dg.MetadataValue]:
    """What an asset page shows: figures first, then where the artifact lies and which runs made it."""
    manifest = artifact.manifest
    mlflow = manifest["mlflow"]
    metadata = metadata_of(artifact.metrics)
    metadata["state"] = dg.MetadataValue.text("reused, complete already" if reused else "made by this run")
    metadata["artifact"] = dg.MetadataValue.path(artifact.path)
    metadata["fingerprint"] = dg.MetadataValue.text(artifact.fingerprint)
    metadata["seconds"] = dg.MetadataValue.float(float(manifest["seconds"]))
    metadata["profile"] = dg.MetadataValue.json(manifest["profile"])
    metadata["inputs"] = dg.MetadataValue.json(manifest["input_stages"])
    metadata["mlflow_run"] = dg.MetadataValue.text(mlflow["run_id"])
    link = run_url(plan.settings, mlflow["experiment_id"], mlflow["run_id"])
    if link:
        metadata["mlflow_page"] = dg.MetadataValue.url(link)
    if artifact.stage == "benchmark":
        rows = json.loads((artifact.path / "set_aside.json").read_text(encoding="utf-8"))
        metadata["set_aside"] = table(rows)
    if artifact.stage == "reward_search/weights":
        metadata["weights"] = table(pl.read_parquet(artifact.path / "weights.parquet").to_dicts())
    if artifact.stage == "report":
        metadata["report"] = dg.MetadataValue.md((artifact.path / "report.md").read_text(encoding="utf-8"))
    return metadata
