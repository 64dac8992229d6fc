"""The controls, on a policy small enough to train in seconds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stages.controls import make_grpo_control, make_sft_control
from stages.policies import BOOTSTRAP_ROWS
from text2sql.artifacts import Artifact
from text2sql.policy import check_policy
from text2sql.trajectory import Segment, write_trajectories
from trainers.rows import TrainingRow, row_from_trajectory, write_rows

GOLD = "SELECT name FROM staff"
SFT = {"epochs": 3.0, "learning_rate": 1e-3, "batch_size": 2, "gradient_accumulation": 1, "max_tokens": 100}


def spoken(trajectory, *messages: int, **details: Any):
    """The trajectory with a prompt of three tokens and messages of these lengths, each but the last one answered."""
    segments = [Segment("prompt", (5, 6, 7))]
    for number, length in enumerate(messages):
        segments.append(Segment("model", (8,) * length, (0.0,) * length))
        if number < len(messages) - 1:
            segments.append(Segment("environment", (9, 9)))
    return replace(trajectory, segments=tuple(segments), details=details)


def with_metrics(context, **metrics: dict[str, Any]):
    """The context with inputs that have these metrics, by role."""
    made = {role: Artifact(role, "0" * 16, context.out, {"metrics": values}) for role, values in metrics.items()}
    return replace(context, inputs={**context.inputs, **made})


@pytest.fixture
def sft_control(make_context, dialogue, episode, policy: Path, tmp_path: Path):
    """
    `sft_control(**rounds)`: the context of the stage, where the base policy was taught 20 rows of four trained tokens and
    as many of 50.
    """

    def make(**rounds: dict[str, Any]):
        items = dialogue("t/0", "train", *[GOLD] * 20)
        small = [row_from_trajectory(spoken(episode(item, 0, GOLD), 6, 4), left_out=[0]) for item in items]
        large = [row_from_trajectory(spoken(episode(item, 1, GOLD), 50)) for item in items]
        base = tmp_path / "base"
        base.mkdir()
        (base / "policy").symlink_to(policy / "policy")
        write_rows([*small, *large], base / BOOTSTRAP_ROWS)
        return with_metrics(make_context("control/sft_policy", items, {"sft": SFT}, policy=base), **rounds)

    return make


@pytest.fixture
def grpo_control(make_context, dialogue, episode, policy: Path, tmp_path: Path):
    """
    `grpo_control(right, **grpo)`: four items with two attempts each, each of 3 + 4 tokens; `right` are (item, sample)
    right by EX and EM, and of the items 1 to 3 are in the buckets.
    """

    def make(right: set[tuple[int, int]], replay: float = 0.0, **grpo: Any):
        items = dialogue("t/0", "train", *[GOLD] * 4)
        (tmp_path / "attempts" / "shards").mkdir(parents=True)
        attempts = [spoken(episode(item, sample, GOLD), 4) for item in items for sample in range(2)]
        write_trajectories(attempts, tmp_path / "attempts" / "shards" / "00000-00003.jsonl")
        buckets = tmp_path / "buckets"
        buckets.mkdir()
        (buckets / "buckets.json").write_text(json.dumps([["t/0/1"], ["t/0/2", "t/0/3"]]), encoding="utf-8")
        rows = [
            {"item_id": one.item_id, "sample": one.sample, "ex": True, "em": (one.turn, one.sample) in right}
            for one in attempts
        ]
        pl.DataFrame(rows).write_parquet(buckets / "verdicts.parquet")
        base = tmp_path / "base"
        base.mkdir()
        write_rows(
            [TrainingRow(f"dialogue {n}", (5, 6, 7, 8, 8, 8, 8), (0, 0, 0, 1, 1, 1, 1)) for n in range(9)],
            base / BOOTSTRAP_ROWS,
        )
        inputs = {"policy": policy, "base": base, "attempts": tmp_path / "attempts", "buckets": buckets}
        context = make_context("control/grpo_policy", items, {"sft": {**SFT, "replay": replay}}, **inputs)
        return with_metrics(context, grpo={"carried_over": 0, "tokens": 0, **grpo})

    return make


def carried_over(context, metrics: dict[str, Any]) -> str:
    assert 1 == metrics["carried_over"]
    return json.loads((context.out / "reference.json").read_text(encoding="utf-8"))["reason"]


@pytest.mark.slow
def test_the_sft_control_takes_the_steps_and_the_trained_tokens_of_all_rounds(sft_control):
    """
    Rows of the bootstrap in the rounds' batch size, the longest left out to come as near. A round that carried its
    policy over took nothing.
    """
    context = sft_control(
        round_1={"steps": 7, "trained_tokens": 52},
        round_2={"carried_over": 1},
        round_3={"steps": 3, "trained_tokens": 24},
    )
    metrics = make_sft_control(context)

    assert (10, 76) == (metrics["rounds_steps"], metrics["rounds_trained_tokens"])
    assert (10, 76, 19) == (metrics["steps"], metrics["trained_tokens"], metrics["rows"])
    check_policy(context.out / "policy")


def test_the_sft_control_of_rounds_that_trained_nothing_is_the_base_policy(sft_control):
    """Carried over, and it says why."""
    context = sft_control(round_1={"carried_over": 1}, round_2={"carried_over": 1})

    assert "carried over: no round was trained" == carried_over(context, make_sft_control(context))


@pytest.mark.slow
def test_the_grpo_control_is_trained_on_right_attempts_at_the_items_of_the_buckets(grpo_control):
    """
    Three of the right attempts are at items of the buckets. GRPO put 157 tokens through the model: read or generated
    once, a third each, and trained once, 209 together. The three rows have 21 tokens, so 30 rows are trained.
    """
    context = grpo_control({(1, 0), (1, 1), (3, 1), (4, 0)}, tokens=157)
    metrics = make_grpo_control(context)

    assert (3, 2) == (metrics["rows"], metrics["items"])
    assert (209, 210) == (metrics["grpo_as_trained_tokens"], metrics["tokens"])
    assert 15 == metrics["steps"]
    check_policy(context.out / "policy")


@pytest.mark.slow
def test_the_grpo_control_replays_the_bootstrap_as_rounds_do(grpo_control):
    """As many rows of the bootstrap as `sft.replay` says, within the same number of tokens."""
    metrics = make_grpo_control(grpo_control({(1, 0), (1, 1), (3, 1)}, replay=2.0, tokens=157))

    assert (3 + 6, 210) == (metrics["rows"], metrics["tokens"])


@pytest.mark.parametrize(
    ("right", "grpo", "reason"),
    [
        ({(4, 0)}, {"tokens": 100}, "no attempt at an item of the buckets was right"),
        ({(1, 0)}, {"carried_over": 1}, "GRPO took no step"),
    ],
)
def test_the_grpo_control_without_anything_to_train_is_the_policy_before(grpo_control, right, grpo, reason):
    """Carried over, and it says why."""
    context = grpo_control(right, **grpo)

    assert f"carried over: {reason}" == carried_over(context, make_grpo_control(context))
