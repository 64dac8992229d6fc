"""The stages that train a policy: one per round, GRPO, and the two short-horizon baselines."""

import asyncio
import contextlib
import itertools
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agents.mtsql.actions import answer_text
from agents.mtsql.agent import MtsqlAgent
from agents.mtsql.rewards import reward
from stages.context import StageContext, policy_of, run_ahead
from stages.pools import practice_items
from stages.sampling import short_horizon, some_items
from text2sql.chat import ChatCodec
from text2sql.config import AgentSettings, RewardSettings, SFTSettings
from text2sql.dialogue import Item
from text2sql.engines.base import Engine
from text2sql.errors import TrajectoryError
from text2sql.rollout import Failure, rollout
from text2sql.trajectory import Trajectory, read_trajectories
from trainers.rows import TrainingRow, read_rows, row_from_trajectory

BOOTSTRAP_ROWS = "bootstrap.jsonl"  # in the artifact of a scratch base policy


@dataclass(frozen=True)
class Script:
    """An item, the horizon it is answered at, and what the model says; messages in `mistaken` are not trained."""

    item: Item
    horizon: Literal["long", "short"]
    messages: Sequence[str]
    mistaken: frozenset[int] = frozenset()


def short_answer(item: Item) -> Script:
    """Gold at once."""
    return Script(item, "short", [answer_text(item.gold)])


async def replay_all(scripts: Sequence[Script], agents: dict[str, MtsqlAgent]) -> list[tuple[Script, Trajectory]]:
    """The scripts as trajectories, without those that a token budget ends too early."""
    numbers: dict[str, Iterator[int]] = {}
    replayed = []
    for script in scripts:
        sample = next(numbers.setdefault(script.item.item_id, itertools.count()))
        with contextlib.suppress(TrajectoryError):
            trajectory = await agents[script.horizon].replay(script.item.question(), script.messages, sample=sample)
            replayed.append((script, trajectory))
    return replayed


def make_round_policy(context: StageContext) -> dict[str, Any]:
    """
    Algorithm 1, S3: SFT on all trajectories selected so far, from the policy of the round before (or from the base
    policy, by `sft.start_from`), with rows of the bootstrap among them where `sft.replay` asks for it. A round that kept
    nothing new carries its policy over and says so.
    """
    new = sum(1 for _ in read_trajectories(context.path("selected", "new.jsonl")))
    if new == 0:
        return carry_over(context, "this round selected no new trajectory")
    trajectories = list(read_trajectories(context.path("selected", "trajectories.jsonl")))
    settings = context.profile.sft
    start = context.policy("base" if settings.start_from == "base" else "policy")
    rows = [row_from_trajectory(one) for one in trajectories]
    again = bootstrap_rows(context, round(settings.replay * len(rows)))
    metrics = train(context, [*rows, *again], start, settings)
    return {"carried_over": 0, "new_trajectories": new, "replayed": len(again), **metrics}


def bootstrap_rows(context: StageContext, count: int) -> list[TrainingRow]:
    """So many rows of the bootstrap, all of them where it has no more."""
    if not count:
        return []
    rows = read_rows(context.path("base", BOOTSTRAP_ROWS))
    return random.Random(f"{context.profile.seed}/{context.key}").sample(rows, min(count, len(rows)))


def carry_over(context: StageContext, reason: str) -> dict[str, Any]:
    """Let this stage's policy be its input policy, by reference."""
    policy = policy_of(context.inputs["policy"].path)
    name = os.path.relpath(policy, context.out) if Path(policy).is_dir() else policy
    context.write_json("reference.json", {"policy": name, "reason": f"carried over: {reason}"})
    context.say(f"{context.key}: {reason}; the policy before is carried over")
    return {"carried_over": 1, "new_trajectories": 0}


def make_short_horizon_sft_policy(context: StageContext) -> dict[str, Any]:
    """Baseline: the base policy fine-tuned on gold SQL, answered at once."""
    items = some_items(practice_items(context), context.profile.sampling.max_items, context.profile.seed)
    policy = context.policy()
    with context.executor() as executor:
        agent = MtsqlAgent(
            ChatCodec.load(policy), executor, context.database_root, short_horizon(context.profile.agent)
        )
        replayed = asyncio.run(replay_all([short_answer(item) for item in items], {"short": agent}))
    return {
        "items": len(items),
        "episodes_too_long": len(items) - len(replayed),
        **train(context, [row_from_trajectory(one) for _, one in replayed], policy, context.profile.sft),
    }


def train(
    context: StageContext, rows: Sequence[TrainingRow], start: str, settings: SFTSettings, name: str = "policy"
) -> dict[str, Any]:
    """
    Masked SFT into the stage's own policy. With another `name`, what is trained on the way to it: a folder of that name
    in `work`, and its name before its metrics.
    """
    from trainers.sft import train_sft

    prefix = "" if name == "policy" else f"{name}/"
    metrics = train_sft(
        rows,
        Path(start),
        context.out / "policy" if name == "policy" else context.work / name,
        settings,
        seed=context.profile.seed,
        work=context.work / f"{name}.checkpoints",
        on_metrics=lambda values, step: context.log({f"{prefix}{key}": v for key, v in values.items()}, step),
    )
    said = ", ".join(f"{key} {_short(value)}" for key, value in metrics.items())
    context.say(f"{context.key}: {prefix.replace('/', ': ')}{said}")
    return {f"{prefix}{key}": value for key, value in metrics.items()}


