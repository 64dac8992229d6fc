"""
The whole lineage for real: experiment `smoke` through Dagster, killed twice on the way.

One run is shared by the tests of this file: it is killed outright in the middle of SFT, started again, killed in the
middle of sampling, started again and left to end.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import dagster as dg
import mlflow
import pytest

from stages.plan import Plan
from text2sql.config import REPOSITORY, Settings, load_profile
from text2sql.trajectory import read_trajectories
from trainers.rows import read_rows

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "pipelines", "run", "smoke"]


@dataclass(frozen=True)
class Lineage:
    settings: Settings
    environment: dict[str, str]
    shard_times: dict[str, int]
    output: str

    @property
    def plan(self) -> Plan:
        return Plan(load_profile("smoke", self.settings.experiments), self.settings)

    def run(self) -> str:
        result = subprocess.run(
            COMMAND, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, encoding="utf-8"
        )
        assert 0 == result.returncode, result.stdout + result.stderr
        return result.stdout + result.stderr


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    folder = tmp_path_factory.mktemp("lineage")
    home = folder / "dagster_home"
    home.mkdir()
    (home / "dagster.yaml").write_bytes((REPOSITORY / "dagster_home" / "dagster.yaml").read_bytes())
    places = {
        "TEXT2SQL_ARTIFACTS": str(folder / "artifacts"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "DAGSTER_HOME": str(home),
    }
    settings = Settings.from_environment().model_copy(
        update={
            "artifacts": folder / "artifacts",
            "mlflow_uri": places["MLFLOW_TRACKING_URI"],
            "dagster_home": home,
        }
    )
    environment = {**os.environ, **places}
    plan = Plan(load_profile("smoke", settings.experiments), settings)

    base = plan.store.partial_folder("base_policy", plan.fingerprints["base_policy"])
    kill_when(lambda: any((base / "work" / "policy.checkpoints").glob("*")), environment)
    sampling = plan.store.partial_folder("round_1/trajectories", plan.fingerprints["round_1/trajectories"])
    kill_when(lambda: any(sampling.glob("shards/*.jsonl")), environment)
    shard_times = {path.name: path.stat().st_mtime_ns for path in sampling.glob("shards/*.jsonl")}

    whole = Lineage(settings, environment, shard_times, "")
    return Lineage(settings, environment, shard_times, whole.run())


def kill_when(condition, environment: dict[str, str], seconds: float = 600) -> None:
    """Start the lineage and kill it outright (SIGKILL, no chance to clean up) as soon as `condition` holds."""
    process = subprocess.Popen(
        COMMAND, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the lineage ended before it could be killed"
        assert time.monotonic() < deadline, "the moment to kill never came"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_every_stage_of_the_plan_is_complete_at_the_end(lineage: Lineage):
    """After two kills the third command makes what is left."""
    assert {"complete"} == set(lineage.plan.states().values())


def test_no_item_is_sampled_twice_or_lost_by_a_kill(lineage: Lineage):
    """Each item of the round has its number of samples, each once; the shard that was finished stayed as it was."""
    artifact = lineage.plan.find("round_1/trajectories")
    assert artifact is not None
    samples = Counter((one.item_id, one.sample) for one in read_trajectories(artifact.path / "shards"))
    times = {path.name: path.stat().st_mtime_ns for path in (artifact.path / "shards").glob("*.jsonl")}

    assert {1} == set(samples.values())
    assert len(samples) == artifact.metrics["items"] * artifact.metrics["samples"]
    assert lineage.shard_times
    assert lineage.shard_times.items() <= times.items()


def test_a_stage_that_was_killed_goes_on_in_its_mlflow_run(lineage: Lineage):
    """The base policy's run has a second attempt and ends finished."""
    artifact = lineage.plan.find("base_policy")
    assert artifact is not None
    run = mlflow.MlflowClient(lineage.settings.mlflow_uri).get_run(artifact.manifest["mlflow"]["run_id"])

    assert ("2", "FINISHED") == (run.data.tags["attempt"], run.info.status)


