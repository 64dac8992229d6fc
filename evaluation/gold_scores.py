"""
Gold scored as prediction: the judge must give every gold query full marks before it is asked about a model.

Where it does not, the reason is the gold (it does not run), the official evaluator (it cannot read the gold, or it
replaces the letters `value` in the prediction), or the judge itself. `python -m evaluation.audit` prints the result.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl

from evaluation.verdicts import Scorer

GOLD_SCORE_SCHEMA: Mapping[str, pl.DataType] = {
    "item_id": pl.String(),
    "split": pl.String(),
    "ex": pl.Boolean(),  # null: the gold cannot be run, or the comparison was given up
    "em": pl.Boolean(),  # null: the official evaluator cannot read the gold
    "status": pl.String(),
    "reason": pl.String(),
}


def score_gold(table: pl.DataFrame, scorer: Scorer) -> pl.DataFrame:
    """
    Gold scored as prediction: each gold query is given to the judge as if a model had said it. Turns whose database
    cannot be read are left out. What is not true here no model can be blamed for.
    """
    asked = table.filter(~pl.col("fault").str.starts_with("database_"))

    def score(row: tuple[str, str, str, str]) -> dict[str, Any]:
        item_id, split, db_id, gold = row
        verdict = scorer.verdict(db_id, gold, gold)
        return {
            "item_id": item_id,
            "split": split,
            "ex": verdict.ex,
            "em": verdict.em,
            "status": verdict.status,
            "reason": verdict.reason,
        }

    with ThreadPoolExecutor(scorer.executor.workers) as pool:
        rows = list(pool.map(score, asked.select("item_id", "split", "db_id", "gold").iter_rows()))
    return pl.DataFrame(rows, schema=GOLD_SCORE_SCHEMA)


def short_of_full_marks(scores: pl.DataFrame) -> pl.DataFrame:
    """The golds that the judge does not give full marks."""
    return scores.filter(~(pl.col("ex").fill_null(value=False) & pl.col("em").fill_null(value=False)))


def gold_score_summary(scores: pl.DataFrame) -> dict[str, dict[str, int]]:
    """For each split: golds scored, and how many are right by EX and by EM."""
    return {
        str(split): {"scored": part.height, "ex": int(part["ex"].sum()), "em": int(part["em"].sum())}
        for (split,), part in scores.group_by("split", maintain_order=True)
    }
