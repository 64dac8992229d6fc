"""
Answers that a gold query admits beside the one it happened to give.

ORDER BY leaves the order of rows with equal keys open, and a LIMIT that cuts through them leaves open which are
returned: it depends on the SQLite build. A prediction that gives another admissible answer is not wrong for that.
"""

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import Any

from sqlglot import exp

from evaluation.gold_flags import TieProbe, parse, tie_probe
from evaluation.result_match import value_match

_ALL_ROWS = 10**9


def order_probe(gold: str) -> TieProbe | None:
    """
    The gold without its cut and with its sort keys as further columns. None when its top level has no ORDER BY, is a
    set operation or SELECT DISTINCT, has a LIMIT that is no positive number, or cannot be read.
    """
    tree = parse(gold)
    if not isinstance(tree, exp.Select) or tree.args.get("distinct") or not tree.args.get("order"):
        return None
    if not tree.args.get("limit"):
        tree = tree.limit(_ALL_ROWS)
    return tie_probe(tree)


def admits(probe: TieProbe, rows: tuple[tuple[Any, ...], ...], pred: tuple[tuple[Any, ...], ...]) -> bool:
    """
    Is `pred` (columns in gold's order) an answer that gold admits? `rows` are the probe's: each run of rows with equal
    keys must give its place in the answer to rows of its own. Of a run that goes beyond the probe's window only the
    rows inside count.
    """
    start, stop = probe.cuts if len(probe.cuts) == 2 else (0, probe.cuts[0])
    if len(pred) != max(0, min(stop, len(rows)) - start):
        return False
    width = len(rows[0]) - probe.keys if rows else 0
    position = 0
    for _, run in groupby(rows, key=lambda row: row[width:]):
        tied = [row[:width] for row in run]
        first, last = max(position, start), min(position + len(tied), stop)
        if first < last and not Counter(pred[first - start : last - start]) <= Counter(tied):
            return False
        position += len(tied)
    return True


def admits_all_tied(probe: TieProbe, rows: tuple[tuple[Any, ...], ...], pred: tuple[tuple[Any, ...], ...]) -> bool:
    """
    Is `pred` the gold's answer with every row that ties with its last one? A LIMIT cuts those off, `= (SELECT max(…))`
    does not. No for a gold without LIMIT. `rows` are the probe's. Columns may be in another order where all the answer
    is tied. Raises UndecidedError.
    """
    start, stop = probe.cuts if len(probe.cuts) == 2 else (0, probe.cuts[0])
    if stop >= _ALL_ROWS or not start < stop <= len(rows):
        return False
    width = len(rows[0]) - probe.keys
    while stop < len(rows) and rows[stop - 1][width:] == rows[stop][width:]:
        stop += 1
    if rows[start][width:] == rows[stop - 1][width:]:
        return value_match([row[:width] for row in rows[start:stop]], pred, ordered=False)
    return admits(replace(probe, cuts=(start, stop)), rows, pred)
