"""
When are two results the same? Rows in, a yes or no out; no SQL and no database here.

`official_match` follows the official evaluator (taoyds/test-suite-sql-eval at e97acc54, `result_eq` of its
exec_eval.py) in its outcome, its quirk included, but not in its way: instead of trying column permutations one after
the other it narrows them down column by column, so that many alike columns cost no more than a few.
"""

import marshal
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

Row = tuple[Any, ...]
Rows = Sequence[Row]

SEARCH_CELLS = 30_000_000  # cells looked at, about ten seconds, before a search is given up


class UndecidedError(Exception):
    """The columns of two results are so much alike that the search for a fitting order was given up."""


def official_match(gold: Rows, pred: Rows, ordered: bool) -> bool:
    """
    Equal as bags of rows, as lists if `ordered`, for some order of the prediction's columns. Cells compare as Python's
    do (1 equals 1.0, '1' does not). Two empty results are equal whatever their columns. Raises UndecidedError.
    """
    return value_match(gold, pred, ordered) and not _quickly_rejected(gold, pred, ordered)


def value_match(gold: Rows, pred: Rows, ordered: bool) -> bool:
    """`official_match` without the quirk that refuses (1.0, 1.5) for (1, 1.5)."""
    if len(gold) != len(pred):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(pred[0]):
        return False
    if gold == pred:
        return True
    if ordered:
        # as lists, equal columns are interchangeable, so the columns are compared as a bag
        return _bag(zip(*gold, strict=True)) == _bag(zip(*pred, strict=True))
    return _bag(gold) == _bag(pred) or (len(gold[0]) > 1 and _some_column_order_fits(gold, pred))


def set_match(gold: Rows, pred: Rows) -> bool:
    """BIRD's rule: equal as sets of rows, columns in the order given."""
    return set(gold) == set(pred)


def _quickly_rejected(gold: Rows, pred: Rows, ordered: bool) -> bool:
    """
    The official pre-check: the cells of each row, sorted by their text and type, must agree. For results that are
    otherwise equal it says no only where an equal number is written as an integer on one side and as a float on the
    other, and so is sorted to another place.
    """
    if float not in set(map(type, chain.from_iterable(chain(gold, pred)))) or _identical(gold, pred):
        return False
    gold_cells = [_by_text(row) for row in gold]
    pred_cells = [_by_text(row) for row in pred]
    return gold_cells != pred_cells if ordered else set(gold_cells) != set(pred_cells)


def _bag(items: Iterable[Any]) -> dict[Any, int]:
    """Item to its number. A plain dictionary: comparing two Counters takes ten times as long."""
    return dict(Counter(items))


def _identical(gold: Rows, pred: Rows) -> bool:
    """The same cells of the same types in the same order: as marshal writes them, the quickest way to tell."""
    try:
        return marshal.dumps(list(gold), 2) == marshal.dumps(list(pred), 2)
    except ValueError:  # dates, decimals: other databases than SQLite
        return False


def _by_text(row: Row) -> Row:
    return tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}"))


def _some_column_order_fits(gold: Rows, pred: Rows) -> bool:
    """
    Is there an order of the prediction's columns under which both are the same bag of rows? Columns are placed one by
    one, those with the fewest candidates first; after each the parts of the rows placed so far must agree as bags.
    """
    gold_columns = list(zip(*gold, strict=True))
    pred_columns = list(zip(*pred, strict=True))
    pred_bags = [_bag(column) for column in pred_columns]
    candidates = []
    for column in gold_columns:
        bag = _bag(column)
        candidates.append([number for number, pred_bag in enumerate(pred_bags) if pred_bag == bag])
    order = sorted(range(len(gold_columns)), key=lambda number: len(candidates[number]))
    if not candidates[order[0]]:
        return False
    start = [0] * len(gold)
    # (depth, labels of the gold rows, labels of the predicted rows, predicted columns used)
    open_ends: list[tuple[int, list[int], list[int], frozenset[int]]] = [(0, start, start, frozenset())]
    looked_at = 0
    while open_ends:
        depth, gold_labels, pred_labels, used = open_ends.pop()
        if depth == len(order):
            return True
        gold_column = order[depth]
        names: dict[tuple[int, Any], int] = {}
        gold_next = [
            names.setdefault(key, len(names)) for key in zip(gold_labels, gold_columns[gold_column], strict=True)
        ]
        gold_bag = _bag(gold_next)
        tried: set[Row] = set()
        for number in candidates[gold_column]:
            column = pred_columns[number]
            if number in used or column in tried:  # of equal columns one is as good as another
                continue
            tried.add(column)
            looked_at += len(column)
            if looked_at > SEARCH_CELLS:
                raise UndecidedError(f"{len(order)} columns and {len(gold)} rows that are too much alike")
            pred_next = [names.get(key, -1) for key in zip(pred_labels, column, strict=True)]
            if _bag(pred_next) == gold_bag:
                open_ends.append((depth + 1, gold_next, pred_next, used | {number}))
    return False
