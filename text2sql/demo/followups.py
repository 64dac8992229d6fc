"""
Turns that build on an earlier one: each function takes the query so far and gives the next step, or None when it does
not apply. FOLLOWUPS lists them with their weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from text2sql.demo.draw import Draw, Step
from text2sql.demo.followups_numbers import (
    aggregate_of,
    group_aggregate,
    group_them,
    having_of,
    other_aggregate,
    rekey,
    rows_of_top_group,
    size_of_top_group,
    sort_groups,
    top_of_groups,
    who_is_that,
)
from text2sql.demo.openers import average_condition
from text2sql.demo.query import COUNT, Condition, Field, Item, Query, column_of, label_of, without_order

Followup = Callable[[Draw, Query, Sequence[Query]], Step | None]
COUNTABLE = ("list", "count", "aggregate", "groups")


def refine(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in (*COUNTABLE, "top") or before.connector == "OR" or len(before.where) > 2:
        return None
    if before.limit and before.kind == "list":
        return None
    avoid = [condition.field for condition in before.where] + ([before.group] if before.group else [])
    if before.kind in ("list", "top"):
        avoid += draw.told(draw.domain.table(before.main))
    condition = draw.condition(before.main, avoid=avoid, own=bool(before.group))
    if not condition:
        return None
    if before.kind != "groups" and draw.rng.random() < 0.5 and draw.only_in_one_column(before.main, condition):
        return Step("refine_bare", replace(before, where=(*before.where, condition)), before, condition=condition)
    intent = {"list": "refine", "count": "refine_count", "top": "refine_top"}.get(before.kind, "refine_other")
    if intent == "refine_other" and draw.rng.random() < 0.6:  # fits everywhere, and would crowd out the others
        return None
    return Step(intent, replace(before, where=(*before.where, condition)), before, condition=condition)


def replace_condition(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    """The same question with another value in its last condition."""
    if before.kind not in (*COUNTABLE, "top") or not before.where or before.connector == "OR":
        return None
    old = before.where[-1]
    if old.query is not None or old.op in ("LIKE", "BETWEEN", "!="):
        return None
    new = draw.condition_on(before.main, old.field)
    if new.op != old.op or new.value == old.value:
        return None
    query = replace(before, where=(*before.where[:-1], new))
    return Step("replace", query, before, condition=new)


def exclude(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or before.connector == "OR" or before.limit or len(before.where) > 2:
        return None
    used = [condition.field for condition in before.where]
    field = draw.pick([f for f in draw.categories(draw.domain.table(before.main)) if f not in used])
    if not field:
        return None
    said = draw.condition_on(before.main, field)
    query = replace(before, where=(*before.where, replace(said, op="!=")))
    return Step("exclude", query, before, condition=said)


def extend(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in ("list", "count") or len(before.where) != 1 or before.where[0].op != "=":
        return None
    if before.select[0].distinct:
        return None
    old = before.where[0]
    new = draw.condition_on(before.main, old.field)
    if old.query is not None or new.value == old.value:
        return None
    return Step("extend", replace(before, where=(old, new), connector="OR"), before, condition=new)


def drop(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in COUNTABLE or len(before.where) < 2 or before.connector == "OR":
        return None
    dropped = draw.rng.choice(before.where)
    if dropped.query is not None or dropped.op in ("LIKE", "!="):
        return None
    where = tuple(condition for condition in before.where if condition != dropped)
    return Step("drop", replace(before, where=where), before, field=dropped.field)


def start_over(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in ("list", "top") or not before.where or not draw.domain.table(before.main).label:
        return None
    query = Query("list", before.main, (Item(label_of(draw.domain, before.main)),))
    return Step("start_over", query, before)


def count_them(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or before.limit:
        return None
    return Step("count_them", replace(without_order(before), kind="count", select=(COUNT,)), before)


def count_first(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    """Back to the list that the dialogue began with."""
    if len(earlier) < 3 or earlier[0].kind != "list" or not earlier[0].where or earlier[0].limit:
        return None
    first = earlier[0]
    return Step("count_first", replace(without_order(first), kind="count", select=(COUNT,)), first)


def which(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in ("count", "aggregate") or not before.where or not draw.domain.table(before.main).label:
        return None
    if before.select[0].distinct:
        return None
    query = replace(before, kind="list", select=(Item(label_of(draw.domain, before.main)),))
    return Step("which" if before.kind == "count" else "which_rows", query, before)


def sort(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or before.limit:
        return None
    table = draw.domain.table(before.main)
    options = draw.numbers(table)
    label = label_of(draw.domain, before.main)
    if table.label and not before.order:
        options.append(label)
    field = draw.pick([field for field in options if not before.order or before.order.field != field])
    if not field:
        return None
    descending = field != label and draw.rng.random() < 0.6
    query = replace(before, order=Item(field), descending=descending)
    name = "sort_label" if field == label else "sort_down" if descending else "sort_up"
    return Step(name if not before.order else name.replace("sort", "resort"), query, before, field=field)


def reverse(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or not before.order or before.limit:
        return None
    return Step("reverse", replace(before, descending=not before.descending), before)


def first_some(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or not before.order or before.limit:
        return None
    count = draw.rng.choice((2, 3, 4, 5))
    return Step("first_some", replace(before, limit=count), before, number=count)


def top_of(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or before.limit or before.connector == "OR" or not draw.domain.table(before.main).label:
        return None
    field = draw.pick(draw.numbers(draw.domain.table(before.main)))
    if not field:
        return None
    query = replace(before, kind="top", select=(Item(label_of(draw.domain, before.main)),), order=Item(field))
    return Step("top_of", replace(query, descending=draw.rng.random() < 0.6, limit=1), before, field=field)


def opposite(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind == "top" and before.order and len(before.select) == 1 and _selects_label(draw, before):
        return Step("opposite", replace(before, descending=not before.descending), before, field=before.order.field)
    if before.kind == "top_group" and before.order == COUNT and before.select[0].field == before.group:
        return Step("opposite_group", replace(before, descending=not before.descending), before, key=before.group)
    return None


def more_of(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "top" or not before.order or not _selects_label(draw, before):
        return None
    count = draw.rng.choice((2, 3, 4))
    return Step("more_of", replace(before, kind="list", limit=count), before, field=before.order.field, number=count)


def fact_of_top(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    table = draw.domain.table(before.main)
    if before.kind != "top" or not table.label:
        return None
    options = draw.categories(table) + draw.numbers(table)
    options += 2 * [label_of(draw.domain, reference.parent) for reference in table.of_kind("reference")]
    used = [item.field for item in before.select] + [c.field for c in before.where if c.op == "="]
    field = draw.pick([field for field in options if field not in used])
    if not field:
        return None
    intent = "fact" if field.table == before.main else "fact_parent"
    return Step(intent, replace(before, select=(Item(field),)), before, field=field)


def add_column(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    table = draw.domain.table(before.main)
    if before.kind != "list" or len(before.select) > 2 or not table.label or not _selects_label(draw, before):
        return None
    options = draw.categories(table) + draw.numbers(table)
    for reference in table.of_kind("reference"):
        parent = draw.domain.table(reference.parent)
        options += [label_of(draw.domain, parent.name), *draw.categories(parent)]
    used = [item.field for item in before.select]
    fixed = [condition.field for condition in before.where if condition.op == "="]
    field = draw.pick([field for field in options if field not in used + fixed])
    if not field:
        return None
    direct = field.table == before.main or field == label_of(draw.domain, field.table)
    query = replace(before, select=(*before.select, Item(field)))
    return Step("add_column" if direct else "add_parent_column", query, before, field=field)


def swap_column(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    table = draw.domain.table(before.main)
    if before.kind != "list" or not table.label:
        return None
    options = draw.categories(table) + draw.numbers(table)
    options += [label_of(draw.domain, reference.parent) for reference in table.of_kind("reference")]
    used = [item.field for item in before.select] + [c.field for c in before.where if c.op == "="]
    field = draw.pick([field for field in options if field not in used])
    if not field:
        return None
    return Step("swap_column", replace(before, select=(Item(field),)), before, field=field)


def above_average_of(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or before.connector == "OR" or before.limit or len(before.where) > 1:
        return None
    used = [condition.field for condition in before.where]
    table = draw.domain.table(before.main)
    field = draw.pick([field for field in draw.numbers(table, dates=False) if field not in used])
    if not field or not table.label:
        return None
    condition = average_condition(field, draw.rng.choice("><"))
    query = replace(before, where=(*before.where, condition))
    return Step("above_average_of", query, before, field=field, condition=condition)


def children_of(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "list" or before.connector == "OR" or before.limit or len(before.where) > 1:
        return None
    if any(condition.query for condition in before.where):
        return None
    pair = draw.pick(list(draw.domain.children(before.main)))
    if not pair:
        return None
    child, reference = pair
    inner = Query("values", child.name, (Item(Field(child.name, reference.name)),))
    if draw.rng.random() < 0.4:
        condition = Condition(Field(before.main, "id"), "NOT IN", query=inner)
        query = replace(before, where=(*before.where, condition))
        return Step("without_of", query, before, condition=condition, child=child.name)
    inner_condition = draw.condition(child.name, own=True)
    if not inner_condition:
        return None
    inner = replace(inner, where=(inner_condition,))
    condition = Condition(Field(before.main, "id"), "IN", query=inner)
    query = replace(before, where=(*before.where, condition))
    return Step("with_of", query, before, condition=condition, child=child.name)


def other_fact(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "lookup":
        return None
    table = draw.domain.table(before.main)
    options = [column for column in table.of_kind("category", "number") if column.name != before.select[0].field.column]  # type: ignore[union-attr]
    column = draw.pick(options)
    if not column:
        return None
    field = Field(before.main, column.name)
    return Step("other_fact", replace(before, select=(Item(field),)), before, field=field)


def other_row(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    """The same question about another name, which may belong to another table that has such a column."""
    if before.kind != "lookup" or not before.select[0].field:
        return None
    if len(earlier) > 2 and {query.kind for query in earlier[-3:]} == {"lookup"}:
        return None
    noun = column_of(draw.domain, before.select[0].field).noun
    options = [
        Field(table.name, column.name)
        for table in draw.domain.tables
        if table.label and table.person == draw.domain.table(before.main).person
        for column in table.columns
        if column.noun == noun
    ]
    field = draw.rng.choice(options)
    label = label_of(draw.domain, field.table)
    name = draw.rng.choice(draw.values(field.table, label))
    query = Query("lookup", field.table, (Item(field),), (Condition(label, "=", name),))
    return Step("other_row", query, before, field=field, name=name)


def children_of_row(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    pair = draw.pick(list(draw.domain.children(before.main)))
    if before.kind != "lookup" or not pair:
        return None
    child = pair[0]
    if child.label and draw.rng.random() < 0.5:
        query = Query("list", child.name, (Item(label_of(draw.domain, child.name)),), before.where)
        return Step("children_of_row", query, before, child=child.name)
    query = Query("count", child.name, (COUNT,), before.where)
    return Step("count_children_of_row", query, before, child=child.name)


def _selects_label(draw: Draw, query: Query) -> bool:
    return query.select[0].field == label_of(draw.domain, query.main)


FOLLOWUPS: tuple[tuple[Followup, float], ...] = (
    (refine, 10),
    (replace_condition, 6),
    (exclude, 7),
    (extend, 7),
    (drop, 8),
    (start_over, 2),
    (count_them, 5),
    (count_first, 3),
    (which, 9),
    (sort, 12),
    (reverse, 12),
    (first_some, 16),
    (top_of, 6),
    (opposite, 12),
    (more_of, 9),
    (fact_of_top, 12),
    (add_column, 6),
    (swap_column, 4),
    (aggregate_of, 4),
    (other_aggregate, 6),
    (who_is_that, 14),
    (group_them, 4),
    (group_aggregate, 5),
    (rekey, 4),
    (having_of, 7),
    (top_of_groups, 12),
    (sort_groups, 10),
    (size_of_top_group, 6),
    (rows_of_top_group, 16),
    (above_average_of, 6),
    (children_of, 14),
    (other_fact, 8),
    (other_row, 18),
    (children_of_row, 12),
)
