"""
The curriculum: items ordered from easy to hard by the warm-started policy's own success.

The paper drops items that are always solved and orders the rest by success, in three buckets whose boundaries are not
published. Here buckets have equal size (they differ by one item at most), cut from the ordered list: every bucket has
something to train on whatever the spread of success is. Items never solved come last and so fall into the last bucket;
with more of them than fit there, they still stay in the last bucket only, which is then the largest one.
`keep_unsolved: false` leaves them out.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from text2sql.config import CurriculumSettings
from text2sql.errors import TrainingError


def make_buckets(success: Mapping[str, float], settings: CurriculumSettings, seed: int = 0) -> list[list[str]]:
    """
    Buckets of item ids from easy to hard; `success` is the share of an item's attempts that were right, from 0 to 1.

    Items with equal success are shuffled by `seed`, so that file order (dialogue after dialogue) does not decide the
    bucket. A bucket can be empty when there are fewer items than buckets. Raises TrainingError for a share outside
    0..1, and when no item is left.
    """
    wrong = {item_id: share for item_id, share in success.items() if not 0.0 <= share <= 1.0}
    if wrong:
        item_id, share = next(iter(wrong.items()))
        raise TrainingError(f"success of {item_id} is {share}; expected a share between 0 and 1")
    shuffled = sorted(success)
    random.Random(seed).shuffle(shuffled)
    solved = sorted((item_id for item_id in shuffled if 0.0 < success[item_id] < 1.0), key=lambda item: -success[item])
    unsolved = [item_id for item_id in shuffled if success[item_id] == 0.0] if settings.keep_unsolved else []
    if not solved and not unsolved:
        raise TrainingError(
            f"No item is left for GRPO: of {len(success)}, all are solved in every attempt or never. "
            "Set curriculum.keep_unsolved: true, or attempt more items (curriculum.max_items)."
        )
    last = max(-(-(len(solved) + len(unsolved)) // settings.buckets), len(unsolved))
    order = solved + unsolved
    return [*_equal_parts(order[:-last], settings.buckets - 1), order[-last:]]


def _equal_parts(order: list[str], parts: int) -> list[list[str]]:
    cuts = [len(order) * part // max(parts, 1) for part in range(parts + 1)]
    return [order[start:end] for start, end in pairwise(cuts)]


@dataclass(frozen=True)
class Step:
    """The items of one training step. `bucket` counts from 0."""

    bucket: int
    item_ids: tuple[str, ...]


def plan_steps(
    buckets: Sequence[Sequence[str]], steps_per_bucket: Sequence[int], prompts_per_step: int, seed: int
) -> list[Step]:
    """
    The items of every step, bucket after bucket, all decided before training starts, so that a resumed run goes on with
    the same items. Each bucket is passed through in seeded shuffles, one after another, until its steps are filled;
    a bucket with fewer items than `prompts_per_step` has items more than once in a step. The steps of an empty bucket
    are left out. Raises TrainingError when numbers of buckets and of `steps_per_bucket` differ, or nothing is left.
    """
    if len(buckets) != len(steps_per_bucket):
        raise TrainingError(
            f"{len(buckets)} buckets, but grpo.steps_per_bucket has {len(steps_per_bucket)} entries "
            f"({', '.join(map(str, steps_per_bucket))}). Give one number of steps per bucket (curriculum.buckets)."
        )
    plan: list[Step] = []
    for bucket, (item_ids, steps) in enumerate(zip(buckets, steps_per_bucket, strict=True)):
        if not item_ids:
            continue
        drawn: list[str] = []
        while len(drawn) < steps * prompts_per_step:
            shuffled = list(item_ids)
            random.Random(f"{seed}/{bucket}/{len(drawn)}").shuffle(shuffled)
            drawn.extend(shuffled)
        plan.extend(
            Step(bucket, tuple(drawn[start : start + prompts_per_step]))
            for start in range(0, steps * prompts_per_step, prompts_per_step)
        )
    if not plan:
        raise TrainingError(
            "GRPO has no step to take: every bucket is empty or has 0 steps. Look at curriculum/buckets and at "
            "grpo.steps_per_bucket."
        )
    return plan
