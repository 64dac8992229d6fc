"""MLflow: real stores, one parent per lineage run, runs that go on after a kill."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest

from assets.process import stop_group
from stages.plan import Stage
from stages.tracking import Tracker, check
from text2sql.artifacts import Artifact
from text2sql.config import REPOSITORY, Profile, Settings
from text2sql.errors import TrackingError

PROFILE = Profile.model_validate({"name": "tracked", "model": {"init": "scratch"}})
STAGE = Stage("round_1/policy", "policies:make_round_policy", {}, ("sft",))


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its tables, made once: creating them takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    store = folder / "mlflow.db"
    check(Settings.from_environment().model_copy(update={"artifacts": folder, "mlflow_uri": f"sqlite:///{store}"}))
    return store


@pytest.fixture
def settings(tmp_path: Path, empty_store: Path) -> Settings:
    store = shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Settings.from_environment().model_copy(
        update={"artifacts": tmp_path / "artifacts", "mlflow_uri": f"sqlite:///{store}"}
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_stages_of_one_lineage_run_are_children_of_one_parent(settings: Settings, work: Path, tmp_path: Path):
    """Whichever process opens it first, the parent is made once; children carry stage, fingerprint and links."""
    (tmp_path / "more").mkdir()
    with Tracker(PROFILE, settings, "lineage-1", "dagster-1").stage(STAGE, "00aa", {}, work) as first:
        pass
    with Tracker(PROFILE, settings, "lineage-1", "dagster-1").stage(STAGE, "00bb", {}, tmp_path / "more") as second:
        pass

    client = mlflow.MlflowClient(settings.mlflow_uri)
    tags = [client.get_run(run.run_id).data.tags for run in (first, second)]
    assert tags[0]["mlflow.parentRunId"] == tags[1]["mlflow.parentRunId"]
    assert ("round_1/policy", "00aa", "dagster-1") == (tags[0]["stage"], tags[0]["fingerprint"], tags[0]["dagster_run"])


def test_inputs_are_logged_as_datasets_with_the_fingerprint_as_digest(settings: Settings, work: Path, tmp_path: Path):
    """A reader sees in MLflow which artifacts went into a run."""
    artifact = Artifact("turns", "beef", tmp_path, {"build": "b"})
    with Tracker(PROFILE, settings, "lineage-1").stage(STAGE, "00aa", {"turns": artifact}, work) as run:
        pass

    inputs = mlflow.MlflowClient(settings.mlflow_uri).get_run(run.run_id).inputs.dataset_inputs
    assert [("turns", "beef")] == [(one.dataset.name, one.dataset.digest) for one in inputs]


def test_a_score_leads_to_the_trajectories_behind_it(settings: Settings, work: Path, tmp_path: Path):
    """The run of a score names the folder of its predictions, whose own run is found by fingerprint and names it too."""
    predictions = Stage("evaluation/grpo/predictions", "sampling:make_predictions", {}, ("agent",))
    scores = Stage("evaluation/grpo/scores", "scoring:make_scores", {"predictions": predictions.key}, ("rewards",))
    folder = settings.artifacts / predictions.key / "00aa"
    tracker = Tracker(PROFILE, settings, "one")
    with tracker.stage(predictions, "00aa", {}, work):
        pass
    made = Artifact(predictions.key, "00aa", folder, {"build": "b"})
    (tmp_path / "more").mkdir()
    with tracker.stage(scores, "00bb", {"predictions": made}, tmp_path / "more") as run:
        pass

    client = mlflow.MlflowClient(settings.mlflow_uri)
    (dataset,) = [one.dataset for one in client.get_run(run.run_id).inputs.dataset_inputs]
    (found,) = client.search_runs([run.experiment_id], f"tags.fingerprint = '{dataset.digest}'")
    assert {"uri": folder.as_uri()} == json.loads(dataset.source)
    assert (predictions.key, str(folder)) == (found.data.tags["mlflow.runName"], found.data.tags["artifact"])


def test_a_killed_stage_goes_on_in_the_run_it_began(settings: Settings, work: Path):
    """Case ml-resume-makes-new-run: the same run, with the number of the attempt; it ends finished."""
    with pytest.raises(RuntimeError), Tracker(PROFILE, settings, "one").stage(STAGE, "00aa", {}, work) as first:
        raise RuntimeError
    with Tracker(PROFILE, settings, "two").stage(STAGE, "00aa", {}, work) as second:
        pass

    run = mlflow.MlflowClient(settings.mlflow_uri).get_run(second.run_id)
    assert first.run_id == second.run_id
    assert ("FINISHED", "2") == (run.info.status, run.data.tags["attempt"])


def test_a_run_deleted_in_between_is_named_by_the_one_that_replaces_it(settings: Settings, work: Path):
    """Case ml-resume-makes-new-run, second half: a new run with a tag that names the lost one."""
    with pytest.raises(RuntimeError), Tracker(PROFILE, settings, "one").stage(STAGE, "00aa", {}, work) as first:
        raise RuntimeError
    client = mlflow.MlflowClient(settings.mlflow_uri)
    client.delete_run(first.run_id)
    with Tracker(PROFILE, settings, "one").stage(STAGE, "00aa", {}, work) as second:
        pass

    assert first.run_id == client.get_run(second.run_id).data.tags["continues_deleted_run"]


def test_repeated_steps_leave_the_last_attempts_values(settings: Settings, work: Path):
    """Case ml-repeated-steps: after a resume from step 5 the series ends with the second attempt's step 10."""
    with pytest.raises(RuntimeError), Tracker(PROFILE, settings, "one").stage(STAGE, "00aa", {}, work) as run:
        for step in range(1, 8):
            run.log({"loss": 1.0}, step)
        raise RuntimeError
    with Tracker(PROFILE, settings, "one").stage(STAGE, "00aa", {}, work) as run:
        for step in range(6, 11):
            run.log({"loss": step / 10}, step)

    client = mlflow.MlflowClient(settings.mlflow_uri)
    history = {point.step: point.value for point in client.get_metric_history(run.run_id, "loss")}
    assert 1.0 == client.get_run(run.run_id).data.metrics["loss"]
    assert (1.0, 0.6, 1.0) == (history[5], history[6], history[10])


