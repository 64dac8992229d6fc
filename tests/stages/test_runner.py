"""Materializing a stage: inputs that change meanwhile, and two commands that want the same."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.checks import inputs_are_current
from stages.context import StageContext
from stages.plan import Plan, Stage
from stages.runner import materialize
from stages.tracking import Tracker
from text2sql.config import Profile, Settings
from text2sql.errors import TrackingError

DEMO = {
    "name": "run",
    "model": {"init": "scratch"},
    "benchmark": {
        "name": "demo",
        "split_by": "dialogue",
        "databases": ("bakery",),
        "train_dialogues": 8,
        "dev_dialogues": 2,
    },
    "executor": {"workers": 1},
}


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    """`make_plan(**overrides)`: the plan of a small experiment; all of a test's plans have one store."""
    settings = Settings.from_environment().model_copy(
        update={"artifacts": tmp_path / "artifacts", "mlflow_uri": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    )
    return lambda **overrides: Plan(Profile.model_validate({**DEMO, **overrides}), settings)


def opener(plan: Plan) -> Callable[[], Tracker]:
    return Tracker.opener(plan.profile, plan.settings, "lineage-1")


def make_again(plan: Plan, key: str) -> str | None:
    """Another build of `key` takes the place of the one that is there; returns the build that is found while it is made."""
    old = plan.find(key)
    assert old is not None
    with plan.store.building(key, old.fingerprint, old.manifest["inputs"]) as out:
        shutil.copytree(old.path, out, dirs_exist_ok=True)
        found = plan.find(key)
        plan.store.complete(key, old.fingerprint, old.manifest, old.manifest["inputs"])
    return found.build if found else None


def test_an_input_that_is_made_again_while_a_stage_runs_is_seen(make_plan):
    """
    Case da-upstream-replaced-during-run: a stage records the builds of its inputs before it reads them. Whoever looks
    while one is made again finds the old one, whole. Afterwards the recorded build and the current one differ: the
    stage says so, is stale, is made again by the next run, and the check on it and on all that rests on it fails.
    """
    plan = make_plan()
    first, _ = materialize(plan, "benchmark", opener(plan))
    meanwhile: list[str | None] = []
    said: list[str] = []

    def replace_input_then_open() -> Tracker:
        meanwhile.append(make_again(plan, "benchmark"))
        return opener(plan)()

    turns, _ = materialize(plan, "turns", replace_input_then_open, said.append)
    current = plan.find("benchmark")
    checked = inputs_are_current(plan, turns)
    state = plan.state("turns")
    again, made = materialize(plan, "turns", opener(plan))

    assert current is not None
    assert [first.build] == meanwhile
    assert first.build == turns.manifest["inputs"]["benchmark"] != current.build
    assert any("benchmark was made again meanwhile" in line for line in said)
    assert "stale" == state
    assert not checked.passed
    assert {"stale_inputs": {"turns": ["benchmark"]}} == checked.figures
    assert made
    assert inputs_are_current(plan, again).passed


def test_the_check_looks_at_all_that_an_artifact_rests_on(make_plan):
    """An input that is stale itself is found, however far up."""
    plan = make_plan()
    for key in plan.upstream("base_policy"):
        inputs = {role: build or "" for role, build in plan.input_builds(key).items()}
        with plan.store.building(key, plan.fingerprints[key], inputs):
            plan.store.complete(key, plan.fingerprints[key], {}, inputs)
    make_again(plan, "benchmark")
    policy = plan.find("base_policy")
    assert policy is not None

    found = inputs_are_current(plan, policy).figures["stale_inputs"]

    assert {"turns": ["benchmark"], "base_policy": ["benchmark"]} == found


def test_two_commands_make_an_artifact_once_and_other_settings_make_another(make_plan):
    """
    Case cl-run-twice-into-one-folder: of two commands that both found nothing, the later one takes what the earlier one
    made in between. Other settings have a place of their own and leave the first artifact as it is.
    """
    plan, other = make_plan(), make_plan(benchmark={**DEMO["benchmark"], "demo_seed": 1})
    earlier: list[Any] = []

    def let_another_command_be_first() -> Tracker:
        earlier.append(materialize(plan, "benchmark", opener(plan)))
        return opener(plan)()

    later, made = materialize(plan, "benchmark", let_another_command_be_first)
    different, _ = materialize(other, "benchmark", opener(other))
    kept = plan.find("benchmark")

    assert (True, False) == (earlier[0][1], made)
    assert kept is not None
    assert earlier[0][0].build == later.build == kept.build
    assert later.path != different.path
    assert {later.path, different.path} == set(later.path.parent.iterdir())


def test_what_a_stage_works_with_is_there_until_all_that_follows_has_been_done(make_plan, monkeypatch):
    """A training is not lost when MLflow fails after it: its working folder goes only with the stage's completion."""
    plan = make_plan()
    found: list[bool] = []

    def train(context: StageContext) -> dict[str, Any]:
        found.append((context.work / "checkpoint").is_file())
        context.work.mkdir(exist_ok=True)
        (context.work / "checkpoint").write_text("ten hours", encoding="utf-8")
        context.write_json("trained.json", {})
        return {}

    def gone(*_):
        raise TrackingError("MLflow is gone")

    monkeypatch.setattr(Stage, "load", lambda stage: train)
    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "log_results", gone)
        with pytest.raises(TrackingError):
            materialize(plan, "benchmark", opener(plan))
    artifact, _ = materialize(plan, "benchmark", opener(plan))

    assert [False, True] == found
    assert {"manifest.json", "trained.json"} == {path.name for path in artifact.path.iterdir()}


@pytest.mark.parametrize(("lost", "made_again"), [(3, True), (0, False)])
def test_what_the_machine_lost_is_made_up_on_request_and_the_rest_is_kept(make_plan, lost: int, made_again: bool):
    """Case cl-run-twice-into-one-folder: a complete artifact is gone on with if it lacks something, else left alone."""
    plan = make_plan()
    with plan.store.building("benchmark", plan.fingerprints["benchmark"], {}) as out:
        (out / "finished.txt").write_text("kept", encoding="utf-8")
        first = plan.store.complete(
            "benchmark", plan.fingerprints["benchmark"], {"metrics": {"infrastructure": lost}}, {}
        )

    _, without_request = materialize(plan, "benchmark", opener(plan))
    again, made = materialize(plan, "benchmark", opener(plan), lost_again=True)

    assert (False, made_again) == (without_request, made)
    assert made_again == (first.build != again.build)
    assert "kept" == (again.path / "finished.txt").read_text(encoding="utf-8")
