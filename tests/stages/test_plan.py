"""The plan: which stages an experiment has, and what a change of a setting touches."""

import json
from pathlib import Path
from typing import Any

import pytest

from stages.plan import Plan, build_plan, evaluated_policies, source_digests
from text2sql.config import Profile, Settings
from text2sql.errors import ArtifactError

SCRATCH = {"name": "planned", "model": {"init": "scratch"}, "benchmark": {"name": "demo", "split_by": "dialogue"}}


def plan(tmp_path: Path, **overrides: Any) -> Plan:
    settings = Settings.from_environment().model_copy(update={"artifacts": tmp_path})
    return Plan(Profile.model_validate({**SCRATCH, **overrides}), settings)


def changed(one: Plan, other: Plan) -> set[str]:
    return {key for key in one.fingerprints if one.fingerprints[key] != other.fingerprints.get(key)}


def complete(plan: Plan, key: str, **files: str) -> None:
    """Put an artifact of this stage into the store, as if it had been made from what is there."""
    inputs = {role: build or "" for role, build in plan.input_builds(key).items()}
    with plan.store.building(key, plan.fingerprints[key], inputs) as out:
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8")
        plan.store.complete(key, plan.fingerprints[key], {"metrics": {}}, inputs)


def test_every_stage_comes_after_the_stages_it_reads():
    """The order of the plan is an order in which it can be run."""
    seen: set[str] = set()
    for key, stage in build_plan(Profile.model_validate(SCRATCH)).items():
        assert set(stage.inputs.values()) <= seen, key
        seen.add(key)


def test_an_ablation_shares_what_its_change_does_not_touch(tmp_path: Path):
    """Another reward weight makes GRPO, its evaluation and the report again, not the warm start."""
    ablation = changed(plan(tmp_path), plan(tmp_path, rewards={"propose": 0.0}))

    assert "grpo/policy" in ablation
    assert "report" in ablation
    assert not {key for key in ablation if key.startswith(("round_", "curriculum", "base", "turns", "benchmark"))}


@pytest.mark.parametrize("switch", [{"tools": ("memory",)}, {"max_episode_tokens": 100}])
def test_a_switch_of_the_evaluation_makes_predictions_and_nothing_of_training_again(tmp_path: Path, switch):
    """An ablation at inference pays for its predictions, scores and report."""
    ablation = changed(plan(tmp_path), plan(tmp_path, evaluation=switch))

    assert {"evaluation/base/predictions", "evaluation/grpo/scores", "report"} <= ablation
    assert {"evaluation", "report"} == {key.split("/")[0] for key in ablation}


def test_held_out_phrasing_is_evaluated_beside_dev_where_it_is_asked_for(tmp_path: Path):
    """Every policy gets stages of its own for it; those for dev keep their fingerprints."""
    dev, both = plan(tmp_path), plan(tmp_path, evaluation={"splits": ("dev", "dev_phrasing")})
    added = set(both.stages) - set(dev.stages)

    assert {f"{key.rpartition('/')[0]}/dev_phrasing/scores" for key in dev.stages if key.endswith("/scores")} <= added
    assert {"report"} == changed(dev, both)
    assert both.stages["report"].inputs["grpo/dev_phrasing"] == "evaluation/grpo/dev_phrasing/scores"


def controls(plan: Plan) -> set[str]:
    return {key for key in plan.stages if key.startswith("control/")}


def test_every_gain_has_its_control_unless_it_is_switched_off(tmp_path: Path):
    """Of the warm start and of GRPO, each evaluated like any policy; a pretrained base has no episodes of ours."""
    whole = plan(tmp_path)

    assert {"control/sft_policy", "control/grpo_policy"} == controls(whole)
    assert {"evaluation/control_sft/scores", "evaluation/control_grpo/scores"} <= set(whole.stages)
    assert {"control/grpo_policy"} == controls(plan(tmp_path, model={"name": "some/model"}))
    assert not controls(plan(tmp_path, controls=False))


def test_settings_of_speed_change_no_fingerprint(tmp_path: Path):
    """Batch size, concurrency and shard size are the machine's business: artifacts stay what they are."""
    faster = plan(tmp_path, engine={"batch_size": 7, "concurrency": 9}, sampling={"shard_items": 5})

    assert set() == changed(plan(tmp_path), faster)