def test_values_that_are_not_finite_are_left_out(settings: Settings, work: Path):
    """A NaN loss neither stops the training nor breaks the chart; it is counted."""
    with Tracker(PROFILE, settings, "one").stage(STAGE, "00aa", {}, work) as run:
        run.log({"loss": float("nan"), "lr": 0.1}, 1)

    metrics = mlflow.MlflowClient(settings.mlflow_uri).get_run(run.run_id).data.metrics
    assert {"lr": 0.1} == metrics
    assert 1 == run.skipped


def test_a_server_that_is_down_is_reported_at_once(settings: Settings):
    """The message names the address and both ways out."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"

    with pytest.raises(TrackingError, match=r"does not answer.*unset"):
        check(settings.model_copy(update={"mlflow_uri": address}))


@pytest.mark.slow
def test_eight_processes_can_start_on_an_empty_store_at_once(tmp_path: Path):
    """Case ml-parallel-first-start: the store is created once, by one of them, and all eight log."""
    program = (
        "import pathlib, sys\n"
        "from stages.tracking import Tracker\nfrom stages.plan import Stage\n"
        "from text2sql.config import Profile, Settings\n"
        "profile = Profile.model_validate({'name': 'p', 'model': {'init': 'scratch'}})\n"
        "work = pathlib.Path(sys.argv[1]); work.mkdir()\n"
        "stage = Stage('turns', 'data:make_turns', {}, ('seed',))\n"
        "with Tracker(profile, Settings.from_environment(), 'one').stage(stage, work.name, {}, work) as run:\n"
        "    run.log({'x': 1.0}, 1)\n"
    )
    environment = {
        **os.environ,
        "TEXT2SQL_ARTIFACTS": str(tmp_path / "artifacts"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / f"work{number}")],
            cwd=REPOSITORY,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    errors = [process.communicate()[1] for process in processes]

    client = mlflow.MlflowClient(environment["MLFLOW_TRACKING_URI"])
    runs = client.search_runs([client.get_experiment_by_name("demo").experiment_id], max_results=50)
    assert [0] * 8 == [process.returncode for process in processes], errors
    assert (1, 8) == (
        sum(run.data.tags["kind"] == "lineage" for run in runs),
        sum(run.data.tags["kind"] == "stage" for run in runs),
    )


@pytest.mark.slow
def test_a_real_server_takes_the_same_runs(settings: Settings, work: Path, tmp_path: Path):
    """With MLFLOW_TRACKING_URI set to a server, the same code logs there."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    store = f"sqlite:///{tmp_path / 'server.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port)]
    command += ["--workers", "1", "--artifacts-destination", str(tmp_path / "mlartifacts")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    remote = settings.model_copy(update={"mlflow_uri": f"http://127.0.0.1:{port}"})
    try:
        _wait_until_up(remote)
        with Tracker(PROFILE, remote, "one").stage(STAGE, "00aa", {}, work) as run:
            run.log({"loss": 0.5}, 1)
        metrics = mlflow.MlflowClient(remote.mlflow_uri).get_run(run.run_id).data.metrics
    finally:
        stop_group(server, seconds=10)

    assert {"loss": 0.5} == metrics
    assert run.run_id == json.loads((work / "tracking.json").read_text())["run_id"]


def _wait_until_up(settings: Settings) -> None:
    for _ in range(240):
        with contextlib.suppress(TrackingError):
            check(settings)
            return
        time.sleep(0.25)
    check(settings)
