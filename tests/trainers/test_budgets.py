"""Rows for a budget of steps and trained tokens."""

import random

import pytest

from text2sql.errors import TrainingError
from trainers.budgets import rows_for_budget
from trainers.rows import TrainingRow, training_order


def row(number: int, trained: int) -> TrainingRow:
    """A prompt of two tokens and `trained` tokens of the model."""
    return TrainingRow(f"row{number}", (1, 1, *[2] * trained), (0, 0, *[1] * trained))


def drawn_rows(count: int, shortest: int = 10, longest: int = 60) -> list[TrainingRow]:
    draw = random.Random(0)
    return [row(number, draw.randint(shortest, longest)) for number in range(count)]


def steps_of(rows: list[TrainingRow], rows_per_step: int) -> int:
    """As `train_sft` takes them in one epoch."""
    order = training_order([len(one.input_ids) for one in rows], epochs=1.0, rows_per_step=rows_per_step, seed=0)
    return -(-len(order) // rows_per_step)


def trained(rows: list[TrainingRow]) -> int:
    return sum(one.trained_tokens for one in rows)


@pytest.mark.parametrize("mean", [25, 35, 45])
def test_steps_are_exact_and_tokens_as_near_as_whole_rows_allow(mean: int):
    """Whether the rows are too long on average for the budget, about right, or too short: within a tenth of a row."""
    tokens = 9 * 16 * mean
    rows = rows_for_budget(drawn_rows(100), steps=9, tokens=tokens, rows_per_step=16, seed=0)

    assert 9 == steps_of(rows, 16)
    assert abs(trained(rows) - tokens) <= 4


def test_rows_are_left_out_only_where_the_last_step_cannot_make_the_tokens_fit():
    """The last step may be a smaller one: with 16 rows of 10 tokens, 1,000 tokens in 7 steps are 100 whole rows."""
    rows = rows_for_budget([row(number, 10) for number in range(40)], steps=7, tokens=1000, rows_per_step=16, seed=0)

    assert (100, 1000) == (len(rows), trained(rows))
    assert {f"row{number}" for number in range(40)} == {one.row_id for one in rows}


def test_every_row_is_there_before_any_comes_again():
    """Repetitions are whole shuffles, by the seed."""
    pool = [row(number, 10) for number in range(6)]
    rows = rows_for_budget(pool, steps=3, tokens=120, rows_per_step=4, seed=0)

    assert {one.row_id for one in pool} == {one.row_id for one in rows[:6]} == {one.row_id for one in rows[6:]}
    assert rows == rows_for_budget(pool, steps=3, tokens=120, rows_per_step=4, seed=0)
    assert rows != rows_for_budget(pool, steps=3, tokens=120, rows_per_step=4, seed=1)


def test_half_of_the_rows_stay_whatever_the_tokens_are():
    """Rows much too short for the budget: the longer half is trained, and the tokens are fewer than asked for."""
    rows = rows_for_budget(drawn_rows(40), steps=10, tokens=10 * 4 * 200, rows_per_step=4, seed=0)

    assert 10 == steps_of(rows, 4)
    assert 20 == len({one.row_id for one in rows})
    assert trained(rows) < 8000


def test_no_row_is_an_error():
    """Nothing can be trained for any budget."""
    with pytest.raises(TrainingError, match="no row"):
        rows_for_budget([], steps=1, tokens=10, rows_per_step=4, seed=0)
