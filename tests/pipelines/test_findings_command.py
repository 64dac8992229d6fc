"""`python -m pipelines findings`: what it runs, and what it only reads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.__main__ import main
from pipelines.run import run_missing
from stages.claims import CLAIMS
from stages.plan import Plan
from text2sql.config import Settings, load_profile

TINY = (
    "model: {init: scratch}\nbenchmark: {name: demo, split_by: dialogue, databases: [bakery]}\nrounds: 1\n"
    "baselines: false\ncontrols: false\nreward_search: {enabled: false}\nevaluation: {policies: [base]}\n"
)


def test_only_experiments_that_are_not_complete_are_run_and_a_failure_stops_no_other(tmp_path: Path):
    """Seed 1 is complete, the others are run in turn, and the failed one is named."""
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    settings = Settings.from_environment().model_copy(
        update={"artifacts": tmp_path / "artifacts", "experiments": tmp_path}
    )
    plan = Plan(load_profile("tiny@1", tmp_path), settings)
    for key in plan.stages:
        builds = {role: build or "" for role, build in plan.input_builds(key).items()}
        with plan.store.building(key, plan.fingerprints[key], builds):
            plan.store.complete(key, plan.fingerprints[key], {}, builds)
    asked = []

    def run(name: str, settings: Settings) -> int:
        asked.append(name)
        return int(name == "tiny@2")

    assert ["tiny@2"] == run_missing(["tiny@1", "tiny@2", "tiny@3"], settings, run)
    assert ["tiny@2", "tiny@3"] == asked


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`python -m pipelines findings` over the real experiments and an empty store, in this process."""
    monkeypatch.setenv("TEXT2SQL_ARTIFACTS", str(tmp_path / "artifacts"))
    return lambda *arguments: main(["findings", "--out", str(tmp_path / "docs"), *arguments])


def test_without_run_the_command_only_reads(command, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With nothing there every claim is not measured, and nothing is begun."""
    assert 0 == command("--seeds", "5")

    assert f"{len(CLAIMS)} not measured" in capsys.readouterr().out
    assert not (tmp_path / "artifacts" / "benchmark").exists()
    assert "miniature/full@5: evaluation/grpo/scores waits for benchmark" in (
        tmp_path / "docs" / "findings.md"
    ).read_text(encoding="utf-8")


def test_a_page_is_not_lost_for_one_that_says_nothing(command, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Where no experiment of the family has been run, as in a fresh clone, the page and its figures stay."""
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "findings.md").write_text("measured", encoding="utf-8")
    (tmp_path / "docs" / "figures" / "effects.svg").touch()

    assert 1 == command()
    assert "No claim is measured" in capsys.readouterr().err
    assert "measured" == (tmp_path / "docs" / "findings.md").read_text(encoding="utf-8")
    assert (tmp_path / "docs" / "figures" / "effects.svg").exists()


@pytest.mark.parametrize("seeds", ["one", "1,,2", "-1"])
def test_seeds_that_are_none_are_refused(command, seeds: str):
    """Wrong usage, before any work."""
    with pytest.raises(SystemExit) as refused:
        command(f"--seeds={seeds}")

    assert 2 == refused.value.code