def test_suite_ex_makes_the_scores_and_the_report_again_and_its_rules_touch_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Predictions stay. Where it is left out, no change of its rules makes anything due again."""
    without, asked = plan(tmp_path), plan(tmp_path, evaluation={"suite_neighbours": 8})
    monkeypatch.setattr("stages.plan.SUITE_RULES", "changed")
    scores = {key for key in without.stages if key.startswith("evaluation/") and key.endswith("/scores")}

    assert {*scores, "report"} == changed(without, asked)
    assert {*scores, "report"} == changed(asked, plan(tmp_path, evaluation={"suite_neighbours": 8}))
    assert set() == changed(without, plan(tmp_path))


def test_a_round_depends_on_the_rounds_before_it_only(tmp_path: Path):
    """One round more adds its stages; those of the rounds before keep their fingerprints."""
    three, two = plan(tmp_path), plan(tmp_path, rounds=2)

    assert three.fingerprints["round_2/policy"] == two.fingerprints["round_2/policy"]
    assert "round_3/policy" not in two.fingerprints


def test_reinforcement_starts_from_the_base_policy_when_there_is_no_warm_start(tmp_path: Path):
    """`rounds: 0`: the same base policy, its own attempts for the curriculum, and no control of rounds."""
    whole, direct = plan(tmp_path), plan(tmp_path, rounds=0)

    assert {"base_policy"} == {direct.stages[key].inputs["policy"] for key in ("grpo/policy", "curriculum/attempts")}
    assert whole.fingerprints["base_policy"] == direct.fingerprints["base_policy"]
    assert {"control/grpo_policy"} == controls(direct)
    assert not [key for key in direct.stages if key.startswith("round_")]


def test_a_policy_that_nobody_evaluates_is_not_made(tmp_path: Path):
    """Unless another stage needs it: the last round rests on the rounds before, and on nothing of GRPO."""
    few = plan(tmp_path, evaluation={"policies": ("round_3",)}, reward_search={"enabled": False})

    assert {"base_policy", "round_1/policy", "evaluation/round_3/scores", "report"} <= set(few.stages)
    assert not {key.split("/")[0] for key in few.stages} & {"grpo", "curriculum", "short_horizon", "control"}
    assert plan(tmp_path).fingerprints["round_3/policy"] == few.fingerprints["round_3/policy"]


def test_deleting_an_artifact_makes_it_and_what_depends_on_it_due_again(tmp_path: Path):
    """What lies before it, and beside it, stays complete."""
    whole = plan(tmp_path)
    for key in whole.stages:
        complete(whole, key)
    before = set(whole.states().values())

    folder = whole.store.folder("round_2/selected", whole.fingerprints["round_2/selected"])
    (folder / "manifest.json").unlink()
    folder.rmdir()
    states = whole.states()

    assert {"complete"} == before
    assert "missing" == states["round_2/selected"]
    assert "stale" == states["round_2/policy"] == states["round_3/policy"] == states["grpo/policy"] == states["report"]
    assert "complete" == states["round_2/trajectories"] == states["round_1/policy"] == states["evaluation/base/scores"]


def test_the_state_of_one_stage_rests_on_its_own_files_and_its_inputs_builds(tmp_path: Path):
    """
    What lies further up is looked at when its own turn comes: a lineage run goes through the stages in order, and an
    input that was made again has another build by then.
    """
    whole = plan(tmp_path)
    for key in whole.stages:
        complete(whole, key, **{"data.txt": "as made"})

    (whole.store.folder("benchmark", whole.fingerprints["benchmark"]) / "data.txt").write_text("changed by hand")
    before = {key: whole.state(key) for key in ("benchmark", "turns", "report")}
    complete(whole, "benchmark", **{"data.txt": "made again"})
    after = {key: whole.state(key) for key in ("benchmark", "turns", "report")}

    assert {"benchmark": "stale", "turns": "complete", "report": "complete"} == before
    assert "stale" == whole.states()["report"]
    assert {"benchmark": "complete", "turns": "stale", "report": "complete"} == after


def test_an_unknown_policy_to_evaluate_is_named_with_the_choices():
    """The error lists the policies that the experiment has."""
    profile = Profile.model_validate({**SCRATCH, "evaluation": {"policies": ("bas",)}})

    with pytest.raises(ArtifactError, match=r"names bas; this experiment has base, round_1"):
        build_plan(profile)


@pytest.mark.parametrize(
    ("limit", "stage"), [({"gold_timeout_seconds": 5.0}, "benchmark"), ({"max_rows": 10}, "base_policy")]
)
def test_a_limit_of_the_executor_is_part_of_what_runs_sql(tmp_path: Path, limit: dict[str, Any], stage: str):
    """
    The audit sets golds aside that are too slow, and a bootstrap shows what its episodes return. A limit at its default
    is left out, so that what was made before this was read stays valid.
    """
    usual, other = plan(tmp_path), plan(tmp_path, executor=limit)

    assert stage in changed(usual, other)
    assert not any(key.startswith("executor.gold") for key in usual.stages[stage].reads)


def test_policies_stand_in_the_order_of_the_lineage_however_they_are_asked_for():
    """So the report compares each with the one before it."""
    profile = Profile.model_validate({**SCRATCH, "evaluation": {"policies": ("grpo", "round_3", "base")}})

    assert ["base", "round_3", "grpo"] == list(evaluated_policies(profile))


def test_digests_that_cannot_be_read_are_made_again(tmp_path: Path):
    """What is remembered of a benchmark's files saves time; a damaged memory of them is no reason to fail."""
    release = tmp_path / "data" / "cosql_dataset" / "sql_state_tracking"
    release.mkdir(parents=True)
    for split in ("train", "dev"):
        turns = [{"utterance": "q", "query": "SELECT 1"}]
        entry = {"database_id": split, "interaction": turns, "final": {"utterance": "", "query": ""}}
        (release / f"cosql_{split}.json").write_text(json.dumps([entry]), encoding="utf-8")
    (release.parent / "tables.json").write_text("[]", encoding="utf-8")
    (release.parent / "database").mkdir()
    settings = Settings.from_environment().model_copy(update={"artifacts": tmp_path, "data": tmp_path / "data"})
    profile = Profile.model_validate({"name": "real", "model": {"init": "scratch"}, "benchmark": {"name": "cosql"}})
    first = source_digests(profile, settings)
    remembered = (tmp_path / "source_digests.json").read_text(encoding="utf-8")
    (tmp_path / "source_digests.json").write_text(remembered[:20], encoding="utf-8")

    assert first == source_digests(profile, settings)
    assert remembered == (tmp_path / "source_digests.json").read_text(encoding="utf-8")


def test_a_change_of_the_environments_words_is_a_change_of_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Prompts are part of the fingerprint of every stage that plays episodes."""
    before = plan(tmp_path)
    monkeypatch.setattr("stages.plan.wording_digest", lambda style: {"long.txt": "other"})
    after = plan(tmp_path)

    assert {"base_policy", "round_1/trajectories", "grpo/policy"} <= changed(before, after)
    assert "turns" not in changed(before, after)
