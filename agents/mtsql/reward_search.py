"""
Grid search over reward weights on the validation set. The paper says that its weights were found this way and names
neither grid, nor objective, nor result; this is our reading.

What a reward is for: within the samples of one item, which is what GRPO compares, a better outcome should be paid
more, and where outcomes are equal the process parts should point towards the better one. So each row of the grid gets

    inversions    share of pairs (same item, different outcome) in which the worse sample is paid as much or more
    process_auc   probability that the process parts alone pay the better sample of a pair more (ties count a half)
    best_of_n     EX of the sample that the process parts alone pay most, mean over items (ties: their mean)

the outcome of a sample being EX + EM. Each item counts the same, however many pairs it has. The best row is, among those
with the fewest inversions, the one with the highest process_auc, of equal ones that with the largest process weights. It
is advised; but the given weights stay, if their inversions are fewest too, unless it is better by more than `margin`: a
small validation set should not move weights by its noise.

What this does not measure is the policy that training with a row would give; that costs a GRPO run per row. Only the
proportions of the process weights move process_auc, their size only the inversions and the tie. And propose compares
with gold, so it agrees with EM by its nature: a high process_auc of propose alone is no reason to drop the verdicts.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from agents.mtsql.rewards import PARTS, Reward
from text2sql.config import RewardGrid, RewardSettings

PROCESS = ("propose", "e_verify", "m_verify")
_DECIMALS = 9  # sums of a few products: what differs less is a tie

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WeightSearch:
    """`table` has one row per weights, best first. `items`: those with samples of different outcome; `pairs` of them."""

    advised: RewardSettings
    table: pl.DataFrame
    items: int
    pairs: int
    set_aside: int
    reason: str


def search_weights(
    rewards: Iterable[tuple[str, Reward]],
    given: RewardSettings,
    grid: RewardGrid,
    margin: float,
) -> WeightSearch:
    """
    Judge weights by samples of the validation set: (item id, its reward), whose parts are read and whose total is not.
    Samples that were set aside are left out and counted. The given weights are a row of the table too.
    """
    groups: dict[str, list[list[float]]] = defaultdict(list)
    set_aside = 0
    for item_id, reward in rewards:
        values = [reward.parts.get(part) for part in PARTS]
        if reward.total is None or None in values:
            set_aside += 1
        else:
            groups[item_id].append([value for value in values if value is not None])
    parts = [np.array(groups[item_id]) for item_id in sorted(groups)]
    differences, shares, items = _pairs(parts)
    rows = [_row(weights, given, differences, shares, parts) for weights in _weights(given, grid)]
    table = pl.DataFrame(rows).sort("inversions", "process_auc", "process_weight", descending=[False, True, True])
    advised, reason = _advise(table, given, margin) if items else (given, "no item has samples of different outcome")
    return WeightSearch(advised, table, items, len(differences), set_aside, reason)


def _advise(table: pl.DataFrame, given: RewardSettings, margin: float) -> tuple[RewardSettings, str]:
    best = table.row(0, named=True)
    current = table.row(by_predicate=pl.col("given"), named=True)
    gain = best["process_auc"] - current["process_auc"]
    if current["inversions"] <= best["inversions"] and gain <= margin:
        return given, f"the given weights stay: no row is better by more than {margin} (the best by {gain:.4f})"
    return given.model_copy(update={part: best[part] for part in PARTS}), (
        f"process_auc {best['process_auc']:.4f} against {current['process_auc']:.4f}, "
        f"inversions {best['inversions']:.4f} against {current['inversions']:.4f} with the given weights"
    )


def _weights(given: RewardSettings, grid: RewardGrid) -> list[tuple[float, ...]]:
    rows = itertools.product(*(getattr(grid, part) for part in PARTS))
    return list(dict.fromkeys([_of(given), *rows]))


def _of(settings: RewardSettings) -> tuple[float, ...]:
    return tuple(float(getattr(settings, part)) for part in PARTS)


def _pairs(groups: Sequence[Floats]) -> tuple[Floats, Floats, int]:
    """
    Differences of parts (pairs, 5), better minus worse sample of one item; each pair's share of the mean over items
    (pairs,); number of items that have pairs.
    """
    found = []
    for parts in groups:
        outcome = parts[:, 0] + parts[:, 1]
        better, worse = np.nonzero(outcome[:, None] > outcome[None, :])
        if len(better):
            found.append(parts[better] - parts[worse])
    if not found:
        return np.zeros((0, len(PARTS))), np.zeros(0), 0
    shares = np.concatenate([np.full(len(pairs), 1 / len(pairs) / len(found)) for pairs in found])
    return np.concatenate(found), shares, len(found)


def _row(
    weights: tuple[float, ...], given: RewardSettings, differences: Floats, shares: Floats, groups: Sequence[Floats]
) -> dict[str, float | bool | None]:
    vector = np.array(weights)
    process = np.where([part in PROCESS for part in PARTS], vector, 0.0)
    paid = np.round(differences @ vector, _DECIMALS)
    paid_for_process = np.round(differences @ process, _DECIMALS)
    return {
        **dict(zip(PARTS, weights, strict=True)),
        "inversions": float(shares @ (paid <= 0)) if len(shares) else None,
        "process_auc": float(shares @ ((paid_for_process > 0) + 0.5 * (paid_for_process == 0)))
        if len(shares)
        else None,
        "best_of_n": float(np.mean([_favoured(parts, process) for parts in groups])) if groups else None,
        "process_weight": float(process.sum()),
        "given": weights == _of(given),
    }


def _favoured(parts: Floats, process: Floats) -> float:
    """EX of the samples of one item that the process parts pay most."""
    paid = np.round(parts @ process, _DECIMALS)
    return float(parts[paid == paid.max(), 0].mean())
