"""
Groups of rewarded samples: what the rollout hands to GRPO, and the numbers GRPO makes from it. No torch.

Rules for samples without a reward:
1. a sample whose reward is None or not finite leaves its group: it has no part in mean and spread, its advantage is 0,
   its tokens count in no loss and in no denominator. None is never taken for 0;
2. a group with fewer than two rewarded samples, or with equal rewards, is flat: its advantages are exactly 0;
3. a sample that claims to be rewarded (`status` ok) but has no reward, or parts that are all None, is an error.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from text2sql.errors import TrainingError

EQUAL = 1e-9  # rewards of a group that differ by less are equal: only rounding tells them apart
SPREAD_FLOOR = 1e-4  # added to the standard deviation, as TRL does


@dataclass(frozen=True)
class RolloutSample:
    """
    One episode as GRPO needs it. `completion_ids` holds all tokens after the prompt, `completion_mask` is 1 for the
    model's own, `logprobs` has one value per completion token (0.0 for the environment's). `parts` of the reward are
    logged apart; `metrics` holds further numbers to average per step. `truncated`: a token limit ended the episode.
    """

    item_id: str
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    completion_mask: Sequence[int]
    logprobs: Sequence[float]
    reward: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    status: Literal["ok", "ungradable", "infrastructure"] = "ok"
    truncated: bool = False
    tool_calls: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def rewarded(self) -> bool:
        return self.reward is not None and math.isfinite(self.reward)

    def check(self, index: int) -> None:
        """Raise TrainingError, naming item and sample, when lengths differ or rule 3 is broken."""
        where = f"item {self.item_id}, sample {index}"
        lengths = {len(self.completion_ids), len(self.completion_mask), len(self.logprobs)}
        if len(lengths) != 1 or not self.prompt_ids:
            raise TrainingError(
                f"{where}: {len(self.prompt_ids)} prompt ids, {len(self.completion_ids)} completion ids, a mask of "
                f"{len(self.completion_mask)} and {len(self.logprobs)} logprobs; expected a prompt, and the last three "
                "of equal length. The rollout must hand over ids as they were sampled."
            )
        empty = bool(self.parts) and all(part is None for part in self.parts.values())
        if self.status == "ok" and (self.reward is None or empty):
            raise TrainingError(
                f"{where}: status ok, but reward {self.reward} and parts {dict(self.parts)}. A sample without any "
                "reward must say why: status 'ungradable' or 'infrastructure'."
            )


def group_advantages(
    rewards: Sequence[float | None], group_size: int, scale_rewards: Literal["group", "batch"] = "group"
) -> list[float]:
    """
    (reward - mean) / (standard deviation + 1e-4) within each run of `group_size` rewards; 0.0 by rules 1 and 2. The
    standard deviation is the sample's (n - 1), as in TRL and verl. With `scale_rewards` "batch" it is that of all rewards
    of the step (arXiv 2508.08221): a group in which only a verdict differs then weighs less than one in which the
    answer does.
    """
    advantages: list[float] = []
    by_step = None if scale_rewards == "group" or is_flat(rewards) else statistics.stdev(_finite(rewards))
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        if is_flat(group):
            advantages.extend([0.0] * len(group))
            continue
        values = _finite(group)
        mean = statistics.fmean(values)
        spread = (by_step or statistics.stdev(values)) + SPREAD_FLOOR
        advantages.extend(
            (reward - mean) / spread if reward is not None and math.isfinite(reward) else 0.0 for reward in group
        )
    return advantages


def is_flat(group: Sequence[float | None]) -> bool:
    """True when nothing can be learned from a group's rewards (rule 2)."""
    values = _finite(group)
    return len(values) < 2 or max(values) - min(values) < EQUAL


@dataclass(frozen=True)
class SampleNumbers:
    """The numbers of one sample, without its tokens: cheap to collect from all processes."""

    reward: float | None
    parts: Mapping[str, float | None]
    status: str
    truncated: bool
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    model_tokens: int
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, sample: RolloutSample) -> "SampleNumbers":
        return cls(
            sample.reward if sample.rewarded else None,
            sample.parts,
            sample.status,
            sample.truncated,
            sample.tool_calls,
            len(sample.prompt_ids),
            len(sample.completion_ids),
            sum(sample.completion_mask),
            sample.metrics,
        )


def step_metrics(samples: Sequence[SampleNumbers], group_size: int) -> dict[str, float]:
    """
    Means over one step. A part of the reward is averaged over the samples that have it; a mean over nothing is left
    out. `completion_tokens` counts all tokens after the prompt, `model_tokens` the model's own; shares run from 0 to 1,
    `left_out_share` being the samples without a reward and `infrastructure_share` those the machine lost.
    """
    rewards = [sample.reward for sample in samples]
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    values = {
        "completion_tokens": _mean([sample.completion_tokens for sample in samples]),
        "model_tokens": _mean([sample.model_tokens for sample in samples]),
        "tool_calls": _mean([sample.tool_calls for sample in samples]),
        "truncated_share": _mean([sample.truncated for sample in samples]),
        "left_out_share": _mean([reward is None for reward in rewards]),
        "infrastructure_share": _mean([sample.status == "infrastructure" for sample in samples]),
        "flat_groups_share": _mean([is_flat(group) for group in groups]),
        "reward": _mean([reward for reward in rewards if reward is not None]),
    }
    for name in sorted({name for sample in samples for name in sample.parts}):
        parts = [sample.parts.get(name) for sample in samples]
        values[f"reward/{name}"] = _mean([part for part in parts if part is not None and math.isfinite(part)])
    for name in sorted({name for sample in samples for name in sample.metrics}):
        values[name] = _mean([sample.metrics[name] for sample in samples if name in sample.metrics])
    return {name: value for name, value in values.items() if value is not None}


def _finite(rewards: Sequence[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None and math.isfinite(reward)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
