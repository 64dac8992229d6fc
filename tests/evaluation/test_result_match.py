"""Equality of results: the same outcome as trying every order of columns, in a time that does not explode."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.result_match import UndecidedError, official_match, set_match, value_match

cells = st.sampled_from([None, 0, 1, 1.0, 1.5, "1", "a", b"a"])


@st.composite
def results(draw: st.DrawFn) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Two small results, often the same rows shuffled in rows and columns."""
    width = draw(st.integers(1, 4))
    rows = st.lists(st.tuples(*[cells] * width), max_size=4)
    gold = draw(rows)
    if draw(st.booleans()):
        return gold, draw(rows)
    order = draw(st.permutations(range(width)))
    shuffled = draw(st.permutations(gold)) if draw(st.booleans()) else gold
    return gold, [tuple(row[column] for column in order) for row in shuffled]


def by_trying_everything(gold: list[tuple[object, ...]], pred: list[tuple[object, ...]], ordered: bool) -> bool:
    """The definition: some order of the prediction's columns makes both equal, as lists or as bags."""
    if len(gold) != len(pred) or (gold and len(gold[0]) != len(pred[0])):
        return False
    for order in permutations(range(len(gold[0]) if gold else 0)):
        permuted = [tuple(row[column] for column in order) for row in pred]
        if permuted == gold or (not ordered and all(permuted.count(row) == gold.count(row) for row in gold)):
            return True
    return False


@given(results(), st.booleans())
def test_some_order_of_columns_makes_them_equal(
    pair: tuple[list[tuple[object, ...]], list[tuple[object, ...]]], ordered: bool
) -> None:
    """Bags of rows, or lists if order matters, whatever the order of the columns."""
    gold, pred = pair

    assert value_match(gold, pred, ordered) is by_trying_everything(gold, pred, ordered)


@given(results(), st.booleans())
def test_official_outcome_adds_the_quick_rejection(
    pair: tuple[list[tuple[object, ...]], list[tuple[object, ...]]], ordered: bool
) -> None:
    """The official pre-check compares rows whose cells are sorted by text and type."""
    gold, pred = pair
    sides = [[tuple(sorted(row, key=lambda cell: str(cell) + str(type(cell)))) for row in rows] for rows in pair]
    passed = sides[0] == sides[1] if ordered else set(sides[0]) == set(sides[1])

    assert official_match(gold, pred, ordered) is (by_trying_everything(gold, pred, ordered) and passed)


def test_empty_results_are_equal_whatever_their_columns() -> None:
    """Two empty results match; an empty one and another do not."""
    assert official_match([], [], True)
    assert not official_match([], [(1,)], False)


@pytest.mark.parametrize("ordered", [True, False])
def test_many_alike_columns_are_quick(ordered: bool) -> None:
    """30 columns with the same values in another order: 30! orders of columns are not tried."""
    gold = [tuple((row * column) % 31 for column in range(1, 31)) for row in range(1, 31)]
    pred = [tuple(reversed(row)) for row in gold]
    other = [*pred[:-1], (*pred[-1][:-2], pred[-1][-1], pred[-1][-2])]

    assert official_match(gold, pred, ordered)
    assert not official_match(gold, other, ordered)


def test_search_that_would_not_end_is_given_up() -> None:
    """Two results that only differ as two alike graphs do are told as undecided, in bounded time."""

    def incidence(edges: list[tuple[int, int]], nodes: int) -> list[tuple[int, ...]]:
        return [tuple(int(node in edge) for node in range(nodes)) for edge in edges]

    def rook(size: int) -> list[tuple[int, int]]:
        cells = [(row, column) for row in range(size) for column in range(size)]
        return [
            (first, second)
            for first in range(len(cells))
            for second in range(first)
            if cells[first][0] == cells[second][0] or cells[first][1] == cells[second][1]
        ]

    def shrikhande() -> list[tuple[int, int]]:
        steps = {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}
        return [
            (first, second)
            for first in range(16)
            for second in range(first)
            if ((first // 4 - second // 4) % 4, (first % 4 - second % 4) % 4) in steps
        ]

    try:
        same = value_match(incidence(rook(4), 16), incidence(shrikhande(), 16), ordered=False)
    except UndecidedError as error:
        assert "too much alike" in str(error)
    else:
        assert not same


def test_set_rule_ignores_repetition_and_keeps_columns_in_place() -> None:
    """BIRD's rule."""
    assert set_match([(1,), (1,), (2,)], [(2,), (1,)])
    assert not set_match([(1, 2)], [(2, 1)])
