"""The reward search as stages: what it writes, and that it advises and decides nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlflow
import polars as pl
import pytest

from agents.mtsql.rewards import PARTS
from assets.lineage import describe
from stages.plan import Plan, build_plan
from stages.reward_search import make_weights
from stages.runner import materialize
from stages.tracking import Tracker
from text2sql.config import Profile, Settings
from text2sql.trajectory import write_trajectories

RIGHT = "SELECT name FROM staff WHERE city = 'Graz'"
WRONG = "SELECT name FROM staff"
FAILS = "SELECT nmae FROM staff"
GRID = {"propose": (0.0, 0.8), "e_verify": (0.0, 0.1), "m_verify": (0.1,)}
SCRATCH = {"name": "searched", "model": {"init": "scratch"}}


@pytest.fixture
def attempts(tmp_path: Path):
    def write(*trajectories) -> Path:
        folder = tmp_path / "attempts"
        (folder / "shards").mkdir(parents=True)
        write_trajectories(trajectories, folder / "shards" / "00000.jsonl")
        return folder

    return write


def plan(tmp_path: Path, **overrides: Any) -> Plan:
    settings = Settings.from_environment().model_copy(update={"artifacts": tmp_path})
    return Plan(Profile.model_validate({**SCRATCH, **overrides}), settings)


def changed(one: Plan, other: Plan) -> set[str]:
    return {key for key in one.fingerprints if one.fingerprints[key] != other.fingerprints.get(key)}


def test_every_combination_is_a_row_best_first_with_what_it_was_judged_by(make_context, dialogue, episode, attempts):
    """The table has the whole grid; the JSON has its first row, the profile's row, and which of the two is advised."""
    item = dialogue("train/0", "validation", RIGHT)[0]
    samples = [episode(item, 0, RIGHT, [RIGHT]), episode(item, 1, WRONG, [WRONG])]
    context = make_context(
        "reward_search/weights", [item], {"reward_search": {"grid": GRID}}, attempts=attempts(*samples)
    )
    metrics = make_weights(context)
    table = pl.read_parquet(context.out / "weights.parquet")
    written = json.loads((context.out / "weights.json").read_text(encoding="utf-8"))

    assert 4 == table.height == metrics["combinations"]
    assert {*PARTS, "inversions", "process_auc", "best_of_n"} <= set(table.columns)
    assert table["process_auc"].to_list() == sorted(table["process_auc"].to_list(), reverse=True)
    assert table.row(0, named=True) == written["best"]
    assert 0.8 == written["given"]["propose"] == written["advised"]["propose"]
    assert (1, 1, 1) == (metrics["items_compared"], metrics["pairs_compared"], metrics["given_stay"])


def test_weights_that_mislead_are_advised_against(make_context, dialogue, episode, attempts):
    """
    Here the samples that end right ran a worse query on the way than those that end wrong: weights without propose
    pay process better than the profile's, and the advice names them with the figures.
    """
    items = dialogue("train/0", "validation", RIGHT, RIGHT)
    samples = [one for item in items for one in (episode(item, 0, RIGHT, [FAILS]), episode(item, 1, WRONG, [RIGHT]))]
    context = make_context(
        "reward_search/weights", items, {"reward_search": {"grid": GRID}}, attempts=attempts(*samples)
    )
    metrics = make_weights(context)

    assert 0.0 == metrics["advised"]["propose"]
    assert 0 == metrics["given_stay"]
    assert "against" in metrics["reason"]


def test_each_row_can_be_traced_to_the_parts_of_the_samples(make_context, dialogue, episode, attempts):
    """Parts are kept unweighted, one row per sample, with its final SQL."""
    item = dialogue("train/0", "validation", RIGHT)[0]
    samples = attempts(episode(item, 0, RIGHT, [RIGHT]), episode(item, 1, None))
    context = make_context("reward_search/weights", [item], attempts=samples)
    make_weights(context)
    parts = pl.read_parquet(context.out / "parts.parquet")

    assert [RIGHT, None] == parts["final_sql"].to_list()
    assert [1.0, 0.0] == parts["execution_match"].to_list() == parts["propose"].to_list()
    assert ["ok", "ok"] == parts["status"].to_list()


