"""A round's SFT, on a policy small enough to train in seconds."""

from dataclasses import replace
from pathlib import Path

import pytest

from stages.policies import BOOTSTRAP_ROWS, make_round_policy
from text2sql.config import Profile
from text2sql.trajectory import Segment, write_trajectories
from trainers.rows import TrainingRow, write_rows

GOLD = "SELECT name FROM staff"
SFT = {"epochs": 1.0, "learning_rate": 1e-3, "batch_size": 2, "gradient_accumulation": 1, "max_tokens": 100}


@pytest.fixture
def round_of(make_context, dialogue, episode, policy: Path, tmp_path: Path):
    """`round_of(sft)`: the stage's context; four trajectories are selected, the bootstrap had ten rows."""

    def make(**sft):
        items = dialogue("t/0", "train", *[GOLD] * 4)
        segments = (Segment("prompt", (5, 6, 7)), Segment("model", (8,) * 4, (0.0,) * 4))
        kept = [episode(item, 0, GOLD) for item in items]
        selected, base = tmp_path / "selected", tmp_path / "base"
        for folder in (selected, base):
            folder.mkdir()
        for name in ("new.jsonl", "trajectories.jsonl"):
            write_trajectories([replace(one, segments=segments) for one in kept], selected / name)
        write_rows([TrainingRow(f"dialogue {n}", (5, 9, 9), (0, 1, 1)) for n in range(10)], base / BOOTSTRAP_ROWS)
        inputs = {"selected": selected, "policy": policy, "base": base}
        return make_context("round_1/policy", items, {"sft": {**SFT, **sft}}, **inputs)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("replay", "rows"), [(0.0, 0), (1.5, 6), (9.0, 10)])
def test_rows_of_the_bootstrap_are_trained_along(round_of, replay: float, rows: int):
    """`sft.replay` rows of the bootstrap per selected trajectory, each once, all of them where it has no more."""
    metrics = make_round_policy(round_of(replay=replay))

    assert (rows, 4 + rows, 4) == (metrics["replayed"], metrics["rows"], metrics["new_trajectories"])
    assert metrics["trained_tokens"] == 4 * 4 + 2 * rows


@pytest.mark.slow
def test_a_finished_round_is_not_trained_again(round_of):
    """What fails after the training costs no training: the next attempt takes no step and has the same numbers."""
    context = round_of()
    first = make_round_policy(context)
    steps: list[int] = []

    again = make_round_policy(replace(context, log=lambda values, step: steps.append(step)))

    assert [] == steps
    assert {**first, "resumed_from_step": 2, "seconds": again["seconds"]} == again


def test_a_pretrained_policy_has_nothing_to_replay():
    """The profile is refused: no bootstrap, no rows."""
    with pytest.raises(ValueError, match=r"sft\.replay .* a pretrained policy has none"):
        Profile.model_validate({"name": "x", "model": {"name": "Qwen/Qwen3-1.7B"}, "sft": {"replay": 1.0}})