def test_materializations_and_mlflow_runs_link_to_each_other(lineage: Lineage):
    """From the asset page to the run, and from the run to the Dagster run that made it."""
    client = mlflow.MlflowClient(lineage.settings.mlflow_uri)
    with dg.DagsterInstance.from_config(str(lineage.settings.dagster_home)) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["round_2", "policy"]))
        assert event is not None
        materialization = event.asset_materialization
        assert materialization is not None
        run = client.get_run(str(materialization.metadata["mlflow_run"].value))

        assert instance.has_run(run.data.tags["dagster_run"])
    assert materialization.metadata["fingerprint"].value == run.data.tags["fingerprint"]


def test_runs_of_killed_processes_are_closed(lineage: Lineage):
    """The next command marks them failed and gives their pool slots back; none hangs as started."""
    with dg.DagsterInstance.from_config(str(lineage.settings.dagster_home)) as instance:
        statuses = Counter(run.status.value for run in instance.get_runs())

    assert {"FAILURE": 2, "SUCCESS": 1} == statuses


def test_every_round_trains_on_the_agents_own_tokens_only(lineage: Lineage):
    """What was kept was replayed through the environment, and nothing came out otherwise."""
    for number in (1, 2, 3):
        artifact = lineage.plan.find(f"round_{number}/selected")
        assert artifact is not None
        assert [] == json.loads((artifact.path / "replay.json").read_text(encoding="utf-8"))


def test_the_base_policys_episodes_say_what_is_not_to_be_learnt(lineage: Lineage):
    """Whoever trains on them again knows their horizon and, of long ones, the messages that are planted mistakes."""
    artifact = lineage.plan.find("base_policy")
    assert artifact is not None
    episodes = list(read_trajectories(artifact.path / "episodes.jsonl"))
    mistaken = [one.details["mistaken"] for one in episodes if one.details["horizon"] == "long"]

    assert {"long", "short"} == {one.details["horizon"] for one in episodes}
    assert any(mistaken)
    assert not any(one.details["mistaken"] for one in episodes if one.details["horizon"] == "short")


def test_the_base_policy_keeps_the_rows_it_was_taught(lineage: Lineage):
    """Dialogues and episodes, each under a name of its own: what rounds replay and what the control goes on with."""
    artifact = lineage.plan.find("base_policy")
    assert artifact is not None
    names = [row.row_id for row in read_rows(artifact.path / "bootstrap.jsonl")]

    assert artifact.metrics["rows"] == len(set(names)) == len(names)
    assert {"dialogue", "episode"} == {name.partition(" ")[0] for name in names}


def test_the_controls_take_as_long_as_what_they_control(lineage: Lineage):
    """The warm start's as many steps as all rounds; GRPO's 4/3 of the tokens that went through GRPO."""
    made = {key: lineage.plan.find(key) for key in lineage.plan.stages if key.endswith("policy")}
    metrics = {key: artifact.metrics for key, artifact in made.items() if artifact}
    sft, grpo = metrics["control/sft_policy"], metrics["control/grpo_policy"]

    assert sft["steps"] == sum(metrics[f"round_{number}/policy"].get("steps", 0) for number in (1, 2, 3))
    assert grpo["carried_over"] or grpo["grpo_as_trained_tokens"] == round(metrics["grpo/policy"]["tokens"] * 4 / 3)


def test_a_second_run_reuses_everything_and_a_deleted_round_is_made_again_with_what_depends_on_it(lineage: Lineage):
    """Round 3's selection deleted: its policy, GRPO, their evaluations and the report are new; the rest keeps its builds."""
    before = {key: artifact.build for key in lineage.plan.stages if (artifact := lineage.plan.find(key))}
    again = lineage.run()
    reused = {key: artifact.build for key in lineage.plan.stages if (artifact := lineage.plan.find(key))}

    plan = lineage.plan
    folder = plan.store.folder("round_3/selected", plan.fingerprints["round_3/selected"])
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink()
    folder.rmdir()
    lineage.run()
    after = {key: artifact.build for key in plan.stages if (artifact := plan.find(key))}

    remade = {key for key in after if after[key] != before[key]}
    assert before == reused
    assert "40 of 40 stages are complete already" in again
    assert {"round_3/selected", "round_3/policy", "curriculum/attempts", "grpo/policy", "report"} <= remade
    assert not {key for key in remade if key.startswith(("round_1", "round_2", "base", "turns", "benchmark", "short"))}
    assert "round_3/trajectories" not in remade
    assert "evaluation/round_2/scores" not in remade
