"""
The stages that sample: a round's trajectories, attempts for the curriculum and the reward search, predictions on dev.

All are one job: roll the agent out over a list of items in shards. A finished shard is a file that is never made
again, so a run that was killed goes on where it stopped; the seed of a sample depends on its item and number only, not
on the shard or on what else was running.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.mtsql.agent import MtsqlAgent
from stages.context import StageContext
from text2sql.chat import ChatCodec
from text2sql.config import AgentSettings
from text2sql.dialogue import Item, Prior
from text2sql.engines import open_engine
from text2sql.rollout import rollout
from text2sql.trajectory import Trajectory, read_trajectories, write_trajectories


def make_trajectories(context: StageContext) -> dict[str, Any]:
    """A round of the warm start: samples on every train item that no earlier round has solved (Algorithm 1, S1)."""
    settings = context.profile.sampling
    solved = set(context.json("previous", "solved.json")) if "previous" in context.inputs else set()
    items = [item for item in context.items("train") if item.item_id not in solved]
    items = some_items(items, settings.max_items, context.profile.seed)
    number = int(context.key.split("/")[0].removeprefix("round_"))
    metrics = sample(
        context,
        items,
        samples=settings.samples,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=context.profile.seed * 1000 + number,
        prior="gold",
    )
    return {"solved_before": len(solved), **metrics}


def make_attempts(context: StageContext) -> dict[str, Any]:
    """Attempts of the warm-started policy on all of train; successes among them make the curriculum."""
    settings = context.profile.curriculum
    return sample(
        context,
        some_items(context.items("train"), settings.max_items, context.profile.seed),
        samples=settings.samples,
        temperature=settings.temperature,
        top_p=1.0,
        seed=context.profile.seed * 1000 + 100,
        prior="gold",
    )


def make_validation_attempts(context: StageContext) -> dict[str, Any]:
    """Attempts of the warm-started policy on validation, sampled as GRPO will sample: reward weights are judged by them."""
    settings = context.profile.reward_search
    return sample(
        context,
        some_items(context.items("validation"), settings.max_items, context.profile.seed),
        samples=settings.samples,
        temperature=settings.temperature,
        top_p=1.0,
        seed=context.profile.seed * 1000 + 300,
        prior="gold",
    )


def make_predictions(context: StageContext) -> dict[str, Any]:
    """One trajectory per dev item. Items that the audit set aside are answered too: the totals list them apart."""
    settings = context.profile.evaluation
    items = context.items("dev", gradable_only=False)
    items = [item for item in items if (context.database_root / item.db_id / f"{item.db_id}.sqlite").is_file()]
    if settings.max_dialogues is not None:
        wanted = list(dict.fromkeys(item.dialogue_id for item in items))[: settings.max_dialogues]
        items = [item for item in items if item.dialogue_id in set(wanted)]
    policy_name = context.key.split("/")[1]
    agent = context.profile.agent
    if policy_name.startswith("short_horizon"):
        agent = short_horizon(agent)
    return sample(
        context,
        items,
        samples=1,
        temperature=settings.temperature,
        top_p=1.0,
        seed=context.profile.seed * 1000 + 200,
        prior=settings.prior,
        agent=agent,
    )


def short_horizon(agent: AgentSettings) -> AgentSettings:
    """The same agent, asked for its SQL at once and without tools."""
    return agent.model_copy(update={"horizon": "short", "tools": (), "max_tool_calls": 0})


def some_items(items: list[Item], limit: int | None, seed: int) -> list[Item]:
    """All items, or `limit` of them drawn with `seed`, in their first order."""
    if limit is None or limit >= len(items):
        return items
    drawn = set(random.Random(seed).sample(range(len(items)), limit))
    return [item for index, item in enumerate(items) if index in drawn]


def sample(
    context: StageContext,
    items: Sequence[Item],
    *,
    samples: int,
    temperature: float,
    top_p: float,
    seed: int,
    prior: Prior,
    agent: AgentSettings | None = None,
) -> dict[str, Any]:
    """Roll out over `items` into shards/*.jsonl, leaving finished shards as they are. Returns counts and speed."""
    agent = agent or context.profile.agent
    policy = context.policy()
    folder = context.out / "shards"
    folder.mkdir(exist_ok=True)
    shards = _shards(items, context.profile.sampling.shard_items)
    waiting = [(path, part) for path, part in ((folder / name, part) for name, part in shards) if not path.is_file()]
    if len(waiting) < len(shards):
        context.say(f"{context.key}: {len(shards) - len(waiting)} of {len(shards)} shards were there already")
    if waiting:
        asyncio.run(_roll_out_shards(context, waiting, agent, policy, samples, temperature, top_p, seed, prior))
    return _counts(folder, len(items), samples)


def _shards(items: Sequence[Item], size: int) -> list[tuple[str, list[Item]]]:
    """Whole dialogues stay together where that is possible in the size, so that predicted priors find their turns."""
    shards: list[list[Item]] = []
    for item in items:
        same_dialogue = shards and shards[-1][-1].dialogue_id == item.dialogue_id
        if not shards or (len(shards[-1]) >= size and not same_dialogue):
            shards.append([])
        shards[-1].append(item)
    return [(f"{number:05d}.jsonl", part) for number, part in enumerate(shards)]


async def _roll_out_shards(
    context: StageContext,
    waiting: list[tuple[Path, list[Item]]],
    agent_settings: AgentSettings,
    policy: str,
    samples: int,
    temperature: float,
    top_p: float,
    seed: int,
    prior: Prior,
) -> None:
    profile = context.profile
    codec = ChatCodec.load(policy)
    with context.executor() as executor:
        agent = MtsqlAgent(codec, executor, context.database_root, agent_settings)
        async with open_engine(policy, profile.engine, context.out) as engine:
            for number, (path, part) in enumerate(waiting, start=1):
                started = time.monotonic()
                trajectories = await rollout(
                    agent,
                    engine,
                    part,
                    samples=samples,
                    temperature=temperature,
                    top_p=top_p,
                    concurrency=profile.engine.concurrency,
                    seed=seed,
                    prior=prior,
                )
                write_trajectories(trajectories, path)
                seconds = time.monotonic() - started
                speed = len(trajectories) / seconds
                context.log({"trajectories_per_second": speed, "shard_seconds": seconds}, int(path.stem))
                context.say(f"{context.key}: shard {number} of {len(waiting)}, {speed:.1f} trajectories/s")


def _counts(folder: Path, items: int, samples: int) -> dict[str, Any]:
    trajectories = 0
    calls = 0
    tokens = 0
    malformed = 0
    stops: dict[str, int] = {}
    for trajectory in read_trajectories(folder):
        trajectories += 1
        calls += trajectory.tool_calls
        tokens += trajectory.completion_tokens
        malformed += len(trajectory.events_of("malformed"))
        stops[trajectory.stop_reason] = stops.get(trajectory.stop_reason, 0) + 1
    count = max(trajectories, 1)
    return {
        "items": items,
        "samples": samples,
        "trajectories": trajectories,
        "answered_share": stops.get("answered", 0) / count,
        "tool_calls_mean": calls / count,
        "completion_tokens_mean": tokens / count,
        "malformed_messages": malformed,
        "stop_reasons": stops,
    }


def sampled(context: StageContext, role: str) -> list[Trajectory]:
    return list(read_trajectories(context.path(role, "shards")))
