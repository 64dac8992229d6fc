"""Paired effects: what is compared, how wide the interval is, and what is refused."""

import numpy as np
import polars as pl
import pytest

from evaluation.paired import DEEP, HARD, Effect, Mean, contrast, paired_effect
from text2sql.errors import DataError


def scores(*dialogues: list[bool | None], **columns: object) -> pl.DataFrame:
    """A table of scores: `ex` of the turns of each dialogue."""
    rows = [
        {
            "item_id": f"d/{number}/{turn}",
            "dialogue_id": f"d/{number}",
            "turn": turn,
            "hardness": "extra" if turn % 2 else "easy",
            "gold": f"SELECT {turn}",
            "ex": ex,
        }
        for number, verdicts in enumerate(dialogues)
        for turn, ex in enumerate(verdicts, start=1)
    ]
    frame = pl.DataFrame(rows, schema_overrides={"ex": pl.Boolean})
    return frame.with_columns(**{name: pl.lit(value) for name, value in columns.items()})


def drawn_scores(
    rng: np.random.Generator, hard: np.ndarray, gain: np.ndarray, sizes: np.ndarray
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Verdicts before and after: a dialogue's turns are right with probability 1 - `hard`, then that and its `gain`."""
    sides = []
    for chance in (1 - hard, 1 - hard + gain):
        sides.append(scores(*[list(map(bool, rng.random(n) < p)) for n, p in zip(sizes, chance, strict=True)]))
    return sides[0], sides[1]


def effect_of(*arguments, **options) -> Effect:
    found = paired_effect(*arguments, **options)
    assert found is not None
    return found


def test_the_effect_is_the_difference_of_the_shares():
    """Two of four turns right before, three after."""
    before = scores([True, False], [True, False])
    found = effect_of([before], [scores([True, True], [True, False])])

    assert 0.25 == found.effect
    assert (4, 2, 1) == (found.turns, found.dialogues, found.seeds)
    assert found.low <= 0.25 <= found.high


def test_policies_that_answer_alike_have_no_effect_and_no_doubt():
    """Whatever the items are, the pairs do not differ."""
    same = scores([True, False], [True], [False, False, True])
    found = effect_of([same], [same])

    assert (0.0, 0.0, 0.0) == (found.effect, found.low, found.high)


def test_an_interaction_is_right_when_all_its_turns_are():
    """One of two dialogues becomes wholly right; a half-right one counts nothing."""
    before = scores([True, False], [False, False])
    found = effect_of([before], [scores([True, True], [True, False])], "interaction_ex")

    assert 0.5 == found.effect


@pytest.mark.parametrize(("only", "effect", "turns"), [(DEEP, 1.0, 2), (HARD, 1 / 3, 3)])
def test_a_subset_of_the_turns_can_be_compared_alone(only, effect, turns):
    """Deep turns are those from the fourth on; hard items those of hardness hard and extra."""
    before = scores([True, True, True, False, False])
    found = effect_of([before], [scores([True, True, True, True, True])], only=only)

    assert (pytest.approx(effect), turns) == (found.effect, found.turns)


def test_any_column_of_verdicts_can_be_the_measure():
    """EM, EX of the first proposal, and whatever else a table has; an unknown one is named with the choices."""
    before, after = scores([True], em=False), scores([True], em=True)

    assert 1.0 == effect_of([before], [after], "em").effect
    with pytest.raises(DataError, match=r"no column 'exx'.*hardness, gold, ex, em"):
        paired_effect([before], [after], "exx")


def test_a_turn_without_a_verdict_on_one_side_counts_on_neither():
    """A sample that the machine lost is no wrong answer; where no turn is left there is no effect."""
    before = scores([True, False, None])
    found = effect_of([before], [scores([None, True, True])])

    assert (1.0, 1) == (found.effect, found.turns)
    assert paired_effect([before], [scores([None, None, True])]) is None


def test_the_order_of_the_rows_is_of_no_matter():
    """Pairs are made by item."""
    before, after = scores([True, False], [False]), scores([False, True], [True])
    found = effect_of([before], [after.reverse()])

    assert effect_of([before], [after]) == found


def test_tables_of_other_items_are_refused():
    """Other ids, or the same ids with other gold (the demo of another demo_seed); the first odd one is named."""
    before = scores([True, False])

    with pytest.raises(DataError, match=r"other items than the first, d/1/1 for one: 3 and 2"):
        paired_effect([before], [scores([True, False], [True])])
    with pytest.raises(DataError, match=r"other items than the first, d/0/1 for one"):
        paired_effect([before], [before.with_columns(gold=pl.lit("SELECT 7"))])
    with pytest.raises(DataError, match="items more than once"):
        paired_effect([before], [pl.concat([before, before])])


def test_every_seed_needs_a_table_on_each_side():
    """Nothing is compared with nothing."""
    before = scores([True, False])

    with pytest.raises(DataError, match="2 score tables before and 1 after"):
        paired_effect([before, before], [before])
    with pytest.raises(DataError, match="0 score tables"):
        paired_effect([], [])


def test_the_same_tables_give_the_same_interval():
    """The draws have a seed."""
    rng = np.random.default_rng(3)
    before, after = drawn_scores(rng, np.full(20, 0.5), np.full(20, 0.1), np.full(20, 3))

    assert paired_effect([before], [after]) == paired_effect([before], [after])


def test_a_single_mean_is_a_level_with_its_interval():
    """What a policy scores by itself."""
    found = contrast([(1, Mean([scores([True, False], [True, True])]))])

    assert found is not None
    assert 0.75 == found.effect
    assert found.low < 0.75 < found.high


def test_gains_can_be_compared_between_subsets():
    """A gain of 50 points on deep turns, one of none on the others: it is 50 points greater."""
    before, after = scores([True, True, True, False, False]), scores([True, True, True, True, False])
    terms = [(1, Mean([after], only=DEEP)), (-1, Mean([before], only=DEEP))]
    terms += [(-1, Mean([after], only=~DEEP)), (1, Mean([before], only=~DEEP))]
    found = contrast(terms)

    assert found is not None
    assert (0.5, 5) == (found.effect, found.turns)


def test_a_policy_can_be_compared_with_itself_by_another_measure():
    """The final SQL over the first: both are columns of the same tables."""
    table = scores([True, False], [True, True], first_ex=False)
    found = contrast([(1, Mean([table])), (-1, Mean([table], "first_ex"))])

    assert found is not None
    assert 0.75 == found.effect


def test_a_mean_over_the_wrong_answers_is_over_each_policys_own():
    """What share of them is of a kind: `only` is asked of each table by itself."""
    before, after = scores([False, False, False, True], kind="a"), scores([False, True, True, True], kind="b")
    terms = [
        (weight, Mean([table.with_columns(b=pl.col("kind") == "b")], "b", ~pl.col("ex")))
        for weight, table in ((1, after), (-1, before))
    ]
    found = contrast(terms)

    assert found is not None
    assert (1.0, 3) == (found.effect, found.turns)
    assert contrast([(1, Mean([scores([True])], only=~pl.col("ex")))]) is None


def test_about_95_of_100_intervals_hold_the_true_effect():
    """
    Synthetic policies with a true effect of 10 points, dialogues of 1 to 5 turns that stand and fall together: of 300
    experiments between 90 and 98 % have it in their interval.
    """
    rng = np.random.default_rng(0)
    held = []
    for _ in range(300):
        hard, sizes = rng.uniform(0.3, 0.9, 60), rng.integers(1, 6, 60)
        gain = rng.choice([-0.1, 0.3], 60)
        before, after = drawn_scores(rng, hard, gain, sizes)
        found = effect_of([before], [after], draws=800)
        held.append(found.low <= 0.1 <= found.high)

    assert 0.90 <= np.mean(held) <= 0.98


def test_seeds_are_averaged_and_make_the_interval_hold_for_other_seeds():
    """
    Four seeds that learn unequally well (10 points on average, 8 either way), on the same dialogues: nine of ten
    intervals hold the mean, where the interval of a single seed holds it far less often.
    """
    rng = np.random.default_rng(1)
    alone, together = [], []
    for _ in range(150):
        hard, sizes = rng.uniform(0.3, 0.8, 60), rng.integers(1, 6, 60)
        sides = [drawn_scores(rng, hard, np.full(60, 0.1 + luck), sizes) for luck in rng.normal(0, 0.08, 4)]
        before, after = zip(*sides, strict=True)
        one, four = effect_of(before[:1], after[:1], draws=800), effect_of(before, after, draws=800)
        alone.append(one.low <= 0.1 <= one.high)
        together.append(four.low <= 0.1 <= four.high)

    assert 4 == four.seeds
    assert np.mean(alone) < 0.8
    assert np.mean(together) > 0.85
