"""Selection of a round's trajectories, and the curriculum's buckets: what is made of samples by scoring them."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from agents.mtsql.agent import MtsqlAgent, replay_matches
from stages.context import StageContext, run_ahead, write_table
from stages.pools import practice_items
from stages.sampling import sampled
from text2sql.chat import ChatCodec
from text2sql.dialogue import Item
from text2sql.trajectory import Trajectory, read_trajectories, write_trajectories
from trainers.curriculum import make_buckets as buckets_of
from trainers.selection import ScoredTrajectory, select


def make_selected(context: StageContext) -> dict[str, Any]:
    """
    Algorithm 1, S2 and S4: score every sample, keep those right by EX and EM by the difficulty rule, add them to the
    rounds before, and list what is solved by now. Writes verdicts.parquet, new.jsonl, trajectories.jsonl (all rounds),
    solved.json, coverage.json and replay.json (trajectories that do not come out the same when replayed: none).
    """
    from trainers.embedding import embed

    profile = context.profile
    items = {item.item_id: item for item in context.items("train")}
    trajectories = sampled(context, "trajectories")
    scored = score(context, trajectories)
    write_table(verdicts_table(scored), context.out / "verdicts.parquet")
    selection = select(
        [one for one, _ in scored],
        {key: item.hardness for key, item in items.items()},
        profile.sampling.samples,
        profile.selection,
        lambda texts: embed(texts, profile.selection.embedding, Path(context.policy())),
        seed=profile.seed,
    )
    earlier: list[Trajectory] = []
    solved = set(selection.solved)
    if "previous" in context.inputs:
        earlier = list(read_trajectories(context.path("previous", "trajectories.jsonl")))
        solved |= set(context.json("previous", "solved.json"))
    differences = asyncio.run(replay(context, selection.kept, items))
    context.write_json("replay.json", differences)
    write_trajectories(selection.kept, context.out / "new.jsonl")
    write_trajectories([*earlier, *selection.kept], context.out / "trajectories.jsonl")
    context.write_json("solved.json", sorted(solved))
    pool = len(practice_items(context))
    tried = len({trajectory.item_id for trajectory in trajectories})
    coverage = {
        "items": pool,
        "tried": tried,
        "solved_now": len(selection.solved),
        "solved": len(solved),
        "coverage": len(solved) / max(pool, 1),
        "coverage_of_tried": len(selection.solved) / max(tried, 1),
        "kept_now": len(selection.kept),
        "kept": len(earlier) + len(selection.kept),
    }
    context.write_json("coverage.json", coverage)
    context.say(
        f"{context.key}: {coverage['solved_now']} of {tried} items solved, {coverage['kept_now']} trajectories kept, "
        f"coverage {coverage['coverage']:.1%}"
    )
    count = max(len(scored), 1)
    return {
        **coverage,
        "rule": dict(selection.counts),
        "ex_of_samples": sum(one.ex is True for one, _ in scored) / count,
        "em_of_samples": sum(one.em is True for one, _ in scored) / count,
    }


async def replay(context: StageContext, kept: Sequence[Trajectory], items: Mapping[str, Item]) -> list[str]:
    """Replay what is kept through the environment; what differs first, for each trajectory that comes out otherwise."""
    with context.executor() as executor:
        codec = ChatCodec.load(context.policy())
        agent = MtsqlAgent(codec, executor, context.database_root, context.profile.agent)
        results = [await replay_matches(agent, one, items[one.item_id].question()) for one in kept]
    return [difference for same, difference in results if not same]


def score(context: StageContext, trajectories: list[Trajectory]) -> list[tuple[ScoredTrajectory, str]]:
    """Each trajectory with its verdicts and the status of its execution match; equal pairs are judged once."""
    gold = {item.item_id: item.gold for item in context.items("train")}
    with context.scorer() as scorer:
        scored = []
        for trajectory in run_ahead(scorer, trajectories, gold):
            verdict = scorer.verdict(trajectory.db_id, gold[trajectory.item_id], trajectory.final_sql)
            one = ScoredTrajectory(trajectory, verdict.ex, verdict.em, verdict.em_sound)
            scored.append((one, verdict.status))
    return scored


def verdicts_table(scored: list[tuple[ScoredTrajectory, str]]) -> pl.DataFrame:
    """One row per sample, so that any share can be traced to its trajectories."""
    return pl.DataFrame(
        [
            {
                "item_id": one.trajectory.item_id,
                "sample": one.trajectory.sample,
                "final_sql": one.trajectory.final_sql,
                "ex": one.ex,
                "em": one.em,
                "em_sound": one.em_sound,
                "status": status,
                "tool_calls": one.trajectory.tool_calls,
                "stop_reason": one.trajectory.stop_reason,
            }
            for one, status in scored
        ],
        schema={
            "item_id": pl.String,
            "sample": pl.Int64,
            "final_sql": pl.String,
            "ex": pl.Boolean,
            "em": pl.Boolean,
            "em_sound": pl.Boolean,
            "status": pl.String,
            "tool_calls": pl.Int64,
            "stop_reason": pl.String,
        },
    )


def make_buckets(context: StageContext) -> dict[str, Any]:
    """Success rate of each train item among the attempts (right by EX and EM), and the buckets made from it."""
    scored = score(context, sampled(context, "attempts"))
    write_table(verdicts_table(scored), context.out / "verdicts.parquet")
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for one, _ in scored:
        outcomes[one.trajectory.item_id].append(one.ex is True and one.em is True)
    success = {item_id: sum(values) / len(values) for item_id, values in outcomes.items()}
    settings = context.profile.curriculum
    left = [rate for rate in success.values() if rate < 1.0 and (rate > 0.0 or settings.keep_unsolved)]
    buckets = buckets_of(success, settings, context.profile.seed) if left else [[] for _ in range(settings.buckets)]
    context.write_json("success.json", dict(sorted(success.items())))
    context.write_json("buckets.json", buckets)
    return {
        "items": len(success),
        "always_solved": sum(rate == 1.0 for rate in success.values()),
        "sometimes_solved": sum(0.0 < rate < 1.0 for rate in success.values()),
        "never_solved": sum(rate == 0.0 for rate in success.values()),
        "success_mean": sum(success.values()) / max(len(success), 1),
        **{f"bucket_{number}_items": len(bucket) for number, bucket in enumerate(buckets, start=1)},
    }