def make_grpo_policy(context: StageContext) -> dict[str, Any]:
    """Curriculum GRPO from the warm-started policy, bucket after bucket, with the profile's rewards."""
    buckets: list[list[str]] = context.json("buckets", "buckets.json")
    return reinforce(context, buckets, context.profile.agent, context.profile.rewards)


def make_short_horizon_grpo_policy(context: StageContext) -> dict[str, Any]:
    """Baseline: direct RL of the base policy with the outcome reward alone, in one bucket, answered at once."""
    items = some_items(practice_items(context), context.profile.sampling.max_items, context.profile.seed)
    outcome = context.profile.rewards.model_copy(update={"propose": 0.0, "e_verify": 0.0, "m_verify": 0.0})
    steps = (sum(context.profile.grpo.steps_per_bucket),)
    return reinforce(context, [[item.item_id for item in items]], short_horizon(context.profile.agent), outcome, steps)


def reinforce(
    context: StageContext,
    buckets: Sequence[Sequence[str]],
    agent_settings: AgentSettings,
    rewards: RewardSettings,
    steps_per_bucket: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """
    GRPO over the items of `buckets`. A policy whose buckets are all empty (every item always solved) is carried over.
    The live model samples through the same agent and environment as everywhere; rewards come from its events. A sample
    that the machine lost has none.
    """
    from trainers.grpo import RolloutSample, train_grpo

    if not any(buckets):
        return carry_over(context, "the curriculum has no item left to learn from")
    profile = context.profile
    policy = context.policy()
    items = {item.item_id: item for item in context.items("train")}
    golds = {item_id: item.gold for item_id, item in items.items()}
    settings = profile.grpo
    if steps_per_bucket is not None:
        settings = settings.model_copy(update={"steps_per_bucket": steps_per_bucket})
    with context.scorer() as scorer, context.executor() as executor:
        agent = MtsqlAgent(ChatCodec.load(policy), executor, context.database_root, agent_settings)

        def roll_out(engine: Engine, item_ids: Sequence[str], seed: int) -> list[RolloutSample]:
            """One rewarded sample per entry of `item_ids`; an item stands there once for each sample of its group."""
            trajectories: dict[str, Iterator[Trajectory]] = defaultdict(lambda: iter(()))
            failures: list[Failure] = []
            for count, group in by_count(item_ids).items():
                played = asyncio.run(
                    rollout(
                        agent,
                        engine,
                        [items[item_id] for item_id in group],
                        samples=count,
                        temperature=settings.temperature,
                        concurrency=profile.engine.concurrency,
                        seed=seed,
                        prior="gold",
                        on_failure=failures.append,
                    )
                )
                for item_id, own in itertools.groupby(played, key=lambda trajectory: trajectory.item_id):
                    trajectories[item_id] = iter(list(own))
            if failures:
                context.say(f"{context.key}: samples lost by the machine: {len(failures)}, by {failures[-1].message}")
            ordered = [next(trajectories[item_id], None) for item_id in item_ids]
            judged = run_ahead(scorer, [one for one in ordered if one], golds)
            samples = zip(item_ids, ordered, strict=True)
            return [rewarded(next(judged)) if one else lost(item_id) for item_id, one in samples]

        def lost(item_id: str) -> RolloutSample:
            prompt, tools = agent.environment(items[item_id].question()).prompt()
            ids = agent.codec.prompt_ids(prompt, tools)
            return RolloutSample(item_id, ids, (), (), (), reward=None, status="infrastructure")

        def rewarded(trajectory: Trajectory) -> RolloutSample:
            result = reward(trajectory, golds[trajectory.item_id], scorer, rewards)
            ids, mask, logprobs = trajectory.completion
            return RolloutSample(
                item_id=trajectory.item_id,
                prompt_ids=tuple(trajectory.prompt_ids),
                completion_ids=tuple(ids),
                completion_mask=tuple(mask),
                logprobs=tuple(logprobs),
                reward=result.total,
                parts=dict(result.parts),
                status=result.status,
                truncated=trajectory.stop_reason in ("max_message_tokens", "max_episode_tokens"),
                tool_calls=trajectory.tool_calls,
            )

        metrics = train_grpo(
            buckets,
            roll_out,
            Path(policy),
            context.out / "policy",
            settings,
            seed=profile.seed,
            work=context.work / "policy.checkpoints",
            on_metrics=context.log,
            # The weights change with every step: they sample in this process, whatever serves finished policies.
            engine=profile.engine.model_copy(update={"kind": "transformers"}),
        )
    context.say(f"{context.key}: {', '.join(f'{key} {_short(value)}' for key, value in metrics.items())}")
    return {"carried_over": 0, **metrics}


def by_count(item_ids: Sequence[str]) -> dict[int, list[str]]:
    """Distinct ids by how often they stand in the list."""
    groups: dict[int, list[str]] = {}
    for item_id, count in Counter(item_ids).items():
        groups.setdefault(count, []).append(item_id)
    return groups


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, default=str)
