"""The command lines: wrong input gets a clear message and a status, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from text2sql.config import REPOSITORY

SCRATCH = (
    "model: {init: scratch}\nbenchmark: {name: demo, split_by: dialogue, databases: [bakery], train_dialogues: 8}\n"
)


@pytest.fixture
def run(tmp_path: Path):
    """Run a module of the project with places of its own; returns the finished process."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "tiny.yaml").write_text(SCRATCH, encoding="utf-8")

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        places = {
            "TEXT2SQL_ARTIFACTS": str(tmp_path / "artifacts"),
            "TEXT2SQL_EXPERIMENTS": str(tmp_path / "experiments"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        }
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **places, **environment},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )

    return run


def failed_clearly(result: subprocess.CompletedProcess[str], *words: str) -> bool:
    assert 1 == result.returncode, result.stderr
    assert "Traceback" not in result.stderr
    return all(word in result.stderr for word in words)


def test_list_names_every_experiment_with_its_purpose():
    """Names and one line each."""
    result = subprocess.run([sys.executable, "-m", "pipelines", "list"], cwd=REPOSITORY, capture_output=True, text=True)

    assert 0 == result.returncode
    assert {"demo", "smoke", "cosql-smoke"} <= {line.split()[0] for line in result.stdout.splitlines()}


def test_show_prints_the_resolved_profile_and_the_state_of_every_stage(run):
    """The plan names each stage with its fingerprint; nothing is there before a run."""
    result = run("pipelines", "show", "tiny")

    assert 0 == result.returncode, result.stderr
    assert "samples: 20" in result.stdout
    assert "missing" in result.stdout
    assert "round_3/policy" in result.stdout


def test_an_experiment_with_a_seed_is_shown_like_one_with_a_file(run):
    """`tiny@3` is `tiny` with seed 3."""
    result = run("pipelines", "show", "tiny@3")

    assert 0 == result.returncode, result.stderr
    assert "name: tiny@3" in result.stdout
    assert "seed: 3" in result.stdout


def test_an_unknown_experiment_lists_the_known_ones(run):
    """With the nearest name as a suggestion."""
    assert failed_clearly(run("pipelines", "run", "tinny"), "Did you mean 'tiny'?")


def test_a_missing_data_root_names_the_setting(run, tmp_path: Path):
    """The message says which variable names the folder."""
    (tmp_path / "experiments" / "real.yaml").write_text("model: {init: scratch}\nbenchmark: {name: cosql}\n")

    result = run("pipelines", "run", "real", TEXT2SQL_DATA=str(tmp_path / "nowhere"))

    assert failed_clearly(result, "TEXT2SQL_DATA")


def test_a_broken_dialogue_file_names_the_place(run, make_release, tmp_path: Path):
    """File, dialogue and turn of the broken entry."""
    root = tmp_path / "release"
    (root / "cosql").mkdir(parents=True)
    broken = '[{"database_id": "shop", "interaction": [{"utterance": "Show staff."}]}]'
    for name in ("train.json", "dev.json"):
        (root / "cosql" / name).write_text(broken, encoding="utf-8")
    (root / "tables.json").write_text("[]", encoding="utf-8")
    (root / "database").mkdir()
    (tmp_path / "experiments" / "real.yaml").write_text("model: {init: scratch}\nbenchmark: {name: cosql}\n")

    result = run("pipelines", "show", "real", TEXT2SQL_DATA=str(root))

    assert failed_clearly(result, "train.json", "dialogue 0", "turn 1", "query")


def test_a_mlflow_server_that_is_down_is_told_before_any_work(run, tmp_path: Path):
    """No artifact is begun."""
    result = run("pipelines", "run", "tiny", MLFLOW_TRACKING_URI="http://127.0.0.1:9")

    assert failed_clearly(result, "MLflow does not answer", "MLFLOW_TRACKING_URI")
    assert not (tmp_path / "artifacts" / "benchmark").exists()


def test_a_dagster_home_without_settings_is_an_error_not_a_new_home(run, tmp_path: Path):
    """Case da-home-folder: no temporary home is made in silence."""
    result = run("pipelines", "run", "tiny", DAGSTER_HOME=str(tmp_path))

    assert failed_clearly(result, "dagster.yaml")


def test_an_unreadable_model_path_is_named(run, tmp_path: Path):
    """A path that holds no model is refused by the stage that needs it."""
    profile = SCRATCH.replace("{init: scratch}", f"{{name: '{tmp_path / 'no-model'}'}}")
    (tmp_path / "experiments" / "named.yaml").write_text(profile, encoding="utf-8")
    for stage in ("benchmark", "turns"):
        run("stages", "named", stage)

    result = run("stages", "named", "base_policy")

    assert failed_clearly(result, "no-model", "no such folder")


def test_a_stage_whose_inputs_are_missing_says_what_to_run(run):
    """The missing stages are named, and the command for all of them."""
    assert failed_clearly(run("stages", "tiny", "turns"), "needs benchmark", "python -m pipelines run tiny")


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system of its own can only be mounted by root")
def test_a_full_disk_is_told_before_a_stage_begins(run, tmp_path: Path):
    """The message names the folder, the space and the setting."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        result = run("stages", "tiny", "benchmark", TEXT2SQL_ARTIFACTS=str(small))
    finally:
        subprocess.run(["umount", str(small)], check=True)

    assert failed_clearly(result, "MiB are free", "TEXT2SQL_ARTIFACTS")
