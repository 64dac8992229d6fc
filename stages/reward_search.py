"""The grid search over reward weights, by attempts of the warm-started policy on validation."""

from typing import Any

import polars as pl

from agents.mtsql.reward_search import search_weights
from agents.mtsql.rewards import PARTS, Reward, reward
from stages.context import StageContext, run_ahead, write_table
from stages.sampling import sampled
from text2sql.trajectory import Trajectory

_OBJECTIVE = "fewest inversions, then highest process_auc, then largest process weights (agents/mtsql/reward_search.py)"


def make_weights(context: StageContext) -> dict[str, Any]:
    """
    Score the parts of each attempt once, then judge every combination of weights in the grid by them: a row with fewer
    pairs paid the wrong way round is better, then one whose process parts alone tell better samples from worse ones more
    often (`agents.mtsql.reward_search`). This is advice. No stage reads it: GRPO takes `rewards` of the profile, which
    its fingerprint holds; who follows the advice writes it there.

    Writes weights.parquet (a row per combination with what it was judged by, best first), weights.json (the best row,
    the profile's, which of the two is advised and why) and parts.parquet (the parts of every sample).
    """
    settings = context.profile.reward_search
    given = context.profile.rewards
    golds = {item.item_id: item.gold for item in context.items("validation")}
    with context.scorer() as scorer:
        attempts = run_ahead(scorer, sampled(context, "attempts"), golds)
        paid = [(one, reward(one, golds[one.item_id], scorer, given)) for one in attempts]
    write_table(_parts_table(paid), context.out / "parts.parquet")
    found = search_weights(((one.item_id, value) for one, value in paid), given, settings.grid, settings.margin)
    write_table(found.table, context.out / "weights.parquet")
    advice = {
        "objective": _OBJECTIVE,
        "samples": len(paid),
        "set_aside": found.set_aside,
        "items_compared": found.items,
        "pairs_compared": found.pairs,
        "combinations": found.table.height,
        "given_stay": int(found.advised == given),
        "advised": found.advised.model_dump(include=set(PARTS)),
        "reason": found.reason,
        "best": found.table.row(0, named=True),
        "given": found.table.row(by_predicate=pl.col("given"), named=True),
    }
    context.write_json("weights.json", advice)
    context.say(
        f"{context.key}: {found.table.height} combinations judged by {found.pairs} pairs of samples of {found.items} "
        f"items; advised {advice['advised']}: {found.reason}"
    )
    return advice


def _parts_table(paid: list[tuple[Trajectory, Reward]]) -> pl.DataFrame:
    """One row per sample, so that any row of the grid can be traced to its trajectories."""
    return pl.DataFrame(
        [
            {
                "item_id": one.item_id,
                "sample": one.sample,
                "final_sql": one.final_sql,
                **value.parts,
                "status": value.status,
                "reason": value.reason,
            }
            for one, value in paid
        ],
        schema={
            "item_id": pl.String,
            "sample": pl.Int64,
            "final_sql": pl.String,
            **dict.fromkeys(PARTS, pl.Float64),
            "status": pl.String,
            "reason": pl.String,
        },
    )
