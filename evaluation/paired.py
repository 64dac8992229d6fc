"""
Two policies on the same items: how much better is the second, and how sure is that.

The difference is taken item by item, so what makes an item hard for both falls out. The 95 % interval is the middle of
a bootstrap over dialogues, since the turns of one dialogue stand and fall together. With the score tables of several
seeds seeds are drawn as well: every seed has answered the same dialogues, so a draw takes dialogues once for all seeds,
and seeds once for all dialogues (Owen, The pigeonhole bootstrap, 2007; docs/decisions/0010). With one seed the interval
says nothing of others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from text2sql.errors import DataError

DEEP = pl.col("turn") >= 4
HARD = pl.col("hardness").is_in(["hard", "extra"])
INTERACTION = "interaction_"
_ITEM = ("item_id", "dialogue_id", "gold")


@dataclass(frozen=True)
class Effect:
    """
    Share of right answers of the second policy minus that of the first, with the bounds of its 95 % interval; all from
    -1 to 1. `turns` and `dialogues` are what counts of each table, `seeds` the tables on each side.
    """

    effect: float
    low: float
    high: float
    turns: int
    dialogues: int
    seeds: int


def paired_effect(
    before: Sequence[pl.DataFrame],
    after: Sequence[pl.DataFrame],
    measure: str = "ex",
    *,
    only: pl.Expr | None = None,
    draws: int = 4000,
    seed: int = 0,
) -> Effect | None:
    """
    The effect of the policy of `after` over that of `before`, tables as the score stages write them, one a seed and in
    the same order of seeds. `measure` is a column of verdicts (ex, em, first_ex, ...) or `interaction_` and one: then a
    dialogue is right if all its turns are. `only` leaves turns out, by what all tables say of an item (DEEP, HARD). A
    turn without a verdict in any of the tables counts in none.

    None when no turn is left. Raises DataError when the tables are not of the same items, or `measure` is no column.
    """
    tables = [*before, *after]
    if not before or len(before) != len(after):
        raise DataError(f"{len(before)} score tables before and {len(after)} after: one of each is needed per seed.")
    items = _same_items(tables)
    items = (items if only is None else items.filter(only)).select("item_id", "dialogue_id")
    verdicts = _verdicts(tables, items, measure.removeprefix(INTERACTION))
    graded = ~np.isnan(verdicts).any(axis=0)
    if not graded.any():
        return None
    names, dialogue = np.unique(items["dialogue_id"].to_numpy()[graded], return_inverse=True)
    size = np.bincount(dialogue).astype(float)  # (D,)
    right = np.stack([np.bincount(dialogue, weights=row) for row in verdicts[:, graded]])  # (tables, D)
    if measure.startswith(INTERACTION):
        right, size = (right == size).astype(float), np.ones(len(names))
    gain = right[len(before) :] - right[: len(before)]  # (S, D)
    low, high = _interval(gain, size, draws, np.random.default_rng(seed))
    effect = float(gain.sum(axis=1).mean() / size.sum())
    return Effect(effect, low, high, int(graded.sum()), len(names), len(before))


def _interval(gain: np.ndarray, size: np.ndarray, draws: int, rng: np.random.Generator) -> tuple[float, float]:
    """`gain` (seeds, dialogues) is the sum over the turns of a dialogue, `size` (dialogues) their number."""
    seeds, dialogues = gain.shape
    drawn = rng.multinomial(dialogues, np.full(dialogues, 1 / dialogues), size=draws)  # how often each is drawn
    weight = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
    effects = ((drawn @ gain.T) * weight).sum(axis=1) / (drawn @ size)
    low, high = np.quantile(effects, (0.025, 0.975))
    return float(low), float(high)


def _same_items(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The items that all tables are about, as the first has them."""
    first = tables[0]
    wanted = set(first.select(_ITEM).iter_rows())
    for number, table in enumerate(tables, start=1):
        found = set(table.select(_ITEM).iter_rows())
        if table.height != len(found):
            raise DataError(
                f"Score table {number} has items more than once; give the table of one policy on one split."
            )
        if found != wanted:
            odd = min(item_id for item_id, *_ in found ^ wanted)
            raise DataError(
                f"Score table {number} is about other items than the first, {odd} for one: {len(found)} and "
                f"{len(wanted)}. A paired effect needs the same benchmark, split and evaluation.max_dialogues."
            )
    return first


def _verdicts(tables: Sequence[pl.DataFrame], items: pl.DataFrame, column: str) -> np.ndarray:
    """(tables, items): 1 right, 0 wrong, NaN without a verdict."""
    for table in tables:
        if column not in table.columns:
            raise DataError(f"The scores have no column '{column}'. They have: {', '.join(table.columns)}.")
    return np.stack(
        [
            items.join(
                table.select("item_id", pl.col(column).cast(pl.Float64)),
                on="item_id",
                how="left",
                maintain_order="left",
            )[column].to_numpy()
            for table in tables
        ]
    )
