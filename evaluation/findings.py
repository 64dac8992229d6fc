"""
Findings: a claim is a sum of means with the sign it should have; score tables say whether it is shown.

A claim names policies and stages, and knows nothing of where their tables lie: whoever judges it brings them. All of
its terms are means over turns (`Share`), with intervals by `evaluation.paired`, or all are single numbers of a stage
(`Number`), with Student's interval over the seeds, the only thing that was drawn more than once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from evaluation.error_taxonomy import ERROR_CLASSES
from evaluation.paired import DEEP, HARD, Effect, Mean, contrast
from text2sql.dialogue import Split
from text2sql.errors import DataError

Verdict = Literal["shown", "opposite", "not shown", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("shown", "opposite", "not shown", "not measured")
Unit = Literal["points", "tokens", "seconds"]

SUBSETS: dict[str, pl.Expr | None] = {
    "all turns": None,
    "turns from the 4th on": DEEP,
    "turns 1 to 3": ~DEEP,
    "hard and extra": HARD,
    "easy and medium": ~HARD,
    "turns with earlier ones": pl.col("turn") > 1,
    "wrong answers": pl.col("ex").not_(),
}


@dataclass(frozen=True)
class Share:
    """
    The mean of `measure` over the turns of `policy` in `experiment` on `split` that are in `subset`. Measures are the
    columns of score tables, what `with_measures` adds, and `interaction_` before a verdict.
    """

    experiment: str
    policy: str
    measure: str = "ex"
    subset: str = "all turns"
    split: Split = "dev"


@dataclass(frozen=True)
class Number:
    """A number that `stage` of `experiment` recorded: `seconds` that it took, or one of its metrics."""

    experiment: str
    stage: str
    key: str


Source = Share | Number


@dataclass(frozen=True)
class Claim:
    """
    `terms` are weighted and added up, which gives the effect in `unit` (points: hundredths). `sign` is the one that the
    claim expects; `paper` the effect that was published, and `place` where (None: it was not, and `place` says what is
    known). `otherwise` is the best explanation at hand where the claim is not shown.
    """

    name: str
    group: str
    sentence: str
    terms: tuple[tuple[float, Source], ...]
    sign: Literal[1, -1]
    paper: float | None
    place: str
    unit: Unit = "points"
    otherwise: str = ""


def effect_of(
    claim: Claim,
    tables: Callable[[Share], Sequence[pl.DataFrame]],
    numbers: Callable[[Number], Sequence[float]],
) -> Effect | None:
    """
    The effect, in the claim's unit. `tables` and `numbers` give one score table, or number, per seed, always in the
    same order of seeds. None when no turn is left. Raises DataError for tables of different items, and for an unknown
    measure.
    """
    shares = [(weight, source) for weight, source in claim.terms if isinstance(source, Share)]
    singles = [(weight, source) for weight, source in claim.terms if isinstance(source, Number)]
    if shares and singles:
        raise DataError(f"{claim.name}: a mean over turns and a number of a stage have no interval in common.")
    if singles:
        found: Effect | None = over_seeds(
            np.sum([weight * np.array(numbers(source)) for weight, source in singles], axis=0)
        )
    else:
        found = contrast([(weight, _mean(source, tables(source))) for weight, source in shares])
    scale = 100 if claim.unit == "points" else 1
    return found and Effect(
        found.effect * scale, found.low * scale, found.high * scale, found.turns, found.dialogues, found.seeds
    )


def _mean(share: Share, tables: Sequence[pl.DataFrame]) -> Mean:
    return Mean([with_measures(table) for table in tables], share.measure, SUBSETS[share.subset])


def over_seeds(values: Sequence[float] | np.ndarray) -> Effect:
    """The mean of one number per seed with Student's 95 % interval, which is endless for a single seed."""
    from scipy.stats import t

    numbers = np.asarray(values, dtype=float)
    seeds = len(numbers)
    mean, half = float(numbers.mean()), math.inf
    if seeds > 1:
        half = float(t.ppf(0.975, seeds - 1) * numbers.std(ddof=1) / math.sqrt(seeds))
    return Effect(mean, mean - half, mean + half, 0, 0, seeds)


def verdict_on(claim: Claim, effect: Effect | None) -> Verdict:
    """`shown` and `opposite` need an interval wholly on one side of zero."""
    if effect is None:
        return "not measured"
    if effect.low > 0 or effect.high < 0:
        return "shown" if claim.sign * effect.effect > 0 else "opposite"
    return "not shown"


def with_measures(table: pl.DataFrame) -> pl.DataFrame:
    """
    Adds what claims ask for beyond the columns of a score table: `error_<class>` (an answer that is wrong in this way),
    `called_execute`, `called_memory` and `corrected` (at least once). Null for a turn that is not graded.
    `e_verdict_accuracy` and `m_verdict_accuracy`: share of the agent's verdicts that are right, null where it gave none.
    """
    verdicts = [name for kind in ("e", "m") for name in (f"{kind}_verdicts", f"{kind}_verdicts_right")]
    needed = ("error", "executions", "recalls", "corrections", *verdicts)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise DataError(f"The scores have no column {', '.join(missing)}: delete the artifact, and it is made again.")
    judged = pl.when(pl.col("ex").is_not_null())
    errors = {
        f"error_{name}": judged.then(pl.col("error").cast(pl.String).eq_missing(pl.lit(name))) for name in ERROR_CLASSES
    }
    calls = {"called_execute": "executions", "called_memory": "recalls", "corrected": "corrections"}
    accuracies = {
        f"{kind}_verdict_accuracy": pl.when(pl.col(f"{kind}_verdicts") > 0).then(
            pl.col(f"{kind}_verdicts_right") / pl.col(f"{kind}_verdicts")
        )
        for kind in ("e", "m")
    }
    called = {name: judged.then(pl.col(count) > 0) for name, count in calls.items()}
    return table.with_columns(**errors, **called, **accuracies)
