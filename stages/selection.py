"""Selection of a round's trajectories, and the curriculum's buckets: what is made of samples by scoring them."""

import json
from collections import defaultdict
from typing import Any

import polars as pl

from stages.context import StageContext, write_table
from stages.sampling import sampled
from text2sql.trajectory import Trajectory, read_trajectories, write_trajectories
from trainers.curriculum import make_buckets as buckets_of
from trainers.selection import ScoredTrajectory, select


def make_selected(context: StageContext) -> dict[str, Any]:
    """
    Algorithm 1, S2 and S4: score every sample, keep those right by EX and EM by the difficulty rule, add them to the
    rounds before, and list what is solved by now. Writes verdicts.parquet, new.jsonl, trajectories.jsonl (all rounds),
    solved.json and coverage.json.
    """
    from trainers.embedding import embed

    profile = context.profile
    items = {item.item_id: item for item in context.items("train")}
    trajectories = sampled(context, "trajectories")
    scored = score(context, trajectories)
    verdicts_table(scored).write_parquet(context.out / "verdicts.parquet")
    selection = select(
        scored,
        {key: item.hardness for key, item in items.items()},
        profile.sampling.samples,
        profile.selection,
        lambda texts: embed(texts, profile.selection.embedding, context.policy()),
        seed=profile.seed,
    )
    earlier: list[Trajectory] = []
    solved: set[str] = set(selection.solved)
    if "previous" in context.inputs:
        earlier = list(read_trajectories(context.path("previous", "trajectories.jsonl")))
        solved |= set(context.json("previous", "solved.json"))
    write_trajectories(selection.trajectories, context.out / "new.jsonl")
    write_trajectories([*earlier, *selection.trajectories], context.out / "trajectories.jsonl")
    context.write_json("solved.json", sorted(solved))
    tried = len({trajectory.item_id for trajectory in trajectories})
    coverage = {
        "items": len(items),
        "tried": tried,
        "solved_now": len(selection.solved),
        "solved": len(solved),
        "coverage": len(solved) / max(len(items), 1),
        "coverage_of_tried": len(selection.solved) / max(tried, 1),
        "kept_now": len(selection.trajectories),
        "kept": len(earlier) + len(selection.trajectories),
    }
    context.write_json("coverage.json", coverage)
    context.say(
        f"{context.key}: {coverage['solved_now']} of {tried} items solved, {coverage['kept_now']} trajectories kept, "
        f"coverage {coverage['coverage']:.1%}"
    )
    right = sum(one.ex is True for one in scored)
    return {
        **coverage,
        "ex_of_samples": right / max(len(scored), 1),
        "em_of_samples": sum(one.em is True for one in scored) / max(len(scored), 1),
    }


def score(context: StageContext, trajectories: list[Trajectory]) -> list[ScoredTrajectory]:
    """Each trajectory with its verdicts; equal SQL for equal gold is judged once."""
    gold = {item.item_id: item.gold for item in context.items("train")}
    with context.scorer() as scorer:
        scored = []
        for trajectory in trajectories:
            verdict = scorer.verdict(trajectory.db_id, gold[trajectory.item_id], trajectory.final_sql)
            scored.append(ScoredTrajectory(trajectory, verdict.ex, verdict.em, verdict.em_sound, status=verdict.status))
    return scored


def verdicts_table(scored: list[ScoredTrajectory]) -> pl.DataFrame:
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
                "status": one.status,
                "tool_calls": one.trajectory.tool_calls,
                "stop_reason": one.trajectory.stop_reason,
            }
            for one in scored
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
    for one in scored:
        outcomes[one.trajectory.item_id].append(one.ex is True and one.em is True)
    success = {item_id: sum(values) / len(values) for item_id, values in outcomes.items()}
    buckets = buckets_of(success, context.profile.curriculum)
    (context.out / "success.json").write_text(json.dumps(success, indent=1, sort_keys=True), encoding="utf-8")
    context.write_json("buckets.json", buckets)
    return {
        "items": len(success),
        "always_solved": sum(rate == 1.0 for rate in success.values()),
        "sometimes_solved": sum(0.0 < rate < 1.0 for rate in success.values()),
        "never_solved": sum(rate == 0.0 for rate in success.values()),
        "success_mean": sum(success.values()) / max(len(success), 1),
        **{f"bucket_{number}_items": len(bucket) for number, bucket in enumerate(buckets, start=1)},
    }
