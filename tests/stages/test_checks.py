"""The checks between artifacts."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stages.checks import WARM_START, beats, splits_share_nothing
from stages.plan import Plan
from text2sql.artifacts import Artifact
from text2sql.config import Profile, Settings


def turns(tmp_path: Path, *rows: tuple[str, str, str]) -> Artifact:
    """A table of turns with these splits, dialogues and databases."""
    frame = pl.DataFrame(rows, schema=["split", "dialogue_id", "db_id"], orient="row")
    frame.write_parquet(tmp_path / "turns.parquet")
    return Artifact("turns", "00aa", tmp_path, {})


def plan(tmp_path: Path, split_by: str, rounds: int = 3) -> Plan:
    values: dict[str, Any] = {"name": "checked", "model": {"init": "scratch"}, "benchmark": {"split_by": split_by}}
    values["rounds"] = rounds
    settings = Settings.from_environment().model_copy(update={"artifacts": tmp_path / "artifacts"})
    return Plan(Profile.model_validate(values), settings)


@pytest.mark.parametrize(("split_by", "passed"), [("database", False), ("dialogue", True)])
def test_what_splits_must_not_share_follows_the_profile(tmp_path: Path, split_by: str, passed: bool):
    """Split by database, no database may stand in two splits; split by dialogue, databases may, dialogues may not."""
    artifact = turns(tmp_path, ("train", "t/0", "shop"), ("validation", "t/1", "school"), ("dev", "d/0", "shop"))
    result = splits_share_nothing(plan(tmp_path, split_by), artifact)

    assert passed == result.passed
    assert ({} if passed else {"train and dev": ["shop"]}) == result.figures


def test_a_dialogue_in_two_splits_fails_however_it_was_split(tmp_path: Path):
    """The pair of splits and the dialogue are named."""
    artifact = turns(tmp_path, ("train", "t/0", "shop"), ("validation", "t/0", "shop"), ("dev", "d/0", "shop"))
    result = splits_share_nothing(plan(tmp_path, "dialogue"), artifact)

    assert {"train and validation": ["t/0"]} == result.figures
    assert not result.passed


@pytest.mark.parametrize(
    ("rounds", "passed", "compared"), [(2, False, "grpo 5.0%, of round_2 10.0%"), (0, False, "grpo")]
)
def test_grpo_is_compared_with_the_last_round_that_the_experiment_has(
    tmp_path: Path, rounds: int, passed: bool, compared: str
):
    """Without rounds that is the base policy."""
    figures = {"base": {"ex": 0.5}, "round_2": {"ex": 0.1}, "grpo": {"ex": 0.05}}
    report = Artifact("report", "00aa", tmp_path, {"metrics": figures})
    result = beats("grpo", WARM_START)(plan(tmp_path, "dialogue", rounds), report)

    assert passed == result.passed
    assert compared in result.description


@pytest.mark.parametrize(
    ("low", "said"),
    [
        (-0.01, "EX of grpo 25.0%, of control_grpo 21.0%: +4.0 points [-1.0, +9.0], which may be chance."),
        (0.01, "EX of grpo 25.0%, of control_grpo 21.0%: +4.0 points [+1.0, +9.0]."),
    ],
)
def test_a_gain_that_may_be_chance_is_called_so(tmp_path: Path, low: float, said: str):
    """The check passes by the figures alone; its text has the interval of the report."""
    gain = {"grpo_over_control_grpo": {"ex_effect": 0.04, "ex_low": low, "ex_high": 0.09}}
    figures = {"grpo": {"ex": 0.25}, "control_grpo": {"ex": 0.21}, "gains": gain}
    result = beats("grpo", "control_grpo")(
        plan(tmp_path, "dialogue"), Artifact("report", "00aa", tmp_path, {"metrics": figures})
    )

    assert (True, said) == (result.passed, result.description)


@pytest.mark.parametrize("figures", [{"base": {"ex": 0.5}}, {"base": {"ex": None}, "round_3": {"ex": 0.5}}])
def test_policies_without_scores_are_not_compared(tmp_path: Path, figures: dict[str, Any]):
    """One that is not evaluated, or of which no turn could be graded, is neither better nor worse."""
    result = beats(WARM_START, "base")(
        plan(tmp_path, "dialogue"), Artifact("report", "00aa", tmp_path, {"metrics": figures})
    )

    assert result.passed
    assert "does not compare round_3 with base" in result.description
