"""Which planned turns are worth asking: gold that runs, returns rows, and is determined by the data."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from text2sql.demo.draw import Draw, Step
from text2sql.demo.query import Query

MAX_ROWS = 60


def is_sound(draw: Draw, step: Step) -> bool:
    """
    The result has rows and no empty answer (a count of 0, an average of nothing); no order or limit depends on ties or
    NULLs; a refinement really changes the result and leaves some of it.
    """
    rows = draw.run(step.query)
    if not rows or len(rows) > MAX_ROWS:
        return False
    if len(rows) == 1 and any(cell in (None, 0) for cell in rows[0]):
        return False
    if step.query.order and not _order_is_determined(draw, step.query):
        return False
    if step.before is not None and step.intent != "count_first":
        return _says_something(draw, step, rows)
    return _is_selective(draw, step.query, rows)


def _order_is_determined(draw: Draw, query: Query) -> bool:
    """No two neighbours with the same order key differ, up to the first row that a limit cuts; no key is NULL."""
    assert query.order
    whole = draw.run(replace(query, select=(*query.select, query.order), limit=None))
    if query.limit is not None and len(whole) < query.limit:
        return False
    shown = whole[: query.limit + 1] if query.limit else whole
    if any(row[-1] is None for row in shown[: query.limit]):
        return False
    return all(a[-1] != b[-1] or (a == b and not query.limit) for a, b in pairwise(shown))


def _says_something(draw: Draw, step: Step, rows: list[tuple[Any, ...]]) -> bool:
    assert step.before
    before = draw.run(step.before)
    if rows == before:
        return False
    if step.intent == "refine_bare" and step.before.kind == "list":
        return len(rows) < len(before)
    narrower = ("refine", "exclude", "above_average_of", "with_of", "without_of", "having_of", "first_some")
    if step.intent in narrower:
        return len(rows) < len(before)
    if step.intent in (
        "sort_up",
        "sort_down",
        "sort_label",
        "resort_up",
        "resort_down",
        "reverse",
        "top_of",
        "count_them",
    ):
        return len(before) > 1
    if step.intent in (
        "aggregate_of",
        "group_them",
        "sort_groups_up",
        "sort_groups_down",
        "top_of_groups",
        "top_of_measures",
    ):
        return len(before) > 2 or step.before.kind == "count"
    if step.intent == "extend":
        return len(rows) > len(before) or step.before.kind == "count"
    return True


def _is_selective(draw: Draw, query: Query, rows: list[tuple[Any, ...]]) -> bool:
    """A question with conditions leaves something out."""
    if query.kind != "list" or not query.where:
        return True
    return len(rows) < len(draw.run(replace(query, where=())))