def test_without_validation_items_the_profiles_weights_stay(make_context, dialogue, episode, attempts):
    """A benchmark that is too small for a validation set gives a table without figures and no failure."""
    context = make_context("reward_search/weights", dialogue("train/0", "train", RIGHT), attempts=attempts())
    metrics = make_weights(context)

    assert (0, 1) == (metrics["samples"], metrics["given_stay"])
    assert metrics["best"]["process_auc"] is None
    assert "no item has samples of different outcome" in metrics["reason"]


def test_the_search_advises_and_no_stage_reads_it(tmp_path: Path):
    """GRPO takes the weights in the profile: another search changes the search's own fingerprints alone."""
    other = {"samples": 3, "max_items": 7, "grid": {"propose": (0.0, 2.0)}, "margin": 0.1}
    readers = {key for key, stage in plan(tmp_path).stages.items() if "reward_search/weights" in stage.inputs.values()}

    assert set() == readers
    assert {"reward_search/attempts", "reward_search/weights"} == changed(
        plan(tmp_path), plan(tmp_path, reward_search=other)
    )


def test_other_weights_and_another_grid_are_judged_by_the_samples_that_are_there(tmp_path: Path):
    """Neither needs the model again."""
    grid = plan(tmp_path, reward_search={"grid": {"e_verify": (0.0, 0.5)}})
    weights = plan(tmp_path, rewards={"propose": 0.4})

    assert {"reward_search/weights"} == changed(plan(tmp_path), grid)
    assert "reward_search/weights" in changed(plan(tmp_path), weights)
    assert "reward_search/attempts" not in changed(plan(tmp_path), weights)


def test_the_search_can_be_left_out():
    """Its stages are not in the plan then; all others are."""
    stages = set(build_plan(Profile.model_validate(SCRATCH)))
    without = set(build_plan(Profile.model_validate({**SCRATCH, "reward_search": {"enabled": False}})))

    assert {"reward_search/attempts", "reward_search/weights"} == stages - without


def test_attempts_are_the_warm_started_policys():
    """The policy that GRPO starts from, on the same turns."""
    stages = build_plan(Profile.model_validate({**SCRATCH, "rounds": 2}))

    assert (
        "round_2/policy" == stages["reward_search/attempts"].inputs["policy"] == stages["grpo/policy"].inputs["policy"]
    )


@pytest.mark.slow
def test_the_asset_shows_the_table_and_mlflow_has_the_figures(
    make_context, dialogue, episode, attempts, tmp_path: Path
):
    """
    Materialized for real: the rows stand on the asset page, best first, and the best row's and the profile's figures
    are metrics of the stage's run, with the advice as a file beside them.
    """
    item = dialogue("train/0", "validation", RIGHT)[0]
    inputs = make_context(
        "any", [item], attempts=attempts(episode(item, 0, RIGHT, [RIGHT]), episode(item, 1, WRONG, [WRONG]))
    ).inputs
    searched = plan(tmp_path / "artifacts", reward_search={"grid": GRID})
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    searched.settings = searched.settings.model_copy(update={"mlflow_uri": store})
    for role, key in {"benchmark": "benchmark", "turns": "turns", "attempts": "reward_search/attempts"}.items():
        with searched.store.building(key, searched.fingerprints[key], {}) as out:
            shutil.copytree(inputs[role].path, out, dirs_exist_ok=True)
            searched.store.complete(key, searched.fingerprints[key], {"metrics": {}}, {})

    tracker = Tracker.opener(searched.profile, searched.settings, "one")
    artifact, made = materialize(searched, "reward_search/weights", tracker)
    shown = describe(artifact, searched, reused=not made)["weights"].value
    run = mlflow.MlflowClient(store).get_run(artifact.manifest["mlflow"]["run_id"])
    metrics = run.data.metrics

    assert artifact.metrics["best"] == shown.records[0].data
    assert 4 == len(shown.records) == metrics["combinations"]
    assert (1.0, 1.0) == (metrics["best.process_auc"], metrics["given.process_auc"])
    assert "weights.json" in [file.path for file in mlflow.MlflowClient(store).list_artifacts(run.info.run_id)]
