"""
Rows for a given budget: so many optimizer steps, so many trained tokens.

What a control needs, which is to be trained as long as something else was, on other rows.
"""

import random
from collections.abc import Sequence
from itertools import accumulate

from text2sql.errors import TrainingError
from trainers.rows import TrainingRow

ORDERS = 50
KEPT = 0.5  # of the rows, at least: a control on a handful of rows would be none, whatever its tokens


def rows_for_budget(
    rows: Sequence[TrainingRow], *, steps: int, tokens: int, rows_per_step: int, seed: int
) -> list[TrainingRow]:
    """
    Rows that, trained once in one go, take exactly `steps` optimizer steps of `rows_per_step` rows (the last may be a
    smaller one), with as nearly `tokens` trained tokens as whole rows allow. `rows` are repeated in seeded shuffles,
    each whole before the next begins; of ORDERS orders the one that comes nearest is taken. Where rows are too short on
    average the shortest are left out, where they are too long the longest, at most half of them. Raises TrainingError
    when there is no row.
    """
    if not rows:
        raise TrainingError("There is no row to fill a budget with.")
    fewest, most = (steps - 1) * rows_per_step + 1, steps * rows_per_step
    mean = sum(row.trained_tokens for row in rows) / len(rows)
    count = min(max(round(tokens / mean), fewest), most)
    pool = _with_mean(rows, tokens / count)
    best: list[TrainingRow] = []
    distance = float("inf")
    for order in range(ORDERS):
        rng = random.Random(f"{seed}/{order}")
        laid = [row for _ in range(-(-most // len(pool))) for row in rng.sample(pool, len(pool))]
        for number, trained in enumerate(accumulate(row.trained_tokens for row in laid[:most]), start=1):
            if number >= fewest and abs(trained - tokens) < distance:
                best, distance = laid[:number], abs(trained - tokens)
    return best


def _with_mean(rows: Sequence[TrainingRow], wanted: float) -> list[TrainingRow]:
    """The largest part of `rows`, cut from one end of their order by length, whose mean is nearest to `wanted`."""
    ordered = sorted(rows, key=lambda row: row.trained_tokens)
    if sum(row.trained_tokens for row in rows) > wanted * len(rows):
        ordered.reverse()
    # From the end that is kept: the first n sums are those of the n rows furthest from what is left out.
    sums = list(accumulate(row.trained_tokens for row in reversed(ordered)))
    fewest = max(1, round(KEPT * len(rows)))
    count = min(range(len(rows), fewest - 1, -1), key=lambda number: abs(sums[number - 1] / number - wanted))
    return ordered[len(rows) - count :]
