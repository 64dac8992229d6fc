"""The findings of a family: read from the store, written on a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from evaluation.findings import Claim, Number, Share
from stages.findings import Family
from stages.findings_page import write_findings
from stages.plan import Plan
from text2sql.config import Settings

TINY = (
    "model: {init: scratch}\nbenchmark: {name: demo, split_by: dialogue, databases: [bakery]}\nrounds: 1\n"
    "baselines: false\ncontrols: false\nreward_search: {enabled: false}\nevaluation: {policies: [base, round_1]}\n"
)
GAIN = Claim(
    "gain", "Group", "Round 1 gains.", ((1, Share("tiny", "round_1")), (-1, Share("tiny", "base"))), 1, 2.5, "p"
)
LOSS = Claim("loss", "Group", "Round 1 loses.", GAIN.terms, -1, None, "not reported", otherwise="It gains.")
MORE = Claim(
    "coverage", "Group", "Coverage is there.", ((1, Number("tiny", "round_1/selected", "coverage")),), 1, None, ""
)
OLD = Claim("old", "Group", "No such measure.", ((1, Share("tiny", "base", "spelling")),), 1, None, "")
CLAIMS = (GAIN, LOSS, MORE, OLD)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return Settings.from_environment().model_copy(
        update={"artifacts": tmp_path / "artifacts", "experiments": folder, "mlflow_uri": "sqlite:///nowhere.db"}
    )


@pytest.fixture
def family(settings: Settings) -> Family:
    return Family(settings, (1, 2), CLAIMS, "tiny")


def scores(right: int) -> pl.DataFrame:
    """Ten dialogues of one turn, so many of them right."""
    return pl.DataFrame(
        [
            {
                "item_id": f"dev/{number}/1",
                "dialogue_id": f"dev/{number}",
                "turn": 1,
                "hardness": "easy",
                "gold": "SELECT 1",
                "ex": number < right,
                "error": None if number < right else "other",
                "executions": 1,
                "recalls": 0,
                "corrections": 0,
                **{f"{kind}_verdicts{judged}": 0 for kind in ("e", "m") for judged in ("", "_right")},
            }
            for number in range(10)
        ],
        schema_overrides={"error": pl.String},
    )


def fill(plan: Plan, right: Mapping[str, int], **metrics: Any) -> None:
    """What is not there of the plan, as if made in 60 s each; policies answer `right` of ten turns rightly."""
    for key, stage in plan.stages.items():
        if plan.find(key):
            continue
        builds = {role: build or "" for role, build in plan.input_builds(key).items()}
        figures = dict(metrics) if key.startswith("round_1/") else {}
        with plan.store.building(key, plan.fingerprints[key], builds) as out:
            if key.endswith("/scores"):
                answered = right[key.split("/")[1]]
                scores(answered).write_parquet(out / "scores.parquet")
                figures = {"ex": answered / 10, "turns": 10, "unseen_gold": 1.0}
            manifest = {
                "experiment": plan.profile.name,
                "seconds": 60.0,
                "metrics": figures,
                "mlflow": {"run_id": f"run of {key}", "experiment_id": "1"},
                "input_stages": {role: [source, plan.fingerprints[source]] for role, source in stage.inputs.items()},
            }
            plan.store.complete(key, plan.fingerprints[key], manifest, builds)


@pytest.fixture
def filled(family: Family) -> Family:
    """Two seeds of a family in which round 1 doubles what is right."""
    for run in family.runs("tiny"):
        fill(run.plan, {"base": 4, "round_1": 8}, coverage=0.5)
    return family


def test_a_claim_is_judged_by_the_tables_of_all_seeds(filled: Family):
    """The same tables show a gain and are opposite to a loss; the seeds are those that were asked for."""
    gain, loss = filled.judge(GAIN), filled.judge(LOSS)

    assert ("shown", "opposite") == (gain.verdict, loss.verdict)
    assert gain.effect is not None
    assert (40.0, 10, 2) == (pytest.approx(gain.effect.effect), gain.effect.turns, gain.effect.seeds)


def test_what_is_not_made_is_named_with_what_it_waits_for(family: Family):
    """Seed 1 is there, seed 2 is not: nothing is judged by half of it."""
    fill(family.run("tiny", 1).plan, {"base": 4, "round_1": 8})
    found = family.judge(GAIN)

    assert ("not measured", None) == (found.verdict, found.effect)
    assert (
        "tiny@2: evaluation/round_1/scores waits for turns, which is missing",
        "tiny@2: evaluation/base/scores waits for turns, which is missing",
    ) == found.reasons


def test_scores_on_an_artifact_that_was_made_again_do_not_count(filled: Family, settings: Settings):
    """They are stale: what they say is of a policy that is no more."""
    plan = filled.run("tiny", 1).plan
    (plan.store.folder("round_1/policy", plan.fingerprints["round_1/policy"]) / "manifest.json").unlink()
    found = Family(settings, (1, 2), CLAIMS, "tiny").judge(GAIN)

    assert ("tiny@1: evaluation/round_1/scores waits for round_1/policy, which is missing",) == found.reasons


def test_tables_that_lack_a_measure_are_a_reason_and_no_crash(filled: Family):
    """The other claims are judged all the same."""
    found = filled.judge(OLD)

    assert "not measured" == found.verdict
    assert "no column 'spelling'" in found.reasons[0]


def test_the_time_behind_a_claim_is_that_of_every_stage_it_rests_on_once(filled: Family):
    """Both sides rest on benchmark, turns and base policy, and seeds share the benchmark."""
    plan = filled.run("tiny", 1).plan
    behind = set(plan.upstream("evaluation/base/scores")) | set(plan.upstream("evaluation/round_1/scores"))

    assert 60 * (2 * len(behind) - 1) == filled.judge(GAIN).seconds


@pytest.fixture
def written(filled: Family, tmp_path: Path) -> str:
    write_findings(filled, tmp_path)
    return (tmp_path / "findings.md").read_text(encoding="utf-8")


def test_the_page_counts_its_verdicts_before_all_else(written: str):
    """Nothing is left out of the count."""
    assert "**4 claims: 2 shown, 1 opposite, 0 not shown, 1 not measured**, with seeds 1, 2." in written


def test_a_row_has_effect_interval_paper_and_verdict(written: str):
    """In points, with the published figure beside it."""
    (row,) = [line for line in written.splitlines() if line.startswith("| `gain` Round 1 gains.")]

    assert row.startswith("| `gain` Round 1 gains. | +40.0 [+")
    assert "| +2.5 (p) | **shown** | 10, 2 |" in row


def test_a_claim_that_comes_out_opposite_has_its_explanation(written: str):
    """A reader learns what its authors make of it."""
    assert "- `loss` (opposite): It gains." in written


def test_a_claim_that_is_not_measured_has_its_row_and_its_reason(written: str):
    """No silent gap."""
    assert "| `old` No such measure. |  |  | **not measured** |" in written
    assert "- `old`: The scores have no column 'spelling'" in written


def test_every_score_is_listed_with_its_trajectories_and_its_run(written: str, filled: Family):
    """Fingerprints of scores and predictions, and the run in MLflow."""
    fingerprints = filled.run("tiny", 2).plan.fingerprints
    scored, predicted = (fingerprints[f"evaluation/round_1/{name}"] for name in ("scores", "predictions"))

    assert (
        f"| tiny@2 | round_1 | 80.0% | 10 | 100% | `{scored}` | `{predicted}` | `run of evaluation/round_1/scores` |"
    ) in written
    assert "`python -m pipelines run tiny@SEED`" in written


def test_a_policy_that_was_carried_over_is_named(family: Family, tmp_path: Path):
    """An effect of zero may mean that nothing was trained; the page says that both sides are the same."""
    for run in family.runs("tiny"):
        fill(run.plan, {"base": 4, "round_1": 4}, carried_over=int(run.plan.profile.seed == 2), coverage=0.5)
    write_findings(family, tmp_path)
    written = (tmp_path / "findings.md").read_text(encoding="utf-8")

    assert "- tiny@2: `round_1/policy`" in written
    assert "not shown" == family.judge(GAIN).verdict
    assert "the same in every turn and seed, so nothing was compared: `gain`, `loss`." in written


def test_one_seed_is_said_to_be_one_training(filled: Family, settings: Settings, tmp_path: Path):
    """Its intervals say nothing of others, and of a number per seed there is none."""
    write_findings(Family(settings, (1,), CLAIMS, "tiny"), tmp_path)
    written = (tmp_path / "findings.md").read_text(encoding="utf-8")

    assert "One seed is one training" in written
    assert "+50.0 (one seed: no interval) | " in written


def test_figures_are_drawn_of_what_there_is_and_old_ones_go(filled: Family, family: Family, tmp_path: Path):
    """The same data give the same bytes; without data there is no figure, and none of before is left."""
    write_findings(filled, tmp_path)
    effects = tmp_path / "figures" / "effects.svg"
    first = effects.read_bytes()
    write_findings(filled, tmp_path)
    second = effects.read_bytes()
    (tmp_path / "findings.md").unlink()  # with nothing to say, a page that is there would stay
    write_findings(Family(filled.settings, (7,), CLAIMS, "tiny"), tmp_path)

    assert first == second
    assert not effects.exists()
    assert "![" not in (tmp_path / "findings.md").read_text(encoding="utf-8")
