"""The lineage's assets: what Dagster says of them."""

from pathlib import Path

import dagster as dg
import pytest

# Dagster's own machinery behind "stale" in its UI. It is internal, and there is no public way to ask.
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.lineage import add_experiments, lineage_assets
from stages.context import StageContext
from stages.plan import Plan
from stages.report import make_report
from text2sql.artifacts import Artifact
from text2sql.config import Settings, load_profile
from text2sql.errors import ArtifactError

SCORES = "evaluation/base/scores"
SCORES_KEY = dg.AssetKey(SCORES.split("/"))
EXPERIMENTS = ("cosql", "sparc")
TINY = "model: {init: scratch}\nbenchmark: {name: demo, split_by: dialogue}\nseed: "


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two experiments, so two partitions."""
    (tmp_path / "experiments").mkdir()
    for seed, name in enumerate(EXPERIMENTS):
        (tmp_path / "experiments" / f"{name}.yaml").write_text(f"{TINY}{seed}\n", encoding="utf-8")
    monkeypatch.setenv("TEXT2SQL_EXPERIMENTS", str(tmp_path / "experiments"))
    monkeypatch.setenv("TEXT2SQL_ARTIFACTS", str(tmp_path / "artifacts"))
    return Settings.from_environment()


def make_scores(settings: Settings, experiment: str) -> Artifact:
    """The scores and all before them in the store, complete; what is in them is not what this is about."""
    plan = Plan(load_profile(experiment, settings.experiments), settings)
    for key in plan.upstream(SCORES):
        if plan.state(key) == "complete":
            continue
        inputs = {role: build or "" for role, build in plan.input_builds(key).items()}
        manifest = {
            "version": plan.stages[key].version,
            "metrics": {},
            "seconds": 0,
            "profile": {},
            "input_stages": {},
            "mlflow": {"run_id": "0", "experiment_id": "0"},
            "lineage_run": "earlier",
        }
        with plan.store.building(key, plan.fingerprints[key], inputs) as out:
            (out / "set_aside.json").write_text("[]", encoding="utf-8")
            plan.store.complete(key, plan.fingerprints[key], manifest, inputs)
    found = plan.find(SCORES)
    assert found is not None
    return found


def statuses(
    assets: list[dg.AssetsDefinition], instance: dg.DagsterInstance
) -> dict[str, tuple[StaleStatus, list[str]]]:
    resolver = CachingStaleStatusResolver(
        instance, AssetGraph.from_assets(assets), loading_context=LoadingContextForTest(instance)
    )
    return {
        name: (
            resolver.get_status(SCORES_KEY, name),
            [
                cause.reason
                for cause in resolver.get_stale_causes(SCORES_KEY, name)
                if cause.key.asset_key == SCORES_KEY
            ],
        )
        for name in EXPERIMENTS
    }


def report_context(settings: Settings, out: Path, **scores: Artifact) -> StageContext:
    profile = load_profile("cosql", settings.experiments)
    return StageContext(profile, "report", scores, out, settings, lambda values, step: None, lambda text: None)


def test_another_version_of_the_metric_makes_every_partition_of_the_scores_due_again(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """
    Case da-code-version-and-partitions: with the pinned Dagster both partitions are reported stale once the version of
    the metric is raised, and the plan calls both due. Scores name the version they were made by, and scores of two
    versions are refused in one report.
    """
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        add_experiments(instance, settings)
        assets = lineage_assets(settings)
        old = {name: make_scores(settings, name) for name in EXPERIMENTS}
        for name in EXPERIMENTS:
            keys = Plan(load_profile(name, settings.experiments), settings).upstream(SCORES)
            selection = dg.AssetSelection.assets(*(dg.AssetKey(key.split("/")) for key in keys))
            assert dg.materialize(assets, selection=selection, partition_key=name, instance=instance).success
        before = statuses(assets, instance)

        monkeypatch.setattr("stages.plan.METRIC_VERSION", "2")
        after = statuses(lineage_assets(settings), instance)

    assert {name: (StaleStatus.FRESH, []) for name in EXPERIMENTS} == before
    assert {name: (StaleStatus.STALE, ["has a new code version"]) for name in EXPERIMENTS} == after
    new = {name: make_scores(settings, name) for name in EXPERIMENTS}
    for name in EXPERIMENTS:
        assert ("1", "2") == (old[name].manifest["version"], new[name].manifest["version"])
        assert old[name].fingerprint != new[name].fingerprint
    with pytest.raises(ArtifactError, match=r"different versions of the metric.*'base': '1', 'grpo': '2'"):
        make_report(report_context(settings, tmp_path, base=old["cosql"], grpo=new["cosql"]))


def test_another_seed_of_an_experiment_is_a_partition_of_its_own(settings: Settings, tmp_path: Path):
    """`cosql@5` shares the benchmark with `cosql`, and nothing that a seed decides. Added twice, it is there once."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        add_experiments(instance, settings, "cosql@5")
        add_experiments(instance, settings, "cosql@5", "cosql")
        known = instance.get_dynamic_partitions("experiments")

        make_scores(settings, "cosql@5")
        keys = Plan(load_profile("cosql@5", settings.experiments), settings).upstream(SCORES)
        selection = dg.AssetSelection.assets(*(dg.AssetKey(key.split("/")) for key in keys))
        run = dg.materialize(lineage_assets(settings), selection=selection, partition_key="cosql@5", instance=instance)

    first, other = (Plan(load_profile(name, settings.experiments), settings) for name in ("cosql", "cosql@5"))
    assert ["cosql", "cosql@5", "sparc"] == sorted(known)
    assert run.success
    assert first.fingerprints["benchmark"] == other.fingerprints["benchmark"]
    assert first.fingerprints["turns"] != other.fingerprints["turns"]


def test_the_graph_has_the_stages_that_any_experiment_has(settings: Settings):
    """One experiment evaluates held-out phrasing, one has more rounds: both are in the one graph."""
    (settings.experiments / "wide.yaml").write_text(
        f"{TINY}0\nrounds: 4\nevaluation: {{splits: [dev, dev_phrasing]}}\n", encoding="utf-8"
    )
    keys = {"/".join(asset.key.path) for asset in lineage_assets(settings)}

    assert {"round_4/policy", "evaluation/base/scores", "evaluation/round_4/dev_phrasing/scores"} <= keys
