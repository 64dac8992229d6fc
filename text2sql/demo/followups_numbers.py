"""Turns that turn rows into numbers and groups, or groups into the one that comes first; see `text2sql.demo.followups`."""

from collections.abc import Sequence
from dataclasses import replace

from text2sql.demo.draw import Draw, Step
from text2sql.demo.openers import AGGREGATES
from text2sql.demo.query import COUNT, Condition, Field, Item, Query, column_of, label_of, without_order


def aggregate_of(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in ("list", "count") or before.limit or before.select[0].distinct:
        return None
    field = draw.pick(draw.numbers(draw.domain.table(before.main), dates=False))
    if not field:
        return None
    function = draw.rng.choice(AGGREGATES if column_of(draw.domain, field).total else AGGREGATES[:3])
    query = replace(without_order(before), kind="aggregate", select=(Item(field, function),))
    return Step("aggregate_of", query, before, field=field, aggregate=function)


def other_aggregate(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "aggregate" or len(before.select) != 1 or not before.select[0].field:
        return None
    item = before.select[0]
    column = column_of(draw.domain, before.select[0].field)
    options = ("MAX", "MIN") if column.high == "latest" else AGGREGATES if column.total else AGGREGATES[:3]
    function = draw.rng.choice([option for option in options if option != item.aggregate])
    query = replace(before, select=(replace(item, aggregate=function),))
    return Step("other_aggregate", query, before, field=item.field, aggregate=function)


def who_is_that(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "aggregate" or len(before.select) != 1 or not draw.domain.table(before.main).label:
        return None
    item = before.select[0]
    if item.aggregate not in ("MAX", "MIN"):
        return None
    select = (Item(label_of(draw.domain, before.main)),)
    query = replace(before, kind="top", select=select, order=Item(item.field), descending=item.aggregate == "MAX")
    return Step("who_is_that", replace(query, limit=1), before, field=item.field)


def group_them(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind not in ("list", "count") or before.limit or before.select[0].distinct:
        return None
    used = [condition.field for condition in before.where]
    key = draw.pick([key for key in draw.keys(draw.domain.table(before.main)) if key not in used])
    if not key:
        return None
    query = replace(without_order(before), kind="groups", select=(Item(key), COUNT), group=key)
    return Step("group_them", query, before, key=key)


def group_aggregate(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "aggregate" or len(before.select) != 1:
        return None
    used = [condition.field for condition in before.where]
    key = draw.pick([key for key in draw.keys(draw.domain.table(before.main)) if key not in used])
    if not key:
        return None
    return Step(
        "rekey", replace(before, kind="groups", select=(Item(key), before.select[0]), group=key), before, key=key
    )


def rekey(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "groups" or not before.group or before.having or before.order:
        return None
    used = [condition.field for condition in before.where] + [before.group]
    key = draw.pick([key for key in draw.keys(draw.domain.table(before.main)) if key not in used])
    if not key:
        return None
    query = replace(before, select=(Item(key), *before.select[1:]), group=key)
    return Step("rekey", query, before, key=key)


def having_of(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "groups" or before.select[-1] != COUNT or before.having or before.order:
        return None
    counts = sorted(row[1] for row in draw.run(before))
    bound = (draw.rng.choice((">", ">=")), counts[len(counts) // 2])
    query = replace(before, having=bound)
    return Step("having_of", query, before, key=before.group, number=bound[1], aggregate=bound[0])


def top_of_groups(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "groups" or before.having or before.order or len(before.select) != 2:
        return None
    measure = before.select[1]
    query = replace(before, kind="top_group", select=before.select[:1], order=measure, limit=1)
    query = replace(query, descending=draw.rng.random() < 0.7)
    intent = "top_of_groups" if measure == COUNT else "top_of_measures"
    return Step(intent, query, before, key=before.group, field=measure.field, aggregate=measure.aggregate)


def sort_groups(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "groups" or before.order or len(before.select) != 2:
        return None
    descending = draw.rng.random() < 0.7
    query = replace(before, order=before.select[1], descending=descending)
    return Step("sort_groups_down" if descending else "sort_groups_up", query, before, key=before.group)


def size_of_top_group(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    if before.kind != "top_group" or before.order != COUNT or before.select[0] == COUNT:
        return None
    return Step("size_of_top", replace(before, select=(COUNT,)), before, key=before.group)


def rows_of_top_group(draw: Draw, before: Query, earlier: Sequence[Query]) -> Step | None:
    """The rows of the group that came out on top, by a subquery."""
    table = draw.domain.table(before.main)
    if before.kind != "top_group" or before.order != COUNT or before.where or not before.group or not table.label:
        return None
    field = before.group
    if field.table != before.main:
        owners = [r for r in table.of_kind("reference") if label_of(draw.domain, r.parent) == field]
        if not owners:
            return None
        field = Field(before.main, owners[0].name)
    inner = replace(before, select=(Item(field),), group=field)
    condition = Condition(field, "=", query=inner)
    query = Query("list", before.main, (Item(label_of(draw.domain, before.main)),), (condition,))
    return Step("rows_of_top", query, before, key=before.group)
