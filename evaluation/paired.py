"""
Policies on the same items: how much better is one than another, and how sure is that.

The difference is taken item by item, so what makes an item hard for both falls out. The 95 % interval is the middle of
a bootstrap over dialogues, since the turns of one dialogue stand and fall together. With the score tables of several
seeds seeds are drawn as well: every seed has answered the same dialogues, so a draw takes dialogues once for all seeds,
and seeds once for all dialogues (Owen, The pigeonhole bootstrap, 2007; docs/decisions/0010). With one seed the interval
says nothing of others.

`paired_effect` compares two policies; `contrast` adds and subtracts any means, for questions such as whether a gain is
greater on deep turns.
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
    -1 to 1 (of a measure that is no verdict: in its own unit). `turns` and `dialogues` are what counts of the tables,
    `seeds` the tables on each side.
    """

    effect: float
    low: float
    high: float
    turns: int
    dialogues: int
    seeds: int


@dataclass(frozen=True)
class Mean:
    """
    A mean over the turns of one policy: its score tables, one a seed, as the score stages write them. `measure` is a
    column of verdicts (ex, em, first_ex, ...) or of numbers, or `interaction_` and a column of verdicts: then a dialogue
    is right if all its turns are. `only` leaves turns out, by what each table says of them (DEEP, HARD).
    """

    tables: Sequence[pl.DataFrame]
    measure: str = "ex"
    only: pl.Expr | None = None


def paired_effect(
    before: Sequence[pl.DataFrame],
    after: Sequence[pl.DataFrame],
    measure: str = "ex",
    *,
    only: pl.Expr | None = None,
    draws: int = 4000,
    seed: int = 0,
) -> Effect | None:
    """The effect of the policy of `after` over that of `before`, with tables in the same order of seeds; see Mean."""
    if not before or len(before) != len(after):
        raise DataError(f"{len(before)} score tables before and {len(after)} after: one of each is needed per seed.")
    return contrast([(-1, Mean(before, measure, only)), (1, Mean(after, measure, only))], draws=draws, seed=seed)


def contrast(terms: Sequence[tuple[float, Mean]], *, draws: int = 4000, seed: int = 0) -> Effect | None:
    """
    The sum of weighted means, all over the same items and with tables in the same order of seeds. A turn without a
    value in any of the tables counts in none.

    None when a mean is left without turns. Raises DataError when the tables are not of the same items, or a measure is
    no column.
    """
    seeds = len(terms[0][1].tables)
    if not seeds or any(len(mean.tables) != seeds for _, mean in terms):
        raise DataError(f"{[len(mean.tables) for _, mean in terms]} score tables: one of each is needed per seed.")
    items = _same_items([table for _, mean in terms for table in mean.tables]).select("item_id", "dialogue_id")
    values = np.stack(
        [[_values(table, items, mean.measure) for table in mean.tables] for _, mean in terms]
    )  # (T, S, I)
    counts = np.stack([[_counts(table, items, mean.only) for table in mean.tables] for _, mean in terms])
    counts &= ~np.isnan(values).any(axis=(0, 1))
    if not counts.any(axis=2).all():
        return None
    used = counts.any(axis=(0, 1))
    names, dialogue = np.unique(items["dialogue_id"].to_numpy()[used], return_inverse=True)
    right = _by_dialogue(np.where(counts, values, 0.0)[:, :, used], dialogue)  # (T, S, D)
    size = _by_dialogue(counts[:, :, used].astype(float), dialogue)
    for number, (_, mean) in enumerate(terms):
        if mean.measure.startswith(INTERACTION):
            right[number] = (right[number] == size[number]) & (size[number] > 0)
            size[number] = size[number] > 0
    weights = np.array([weight for weight, _ in terms])
    effect = float(weights @ (right.sum(axis=2) / size.sum(axis=2)).mean(axis=1))
    low, high = _interval(weights, right, size, draws, np.random.default_rng(seed))
    return Effect(effect, low, high, int(used.sum()), len(names), seeds)


def _by_dialogue(values: np.ndarray, dialogue: np.ndarray) -> np.ndarray:
    """(T, S, items) summed over the turns of each dialogue: (T, S, dialogues)."""
    return np.stack([[np.bincount(dialogue, weights=row) for row in rows] for rows in values])


def _interval(
    weights: np.ndarray, right: np.ndarray, size: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """`weights` (T); `right` and `size` (T, S, D): sums over the turns of a dialogue, and how many turns these are."""
    _, seeds, dialogues = right.shape
    drawn = rng.multinomial(dialogues, np.full(dialogues, 1 / dialogues), size=draws)  # how often each is drawn
    weight = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
    effects = np.zeros(draws)
    with np.errstate(invalid="ignore"):  # a draw without any turn of a small group has no effect, and no vote
        for factor, sums, counts in zip(weights, right, size, strict=True):
            means = np.where(weight > 0, (drawn @ sums.T) / (drawn @ counts.T), 0.0)  # those of the drawn seeds
            effects += factor * (means * weight).sum(axis=1)
    low, high = np.nanquantile(effects, (0.025, 0.975))
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


def _values(table: pl.DataFrame, items: pl.DataFrame, measure: str) -> np.ndarray:
    """(items): the measure of each, 1 right and 0 wrong for verdicts; NaN without a value."""
    column = measure.removeprefix(INTERACTION)
    if column not in table.columns:
        raise DataError(f"The scores have no column '{column}'. They have: {', '.join(table.columns)}.")
    values = table.select("item_id", pl.col(column).cast(pl.Float64))
    return items.join(values, on="item_id", how="left", maintain_order="left")[column].to_numpy()


def _counts(table: pl.DataFrame, items: pl.DataFrame, only: pl.Expr | None) -> np.ndarray:
    """(items): which of them the mean is over."""
    if only is None:
        return np.ones(items.height, dtype=bool)
    return items["item_id"].is_in(table.filter(only)["item_id"].implode()).to_numpy()
