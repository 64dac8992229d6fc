"""
The controls: policies that were trained as long as another one, without what that one adds. A gain counts only over its
control (docs/decisions/0009 has how both are counted).

    control/sft_policy    of the warm start: more of the base policy's own bootstrap
    control/grpo_policy   of GRPO: SFT on the right attempts at the same items
"""

from typing import Any

import polars as pl

from stages.context import StageContext
from stages.policies import BOOTSTRAP_ROWS, bootstrap_rows, carry_over, train
from stages.sampling import sampled
from trainers.budgets import rows_for_budget
from trainers.rows import TrainingRow, read_rows, row_from_trajectory

READ_OR_GENERATED = 1 / 3
"""Of what a trained token costs: a forward pass, where training adds a backward pass, which costs two."""


def make_sft_control(context: StageContext) -> dict[str, Any]:
    """
    From the base policy, more of its bootstrap (dialogues and scripted episodes, their planted mistakes left out) for
    as many optimizer steps as all rounds took together and as nearly as many trained tokens as whole rows allow.
    """
    rounds = [artifact.metrics for role, artifact in context.inputs.items() if role.startswith("round_")]
    steps = sum(metrics.get("steps", 0) for metrics in rounds)  # a round that carried its policy over has none
    tokens = sum(metrics.get("trained_tokens", 0) for metrics in rounds)
    if steps == 0:
        return carry_over(context, "no round was trained")
    settings = context.profile.sft
    rows = rows_for_budget(
        _trainable(read_rows(context.path("policy", BOOTSTRAP_ROWS)), settings.max_tokens),
        steps=steps,
        tokens=tokens,
        rows_per_step=settings.batch_size * settings.gradient_accumulation,
        seed=context.profile.seed,
    )
    metrics = train(context, rows, context.policy(), settings.model_copy(update={"epochs": 1.0}))
    context.say(f"{context.key}: {steps} steps and {tokens} trained tokens were those of the rounds")
    return {
        "carried_over": 0,
        "rounds_steps": steps,
        "rounds_trained_tokens": tokens,
        "rows_of_bootstrap": len({row.row_id for row in rows}),
        **metrics,
    }


def make_grpo_control(context: StageContext) -> dict[str, Any]:
    """
    From the policy that GRPO started from, SFT on those attempts at the items of the buckets that are right by EX and
    EM (with rows of the bootstrap among them, as in a round, where `sft.replay` asks for it), for as many epochs as give
    the model as much to compute as GRPO did.
    """
    grpo = context.inputs["grpo"].metrics
    if grpo["carried_over"]:
        return carry_over(context, "GRPO took no step")
    in_buckets = [item_id for bucket in context.json("buckets", "buckets.json") for item_id in bucket]
    verdicts = pl.read_parquet(context.path("buckets", "verdicts.parquet"))
    verdicts = verdicts.filter(pl.col("ex") & pl.col("em") & pl.col("item_id").is_in(in_buckets))
    right = set(verdicts.select("item_id", "sample").iter_rows())
    settings = context.profile.sft
    attempts = [row_from_trajectory(one) for one in sampled(context, "attempts") if (one.item_id, one.sample) in right]
    rows = _trainable(attempts, settings.max_tokens)
    if not rows:
        return carry_over(context, "no attempt at an item of the buckets was right")
    rows += _trainable(bootstrap_rows(context, round(settings.replay * len(rows))), settings.max_tokens)
    budget = grpo["tokens"] * (1 + READ_OR_GENERATED)  # each token of an episode is read or generated, then trained
    epochs = budget / sum(len(row.input_ids) for row in rows)
    metrics = train(context, rows, context.policy(), settings.model_copy(update={"epochs": epochs}))
    context.say(f"{context.key}: GRPO took as much as {budget:.0f} trained tokens; {epochs:.3g} epochs")
    return {
        "carried_over": 0,
        "grpo_tokens": grpo["tokens"],
        "grpo_as_trained_tokens": round(budget),
        "items": len({item_id for item_id, _ in right}),
        "epochs": epochs,
        **metrics,
    }


def _trainable(rows: list[TrainingRow], max_tokens: int) -> list[TrainingRow]:
    """Those that training would not set aside, so that a budget is made of what is really trained."""
    return [row for row in rows if len(row.input_ids) <= max_tokens and row.trained_tokens]
