"""The checks between artifacts."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stages.checks import splits_share_nothing
from stages.plan import Plan
from text2sql.artifacts import Artifact
from text2sql.config import Profile, Settings


def turns(tmp_path: Path, *rows: tuple[str, str, str]) -> Artifact:
    """A table of turns with these splits, dialogues and databases."""
    frame = pl.DataFrame(rows, schema=["split", "dialogue_id", "db_id"], orient="row")
    frame.write_parquet(tmp_path / "turns.parquet")
    return Artifact("turns", "00aa", tmp_path, {})


def plan(tmp_path: Path, split_by: str) -> Plan:
    values: dict[str, Any] = {"name": "checked", "model": {"init": "scratch"}, "benchmark": {"split_by": split_by}}
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
